"""Rollouts and recovery: who acts, and what becomes a row."""

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divopd.environments import Observation
from divopd.errors import AlignmentError, EnvironmentFailure
from divopd.explorer import Acting, Start, play, play_each, rows_of
from divopd.models.policy import Response
from divopd.models.tiny import build_tokenizer
from divopd.prompts import Codec, style_for
from divopd.recovery import Recovery, RecoveryState, made_progress
from divopd.teacher import check_vocabularies, score_rollouts
from divopd.validity import why_invalid

WORDS = "start wait go north win stuck nothing happens you are in room"


class Corridor:
    """Go three times to win; anything else changes nothing. The task "broken" dies at the first action."""

    def reset(self, task: str) -> Observation:
        self.task, self.place = task, 0
        return Observation("start", allowed_actions=["go", "wait"])

    def step(self, action: str) -> Observation:
        if self.task == "broken":
            raise EnvironmentFailure("the corridor collapsed")
        if action not in ("go", "wait"):
            return Observation("nothing happens", allowed_actions=["go", "wait"], valid=False)
        self.place += action == "go"
        won = self.place == 3
        return Observation(
            f"room {self.place}", allowed_actions=["go", "wait", f"go {self.place}"], done=won, success=won
        )


class Parrot:
    """A policy that always says the same, and scores every token -1."""

    def __init__(self, codec: Codec, text: str) -> None:
        self.ids = codec.response_ids(text)

    def respond(self, prompts: Sequence[Sequence[int]], **_: object) -> list[Response]:
        return [Response(list(self.ids), np.full(len(self.ids), -0.5)) for _ in prompts]

    def score(
        self, sequences: Sequence[Sequence[int]], spans: Sequence[Sequence[tuple[int, int]]]
    ) -> list[list[np.ndarray]]:
        return [[np.full(end - start, -1.0) for start, end in wanted] for wanted in spans]


@pytest.fixture(scope="module")
def codec() -> Codec:
    return Codec(build_tokenizer([WORDS, WORDS]))


def acting(codec: Codec, **changes: object) -> Acting:
    look = {"answer": "terse", "actions": "unlisted"} | changes.pop("style", {})  # type: ignore[operator]
    style = style_for("corridor", **look)
    return Acting(style, codec, temperature=1.0, max_response_tokens=4, seed=0, **changes)  # type: ignore[arg-type]


def starts(count: int, *, depth: int = 8, task: str = "t") -> list[Start]:
    return [Start(number, task, depth) for number in range(count)]


def test_rollouts_end_at_success_or_at_their_depth(codec: Codec) -> None:
    """More rollouts than environments: each is played once, results in order."""
    environments = [Corridor(), Corridor()]
    played = play(starts(5), acting(codec), student=Parrot(codec, "go"), environments=environments)
    assert [p.start.number for p in played] == list(range(5))
    assert all(p.success and len(p.turns) == 3 for p in played)
    cut = play(starts(3, depth=2), acting(codec), student=Parrot(codec, "go"), environments=environments)
    assert all(not p.success and len(p.turns) == 2 for p in cut)


def test_a_start_is_taken_when_a_place_is_free(codec: Codec) -> None:
    """Rollouts come out as they end, and only then is the next start asked for: it may depend on what came out."""
    taken: list[int] = []

    def endless() -> Iterator[Start]:
        for number in count():
            taken.append(number)
            yield Start(number, "t", depth=1 if number % 2 else 3)

    playing = play_each(endless(), acting(codec), student=Parrot(codec, "wait"), environments=[Corridor(), Corridor()])
    assert next(playing).start.number == 1
    assert taken == [0, 1]
    assert [next(playing).start.number for _ in range(3)] == [0, 2, 3]
    assert taken == [0, 1, 2, 3]


def test_an_environment_that_dies_costs_one_rollout(codec: Codec) -> None:
    mixed = [Start(0, "broken", 8), Start(1, "t", 8)]
    broken, fine = play(mixed, acting(codec), student=Parrot(codec, "go"), environments=[Corridor(), Corridor()])
    assert broken.failure == "the corridor collapsed"
    assert not broken.success
    assert fine.success


def test_an_answer_without_an_action_is_an_invalid_action(codec: Codec) -> None:
    [played] = play(starts(1, depth=2), acting(codec), student=Parrot(codec, ""), environments=[Corridor()])
    assert [turn.action for turn in played.turns] == [None, None]
    assert not played.turns[0].seen.valid


def test_rows_of_a_scored_rollout(codec: Codec) -> None:
    """All student turns are rows with the teacher's scores; a turn whose prompt was cut is a dead row."""
    few = acting(codec, style={"max_prompt_tokens": 12})
    played = play(starts(1), few, student=Parrot(codec, "wait"), environments=[Corridor()])
    rows = rows_of(played[0], name="r0", version=4)
    assert rows is not None
    [rollout] = score_rollouts(Parrot(codec, ""), [rows])
    reasons = [why_invalid(turn) for turn in rollout.turns]
    assert reasons[0] is None
    assert set(reasons[2:]) == {"prompt_truncated"}
    assert rollout.version == 4
    first = rollout.turns[0]
    assert first.teacher_logprobs == [-1.0] * len(first.response_ids)
    assert (first.success, first.rollout_turns) == (False, 8)
    valid = sum(len(turn.response_ids) for turn, reason in zip(rollout.turns, reasons, strict=True) if reason is None)
    assert {turn.rollout_valid_tokens for turn in rollout.turns} == {valid}
    assert {turn.rollout_valid_tokens for turn in rows.turns} == {None}  # not known before they are scored


def test_the_teacher_recovers_a_stuck_student(codec: Codec) -> None:
    """Patience 2: the student waits twice, the teacher acts; its turns are in the history and are no rows."""
    recovering = acting(codec, recovery=Recovery(patience=2, takeover=2))
    student, teacher = Parrot(codec, "north"), Parrot(codec, "go")
    played = play(
        starts(1, depth=9), recovering, student=student, teacher_of=lambda task: teacher, environments=[Corridor()]
    )
    actors = [turn.actor for turn in played[0].turns]
    assert actors == ["student", "student", "teacher", "student", "student", "teacher", "student", "student", "student"]
    rows = rows_of(played[0], name="r0", version=0)
    assert rows is not None
    assert [turn.turn for turn in rows.turns] == [0, 1, 3, 4, 6, 7, 8]
    after, before = played[0].turns[3].prompt.ids, played[0].turns[2]
    assert after[: len(before.prompt.ids) + len(before.response.ids)] == [*before.prompt.ids, *before.response.ids]


@pytest.mark.parametrize("answer", ["terse", "think"])
def test_replayed_actions_are_history_and_no_rows(codec: Codec, answer: Literal["terse", "think"]) -> None:
    """Prompts are those of a rollout in which the student had said them; the turns keep their numbers."""
    here = acting(codec, style={"answer": answer})
    student = Parrot(codec, here.style.render("go"))
    [guided] = play([Start(0, "t", 8, ("go", "go"))], here, student=student, environments=[Corridor()])
    [alone] = play(starts(1), here, student=student, environments=[Corridor()])
    assert [turn.actor for turn in guided.turns] == ["expert", "expert", "student"]
    assert [turn.prompt.ids for turn in guided.turns] == [turn.prompt.ids for turn in alone.turns]
    assert guided.success
    assert guided.generated_tokens == len(student.ids)
    rows = rows_of(guided, name="r0", version=0)
    assert rows is not None
    assert [(turn.turn, turn.rollout_turns) for turn in rows.turns] == [(2, 3)]


def test_a_rollout_that_ends_while_actions_are_replayed_has_no_rows(codec: Codec) -> None:
    """It succeeds, it is cut, or its environment dies: nobody is asked any more."""
    nobody = Parrot(codec, "north")
    actions = ("go", "go", "go", "go")
    wanted = [Start(0, "t", 8, actions), Start(1, "t", 2, actions), Start(2, "broken", 8, actions)]
    won, cut, dead = play(wanted, acting(codec), student=nobody, environments=[Corridor()])
    assert [len(played.turns) for played in (won, cut, dead)] == [3, 2, 1]
    assert (won.success, cut.success, dead.failure) == (True, False, "the corridor collapsed")
    assert all(rows_of(played, name="r", version=0) is None for played in (won, cut, dead))


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 5), st.integers(0, 6))
def test_the_teacher_never_acts_more_than_its_budget(progress: list[bool], patience: int, takeover: int) -> None:
    """It acts only after `patience` turns without progress, and at most `takeover` turns in a rollout."""
    state = RecoveryState(Recovery(patience=patience, takeover=takeover))
    acted = stuck = 0
    for moved in progress:
        if state.teacher_acts:
            assert stuck >= patience
        actor = "teacher" if state.teacher_acts else "student"
        acted += actor == "teacher"
        seen = Observation("x", allowed_actions=["a"])
        state.record(actor, action="a" if moved else None, last_action="b", before=seen, after=seen)
        stuck = 0 if moved else stuck + 1
    assert acted <= takeover


def test_what_counts_as_progress() -> None:
    """Invalid, or the same action again with the same actions allowed: no progress."""
    here, there = Observation("a", allowed_actions=["x", "y"]), Observation("b", allowed_actions=["x"])
    assert not made_progress(None, last_action=None, before=here, after=here)
    assert not made_progress("x", last_action="w", before=here, after=Observation("?", valid=False))
    assert not made_progress("x", last_action="x", before=here, after=Observation("c", allowed_actions=["y", "x"]))
    assert made_progress("x", last_action="x", before=here, after=there)
    assert made_progress("x", last_action="w", before=here, after=here)


def test_another_vocabulary_is_refused_with_what_differs(codec: Codec) -> None:
    ours, theirs = build_tokenizer(["a cat a cat"]), build_tokenizer(["a dog a dog"])
    with pytest.raises(AlignmentError, match=r"different vocabularies .*cat"):
        check_vocabularies(ours, theirs)
    check_vocabularies(ours, build_tokenizer(["a cat", "a cat"]))
