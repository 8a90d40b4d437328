"""Rollouts that go at their own pace, and weights that change between two turns of them."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pytest

from divopd.environments import Observation
from divopd.environments.pool import Answer, InlinePool
from divopd.errors import CheckpointError, EnvironmentFailure
from divopd.explorer import Acting, Played, Start, play, rows_of
from divopd.models.policy import Response
from divopd.models.tiny import build_model, build_tokenizer
from divopd.models.transformers_policy import TransformersPolicy
from divopd.pipeline.exploring import Explorer
from divopd.player import Player
from divopd.prompts import Codec, style_for
from divopd.recovery import Recovery

WORDS = "start wait go north win stuck nothing happens you are in room"


class Counting:
    """Ends after three actions that are "go"."""

    def reset(self, task: str) -> Observation:
        self.task, self.place = task, 0
        return Observation("start")

    def step(self, action: str) -> Observation:
        if self.task == "broken":
            raise EnvironmentFailure("the corridor collapsed")
        self.place += action == "go"
        return Observation(f"room {self.place}", done=self.place == 3, success=self.place == 3)


@dataclass
class Speaker:
    """Says the same to everybody, token by token, and notes with which weights it did so."""

    ids: list[int]
    weights: int = 0
    under_way: dict[Hashable, list[int]] = field(default_factory=dict)
    asked: list[tuple[Hashable, int]] = field(default_factory=list)

    def add(self, key: Hashable, prompt: Sequence[int], **_: object) -> None:
        assert key not in self.under_way
        self.under_way[key] = []
        self.asked.append((key, self.weights))

    def step(self) -> list[tuple[Hashable, Response]]:
        for said in self.under_way.values():
            said.append(self.ids[len(said)])
        over = [key for key, said in self.under_way.items() if len(said) == len(self.ids)]
        logprobs = np.full(len(self.ids), -float(self.weights))  # tells which weights answered
        return [(key, Response(self.under_way.pop(key), logprobs)) for key in over]

    @property
    def pending(self) -> int:
        return len(self.under_way)


class SlowPlace(InlinePool):
    """The environment at place 0 answers only when it is let go."""

    slow = True

    def __init__(self, size: int) -> None:
        super().__init__([Counting() for _ in range(size)])
        self._kept: list[Answer] = []

    def collect(self, *, timeout_s: float = 0.0) -> list[Answer]:
        answers = self._kept + super().collect(timeout_s=timeout_s)
        self._kept = [one for one in answers if self.slow and one.place == 0]
        return [one for one in answers if one not in self._kept]


@pytest.fixture(scope="module")
def codec() -> Codec:
    return Codec(build_tokenizer([WORDS, WORDS]))


def acting(codec: Codec, **changes: object) -> Acting:
    style = style_for("corridor", answer="terse", actions="unlisted")
    return Acting(style, codec, temperature=1.0, max_response_tokens=4, seed=0, **changes)  # type: ignore[arg-type]


def step_until_over(player: Player, count: int) -> list[Played]:
    over: list[Played] = []
    for _ in range(1000):
        over += player.step()
        if len(over) >= count:
            return over
    raise AssertionError(f"{len(over)} of {count} rollouts ended")


def test_a_slow_environment_holds_nobody_up(codec: Codec) -> None:
    """Six rollouts end at the other place while one waits for its reset."""
    pool = SlowPlace(2)
    player = Player(pool, Speaker(codec.response_ids("go")))
    for number in range(2):
        player.begin(Start(number, "t", 8), acting(codec))
    ended: list[int] = []
    for number in range(2, 8):
        [played] = step_until_over(player, 1)
        ended.append(played.start.number)
        player.begin(Start(number, "t", 8), acting(codec))
    assert len(set(ended)) == 6
    assert player.free == 0
    pool.slow = False
    assert {played.start.number for played in step_until_over(player, 2)} | set(ended) == set(range(8))
    assert player.free == 2


@dataclass
class InPhase(Speaker):
    """Notes how far the answers are that it writes beside each other."""

    lengths: list[set[int]] = field(default_factory=list)

    def step(self) -> list[tuple[Hashable, Response]]:
        self.lengths.append({len(said) for said in self.under_way.values()})
        return super().step()


def test_a_rollout_that_ends_costs_its_place_no_token(codec: Codec) -> None:
    """Where all answers have one length, whoever begins in its place begins together with the others' next answers."""
    student = InPhase(codec.response_ids("go"))
    player = Player(InlinePool([Counting() for _ in range(3)]), student)
    ended = 0
    for number in range(20):
        while not player.free:
            ended += len(player.step())
        player.begin(Start(number, "t", 1 + number % 3), acting(codec))
    assert ended >= 17
    assert all(len(lengths) == 1 for lengths in student.lengths)


class Gone(Counting):
    """Breaks off before anything has happened if its task says so."""

    def reset(self, task: str) -> Observation:
        if task == "gone":
            raise EnvironmentFailure("there was never a corridor")
        return super().reset(task)


def test_rollouts_that_break_at_once_hold_nobody_up(codec: Codec) -> None:
    """One after the other begins and breaks at one place; the rollout at the other is played to its end."""
    player = Player(InlinePool([Gone(), Gone()]), Speaker(codec.response_ids("go")))
    player.begin(Start(0, "t", 8), acting(codec))
    for number in range(1, 60):
        player.begin(Start(number, "gone", 8), acting(codec))
        if any(played.start.number == 0 for played in player.step()):
            return
    raise AssertionError("59 rollouts broke, and the one beside them did not end")


class LongWinded(Speaker):
    """Answers the first question in a hundred tokens, all others at once."""

    def step(self) -> list[tuple[Hashable, Response]]:
        first = self.asked[0][0]
        waits = {first: self.under_way.pop(first)} if first in self.under_way and self.steps < 100 else {}
        self.steps += 1
        over = super().step()
        self.under_way |= waits
        return over

    steps = 0


def test_a_long_answer_holds_nobody_up(codec: Codec) -> None:
    """Eight rollouts end at the other place while one answer is being written."""
    student = LongWinded(codec.response_ids("go"))
    player = Player(InlinePool([Counting(), Counting()]), student)
    for number in range(2):
        player.begin(Start(number, "t", 8), acting(codec))
    ended: list[int] = []
    for number in range(2, 10):
        [played] = step_until_over(player, 1)
        ended.append(played.start.number)
        player.begin(Start(number, "t", 8), acting(codec))
    assert student.steps < 100
    assert len(set(ended)) == 8
    late = step_until_over(player, 2)
    assert len({played.start.number for played in late} - set(ended)) == 2


def test_it_plays_what_the_lock_step_plays(codec: Codec) -> None:
    """The same starts with a real model: the same actions and answers, log probabilities to rounding."""
    policies = [TransformersPolicy(build_model(build_tokenizer([WORDS, WORDS]), seed=0)) for _ in range(2)]
    starts = [Start(number, "t", 4 + number % 3) for number in range(7)]
    expected = play(starts, acting(codec), student=policies[0], environments=[Counting() for _ in range(3)])
    player = Player(InlinePool([Counting() for _ in range(3)]), policies[1])
    waiting, over = starts[::-1], list[Played]()
    while len(over) < len(starts):
        while player.free and waiting:
            player.begin(waiting.pop(), acting(codec))
        over += player.step()
    over.sort(key=lambda played: played.start.number)
    assert [[t.response.ids for t in one.turns] for one in over] == [
        [t.response.ids for t in one.turns] for one in expected
    ]
    for one, other in zip(over, expected, strict=True):
        for ours, theirs in zip(one.turns, other.turns, strict=True):
            np.testing.assert_allclose(ours.response.logprobs, theirs.response.logprobs, atol=1e-5)


def test_an_environment_that_dies_costs_its_rollout(codec: Codec) -> None:
    """The place is free again, and the next rollout there is played to its end."""
    player = Player(InlinePool([Counting()]), Speaker(codec.response_ids("go")))
    player.begin(Start(0, "broken", 8), acting(codec))
    [broken] = step_until_over(player, 1)
    assert (broken.failure, len(broken.turns)) == ("the corridor collapsed", 1)
    player.begin(Start(1, "t", 8), acting(codec))
    [fine] = step_until_over(player, 1)
    assert fine.success


def test_weights_change_between_two_turns(codec: Codec) -> None:
    """Held, the student finishes what it is at and hears nothing new; every row has the version that answered it."""
    student = Speaker(codec.response_ids("go"))
    player = Player(InlinePool([Counting(), Counting()]), student, version=4)
    for number in range(2):
        player.begin(Start(number, "t", 8), acting(codec))
    while len(student.asked) < 3:
        player.step()
    player.hold()
    while not player.quiet:
        player.step()
    asked = len(student.asked)
    for _ in range(5):
        player.step()
    assert len(student.asked) == asked
    student.weights = 5
    player.go_on(version=5)
    for played in step_until_over(player, 2):
        rows = rows_of(played, name="r", version=4)
        assert rows is not None
        versions = [turn.version for turn in rows.turns]
        assert versions[0] == 4
        assert versions[-1] == 5
        assert versions == [4 if turn.student_logprobs[0] == 0 else 5 for turn in rows.turns if turn.student_logprobs]
        assert [turn.available_at for turn in rows.turns] == versions


def test_a_stuck_student_is_helped_by_the_teacher_of_its_task(codec: Codec) -> None:
    """The teacher's turns come from it alone, and the student goes on afterwards."""
    student, teacher = Speaker(codec.response_ids("wait")), Speaker(codec.response_ids("go"))
    asked: list[str] = []

    def teacher_of(task: str) -> Speaker:
        asked.append(task)
        return teacher

    player = Player(InlinePool([Counting()]), student, teacher_of=teacher_of)
    player.begin(Start(0, "t", 6), acting(codec, recovery=Recovery(patience=2, takeover=2)))
    [played] = step_until_over(player, 1)
    assert [turn.actor for turn in played.turns] == ["student"] * 3 + ["teacher"] * 2 + ["student"]
    assert asked == ["t"] * 2
    rows = rows_of(played, name="r", version=3)
    assert rows is not None
    assert [turn.turn for turn in rows.teacher_turns] == [3, 4]


# ── when weights change ───────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Script:
    """Orders: versions as a list says, one more after every fifth ended rollout; notes what it was asked."""

    student: Speaker
    codec: Codec
    version: int = 0
    started: int = 0
    loaded: list[tuple[int, int]] = field(default_factory=list)  # version, responses under way
    ended: list[Played] = field(default_factory=list)
    missing: bool = False

    def wanted(self) -> int | None:
        return self.version

    def load(self, version: int) -> None:
        if self.missing:
            self.missing = False
            raise CheckpointError("gone")
        self.loaded.append((version, self.student.pending))
        self.student.weights = version

    def next(self, version: int) -> tuple[Start, Acting] | None:
        assert version == self.student.weights
        self.started += 1
        return Start(self.started, "t", 2 + self.started % 4), acting(self.codec)

    def over(self, played: Played) -> None:
        self.ended.append(played)


@pytest.mark.parametrize("versions", ["rollout", "turn"])
def test_when_weights_change(versions: Literal["rollout", "turn"], codec: Codec) -> None:
    """By rollout no rollout has two versions; by turn nobody waits for a rollout's end. Never under a response."""
    student = Speaker(codec.response_ids("wait"))
    orders = Script(student, codec, missing=True)
    explorer = Explorer(
        Player(InlinePool([Counting() for _ in range(3)]), student, version=-1), orders, versions=versions
    )
    assert not explorer.step()  # the first weights were gone
    while len(orders.ended) < 60:
        orders.version = len(orders.ended) // 5
        assert explorer.step()
    assert all(pending == 0 for _, pending in orders.loaded)
    assert [version for version, _ in orders.loaded] == sorted({version for version, _ in orders.loaded})
    mixed = 0
    for played in orders.ended:
        said = [turn.version for turn in played.turns]
        assert said == [-turn.response.logprobs[0] for turn in played.turns]
        mixed += len(set(said)) > 1
    assert (mixed > 0) == (versions == "turn")


def test_weights_that_are_wanted_no_more_hold_nobody(codec: Codec) -> None:
    """The newer version was gone, and the old one is wanted again: rollouts go on with it."""
    student = Speaker(codec.response_ids("wait"))
    orders = Script(student, codec)
    explorer = Explorer(Player(InlinePool([Counting()]), student, version=0), orders, versions="turn")
    while len(orders.ended) < 2:
        explorer.step()
    orders.version, orders.missing = 1, True
    while orders.missing:
        explorer.step()
    orders.version = 0
    for _ in range(80):  # a rollout takes fifteen
        explorer.step()
    assert len(orders.ended) > 4


def test_older_weights_never_come_into_a_rollout(codec: Codec) -> None:
    """An evaluation may want an older version: it waits until the rollouts in flight have ended."""
    student = Speaker(codec.response_ids("wait"))
    orders = Script(student, codec, version=7)
    explorer = Explorer(Player(InlinePool([Counting(), Counting()]), student, version=-1), orders, versions="turn")
    while len(orders.ended) < 3:
        explorer.step()
    orders.version = 5
    while student.weights == 7:
        explorer.step()
    assert explorer.player.free == 0
    assert all({turn.version for turn in played.turns} == {7} for played in orders.ended)
