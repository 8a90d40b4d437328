"""Rollouts and recovery: who acts, and what becomes a row."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asked import told
from divopd.environments import Environment, Observation
from divopd.errors import AlignmentError, EnvironmentFailure
from divopd.explorer import Acting, Played, Start, play, play_each, rows_of
from divopd.models.policy import Response
from divopd.models.tiny import build_tokenizer
from divopd.prompts import Codec, style_for
from divopd.recovery import ProgressWatch, Recovery, RecoveryState
from divopd.teacher import check_vocabularies, score_rollouts
from divopd.turns import TeacherTurn
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


def play_recovering(codec: Codec, recovery: Recovery, *, student: str, environment: Environment) -> Played:
    """One rollout of nine turns with a teacher who always goes."""
    speaking, teacher = Parrot(codec, student), Parrot(codec, "go")
    recovering = acting(codec, recovery=recovery)
    [played] = play(
        starts(1, depth=9), recovering, student=speaking, teacher_of=lambda task: teacher, environments=[environment]
    )
    return played


def actors_of(played: Played) -> str:
    return "".join(turn.actor[0] for turn in played.turns)


def test_the_teacher_keeps_control_for_its_whole_budget(codec: Codec) -> None:
    """Patience 2: the student fails twice, the teacher acts twice, though it makes progress at once, and never again.

    Its turns have numbers, count towards the depth and are in the history; they are no rows.
    """
    played = play_recovering(codec, Recovery(patience=2, takeover=2), student="north", environment=Corridor())
    assert actors_of(played) == "ssttsssss"
    rows = rows_of(played, name="r0", version=0)
    assert rows is not None
    assert [turn.turn for turn in rows.turns] == [0, 1, 4, 5, 6, 7, 8]
    assert {turn.rollout_turns for turn in rows.turns} == {9}
    went = tuple(codec.response_ids("go"))
    assert rows.teacher_turns == (TeacherTurn(2, went, "go", "room 1"), TeacherTurn(3, went, "go", "room 2"))
    [scored] = score_rollouts(Parrot(codec, ""), [rows])
    assert scored.teacher_turns == rows.teacher_turns
    after, before = played.turns[4].prompt.ids, played.turns[3]
    assert after[: len(before.prompt.ids) + len(before.response.ids)] == [*before.prompt.ids, *before.response.ids]


def test_the_teacher_may_give_control_back_at_the_first_progress(codec: Codec) -> None:
    """Until progress: it acts for one turn, comes again to a student that is stuck again, and keeps to its budget."""
    recovery = Recovery(patience=2, takeover=2, until="progress")
    assert actors_of(play_recovering(codec, recovery, student="north", environment=Corridor())) == "sstsstsss"


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
def test_the_teacher_acts_once_and_for_its_budget(progress: list[bool], patience: int, takeover: int) -> None:
    """From the turn after the first `patience` turns without progress in a row, for `takeover` turns in a row."""
    state = RecoveryState(Recovery(patience=patience, takeover=takeover))
    acted: list[int] = []
    for turn, moved in enumerate(progress):
        acted += [turn] if state.teacher_acts else []
        state.record("teacher" if state.teacher_acts else "student", progress=moved)
    stuck = (turn for turn in range(patience, len(progress)) if not any(progress[turn - patience : turn]))
    first = next(stuck, len(progress))
    assert acted == list(range(first, min(first + takeover, len(progress))))


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 5), st.integers(0, 6))
def test_with_an_early_return_the_budget_is_the_same(progress: list[bool], patience: int, takeover: int) -> None:
    """It acts only after `patience` turns without progress, and at most `takeover` turns in a rollout."""
    state = RecoveryState(Recovery(patience=patience, takeover=takeover, until="progress"))
    acted = stuck = 0
    for moved in progress:
        if state.teacher_acts:
            assert stuck >= patience
        actor = "teacher" if state.teacher_acts else "student"
        acted += actor == "teacher"
        state.record(actor, progress=moved)
        stuck = 0 if moved else stuck + 1
    assert acted <= takeover


class Hall:
    """What is seen after each action, in order; what is allowed can be asked for, which is counted."""

    def __init__(self, *seen: tuple[str, list[str]]) -> None:
        self.seen, self.turn, self.asked = seen, 0, 0

    def reset(self, task: str) -> Observation:
        del task
        self.turn = 0
        return Observation(self.seen[0][0])

    def step(self, action: str) -> Observation:
        self.turn += 1
        return Observation(self.seen[self.turn][0], valid=action != "north")

    def valid_actions(self) -> list[str]:
        self.asked += 1
        return self.seen[self.turn][1]


class SilentHall:
    """As a hall, but nobody can ask what is allowed."""

    def __init__(self, *seen: str) -> None:
        self.hall = Hall(*((text, []) for text in seen))

    def reset(self, task: str) -> Observation:
        return self.hall.reset(task)

    def step(self, action: str) -> Observation:
        return self.hall.step(action)


def progress_of(environment: Environment, actions: Sequence[str | None]) -> list[bool]:
    watch, seen, made = ProgressWatch(), environment.reset("t"), list[bool]()
    for action in actions:
        if action is not None:
            told(watch.expect(action, seen), environment)
            seen = environment.step(action)
        made.append(told(watch.made(action, seen), environment))
    return made


def test_what_counts_as_progress() -> None:
    """Invalid, or the same action again with the same set of actions allowed, in whatever order: no progress."""
    ways = [["a", "b"], ["a", "b"], ["b", "a"], ["a"], ["a"], ["a"], ["a"]]
    hall = Hall(*((f"text {number}", listed) for number, listed in enumerate(ways)))
    actions = ["go", "go", "go", None, "go", "north", "north"]
    assert progress_of(hall, actions) == [True, False, True, False, True, False, False]


def test_an_unchanged_text_is_no_unchanged_set() -> None:
    """Where the set can be asked for, the text does not matter; where nobody tells the set, it stands for it."""
    same_text = [("hall", ["a"]), ("hall", ["a"]), ("hall", ["b"]), ("hall", ["b"])]
    assert progress_of(Hall(*same_text), ["go"] * 3) == [True, True, False]
    assert progress_of(SilentHall("hall", "hall", "hall", "room"), ["go"] * 3) == [True, False, True]


def test_what_is_allowed_is_asked_for_only_where_an_action_is_repeated(codec: Codec) -> None:
    """Before and after the first repetition, after each further one; without recovery never. Prompts do not show it."""
    hall = Hall(*((f"room {number}", ["secret"]) for number in range(9)))
    assert progress_of(hall, ["go", "wait", "go", "go", "go", "wait"]) == [True, True, True, False, False, True]
    assert hall.asked == 3
    hall = Hall(*((f"room {number}", ["secret"]) for number in range(10)))
    listing = acting(codec, style={"actions": "listed"})
    [alone] = play(starts(1, depth=9), listing, student=Parrot(codec, "wait"), environments=[hall])
    assert hall.asked == 0
    never = Recovery(patience=9, takeover=1)
    [watched] = play(
        starts(1, depth=9), replace(listing, recovery=never), student=Parrot(codec, "wait"), environments=[hall]
    )
    assert hall.asked == 9
    assert [turn.prompt for turn in watched.turns] == [turn.prompt for turn in alone.turns]


def test_a_student_is_stuck_where_only_the_text_changes(codec: Codec) -> None:
    """It repeats itself, and the set that no prompt shows stays the same: after two such turns it is helped."""
    recovery = Recovery(patience=2, takeover=2)
    resting = Hall(*((f"room {number}", ["go"]) for number in range(10)))
    assert actors_of(play_recovering(codec, recovery, student="wait", environment=resting)) == "sssttssss"
    moving = Hall(*((f"room {number}", [f"go {number}"]) for number in range(10)))
    assert actors_of(play_recovering(codec, recovery, student="wait", environment=moving)) == "s" * 9


def test_another_vocabulary_is_refused_with_what_differs(codec: Codec) -> None:
    ours, theirs = build_tokenizer(["a cat a cat"]), build_tokenizer(["a dog a dog"])
    with pytest.raises(AlignmentError, match=r"different vocabularies .*cat"):
        check_vocabularies(ours, theirs)
    check_vocabularies(ours, build_tokenizer(["a cat", "a cat"]))
