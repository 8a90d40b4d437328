"""How much of an explorer's places do useful work: the product's explorer against one that plays in lock-step.

In virtual time: 16 rollouts in flight, 6 ms a token for all responses together, responses of 40 to 400 tokens, rollouts
of 5 to 30 turns, an environment that takes 50 to 150 ms an action (ALFWorld's own package does 9 to 17 a second), new
weights every 30 s and half a second to load them. A place is useful while a response is written for it or its
environment acts. Both sides meet the same lengths. The explorer is the product's own class with an engine and
environments that pass virtual time; in lock-step all places wait for the longest response, environments act one after
the other, and when weights are new no rollout begins until all have ended.

In real time, both in turn for a few rounds, medians: rollouts a second with a slow environment (0.2 s an action, in
worker processes) and a model of the embedded size, against lock-step that asks one environment after the other, as the
explorer once did, and that asks all at once, as the virtual clock does; rollouts a processor second, and a second, with
a fast one: the default setting's environment and student, whose answers have 3 to 24 tokens. Where all responses have
one length, lock-step has nothing to wait for: "even responses" is that case, the worst for whoever goes at their own
pace. With --peer before: processor seconds of a turn in the default setting, against divopd as it was when its explorer
played in lock-step, with its engine of that time.
"""

import random
import tempfile
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch

from divopd.environments import Environment, Observation, make_environment, tasks
from divopd.environments.environment import Method
from divopd.environments.pool import Answer, EnvironmentPool, InlinePool, environments_in, open_pool
from divopd.experiments.peers import Peer, PeerProcess, Times, interleaved, ratio, timed
from divopd.explorer import Acting, Played, Start, play_each
from divopd.models.policy import Response
from divopd.models.tiny import build_model, build_tokenizer
from divopd.models.transformers_policy import TransformersPolicy
from divopd.pipeline.exploring import Explorer
from divopd.pipeline.named_models import model_folder
from divopd.player import Player
from divopd.prompts import Codec, style_for

PLACES = 16
TOKEN_S, LOAD_S, UPDATE_S = 0.006, 0.5, 30.0
RESPONSE, TURNS, ACTION_S = (40, 400), (5, 30), (0.05, 0.15)
SLOW_ACTION_S = 0.2
WORDS = "go to the next room and look around"
ROOM = """
import time
from divopd.environments import Observation

class Room:
    @staticmethod
    def tasks(split):
        return ["room"]
    def reset(self, task):
        return Observation("the next room")
    def step(self, action):
        time.sleep({seconds})
        return Observation("look around the next room")
"""


class Sizes(NamedTuple):
    seconds: float  # of virtual time
    slow_turns: int  # of a round
    fast_turns: int
    turns: int  # of a rollout in real time
    slow_rounds: int
    fast_rounds: int
    workers: int  # processes of the slow environment


FULL = Sizes(seconds=1800.0, slow_turns=192, fast_turns=320, turns=10, slow_rounds=1, fast_rounds=30, workers=PLACES)
QUICK = Sizes(seconds=10.0, slow_turns=4, fast_turns=4, turns=2, slow_rounds=1, fast_rounds=1, workers=2)


def run(sizes: Sizes) -> dict:
    torch.set_num_threads(1)
    shares = {"lock-step": lock_step_share(sizes.seconds)}
    shares |= {versions: explorer_share(sizes.seconds, versions) for versions in ("rollout", "turn")}
    return {
        "bench": "slots",
        "ratio": shares["turn"] / shares["lock-step"],
        "unit": "useful share",
        "ours": shares["turn"],
        "reference": shares["lock-step"],
        "detail": {"useful_share": shares, "rollouts_per_second": real_time(sizes)},
    }


def look() -> Acting:
    style = style_for("corridor", answer="terse", actions="unlisted")
    return Acting(style, Codec(build_tokenizer([WORDS, WORDS])), temperature=1.0, max_response_tokens=8, seed=0)


# ── virtual time ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Clock:
    """Virtual seconds, and the seconds in which places were useful."""

    now: float = 0.0
    useful: float = 0.0

    @property
    def version(self) -> int:
        return int(self.now / UPDATE_S)

    def share(self) -> float:
        return self.useful / (PLACES * self.now)


def tokens_of(seed: int) -> int:
    return random.Random(f"tokens {seed}").randint(*RESPONSE)


def start_of(number: int) -> Start:
    return Start(number, "room", random.Random(f"turns {number}").randint(*TURNS))


class VirtualEngine:
    """Writes a token of every response under way in the same time, however many they are."""

    def __init__(self, clock: Clock, ids: list[int]) -> None:
        self._clock, self._left = clock, dict[Hashable, int]()
        self._response = Response(ids, np.zeros(len(ids)))

    def add(self, key: Hashable, prompt: Sequence[int], *, temperature: float, max_tokens: int, seed: int) -> None:
        del prompt, temperature, max_tokens
        self._left[key] = tokens_of(seed)

    def step(self) -> list[tuple[Hashable, Response]]:
        self._clock.now += TOKEN_S
        self._clock.useful += TOKEN_S * len(self._left)
        self._left = {key: left - 1 for key, left in self._left.items()}
        over = [key for key, left in self._left.items() if not left]
        return [(key, self._response) for key in over if not self._left.pop(key)]

    @property
    def pending(self) -> int:
        return len(self._left)


class VirtualPool:
    """Environments that act side by side."""

    size = PLACES

    def __init__(self, clock: Clock) -> None:
        self._clock, self._due = clock, dict[int, float]()
        self._random = random.Random("actions")

    def submit(self, place: int, method: Method, argument: str | None = None) -> None:
        del method, argument
        seconds = self._random.uniform(*ACTION_S)
        self._clock.useful += seconds
        self._due[place] = self._clock.now + seconds

    def collect(self, *, timeout_s: float = 0.0) -> list[Answer]:
        if timeout_s and self._due:
            self._clock.now = max(self._clock.now, min(*self._due.values(), self._clock.now + timeout_s))
        there = [place for place, due in self._due.items() if due <= self._clock.now]
        for place in there:
            del self._due[place]
        return [Answer(place, Observation("the next room")) for place in there]

    def close(self) -> None:
        pass


class VirtualOrders:
    """Rollouts without end, and new weights by the clock."""

    def __init__(self, clock: Clock, acting: Acting) -> None:
        self._clock, self._acting, self._numbers = clock, acting, count()

    def wanted(self) -> int:
        return self._clock.version

    def load(self, version: int) -> None:
        del version
        self._clock.now += LOAD_S

    def next(self, version: int) -> tuple[Start, Acting]:
        del version
        return start_of(next(self._numbers)), self._acting

    def over(self, played: Played) -> None:
        pass


def explorer_share(seconds: float, versions: Literal["rollout", "turn"]) -> float:
    clock, acting = Clock(), look()
    engine = VirtualEngine(clock, acting.codec.response_ids("go"))
    explorer = Explorer(Player(VirtualPool(clock), engine, version=0), VirtualOrders(clock, acting), versions=versions)
    while clock.now < seconds:
        explorer.step()
    return clock.share()


class LockStepEngine:
    """Everybody waits for the longest response."""

    def __init__(self, clock: Clock, ids: list[int]) -> None:
        self._clock, self._response = clock, Response(ids, np.zeros(len(ids)))

    def respond(
        self, prompts: Sequence[Sequence[int]], *, temperature: float, max_tokens: int, seeds: Sequence[int]
    ) -> list[Response]:
        del temperature, max_tokens
        lengths = [tokens_of(seed) for seed in seeds]
        self._clock.now += TOKEN_S * max(lengths)
        self._clock.useful += TOKEN_S * sum(lengths)
        return [self._response for _ in prompts]

    def score(self, sequences: object, spans: object) -> list[list[np.ndarray]]:
        raise AssertionError("a student that only plays needs no scores")


class LockStepRoom:
    """Environments act one after the other."""

    def __init__(self, clock: Clock, actions: random.Random) -> None:
        self._clock, self._random = clock, actions

    def reset(self, task: str) -> Observation:
        return self.step(task)

    def step(self, action: str) -> Observation:
        del action
        seconds = self._random.uniform(*ACTION_S)
        self._clock.now += seconds
        self._clock.useful += seconds
        return Observation("the next room")


def lock_step_share(seconds: float) -> float:
    clock, acting, numbers = Clock(), look(), count()
    engine = LockStepEngine(clock, acting.codec.response_ids("go"))
    actions = random.Random("actions")
    rooms = [LockStepRoom(clock, actions) for _ in range(PLACES)]

    def starts() -> Iterator[Start]:
        version = clock.version
        while clock.version == version and clock.now < seconds:
            yield start_of(next(numbers))

    while clock.now < seconds:
        clock.now += LOAD_S
        for _ in play_each(starts(), acting, student=engine, environments=rooms):
            pass
    return clock.share()


# ── real time ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Sides(NamedTuple):
    """What both ways of playing have in common."""

    pool: EnvironmentPool
    student: TransformersPolicy
    acting: Acting
    tasks: Sequence[str]
    turns: Callable[[int], int]  # that rollout n may have
    in_turn: bool = False  # in lock-step, an environment is asked when the one before has answered


def real_time(sizes: Sizes) -> dict[str, dict[str, float]]:
    """Rollouts a second of both ways."""

    def depth(number: int) -> int:
        return 1 + sizes.turns * (number % 4 + 1) // 4

    def small() -> TransformersPolicy:
        return TransformersPolicy(build_model(build_tokenizer([WORDS, WORDS]), seed=0))

    def even() -> Sides:
        return Sides(InlinePool([FastRoom() for _ in range(PLACES)]), small(), look(), ["room"], depth)

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "room.py"
        file.write_text(ROOM.format(seconds=SLOW_ACTION_S), encoding="utf-8")

        def slow(*, in_turn: bool) -> Sides:
            pool = open_pool(f"{file}:Room", {}, size=PLACES, workers=sizes.workers)
            return Sides(pool, small(), look(), ["room"], depth, in_turn)

        one_by_one, at_once = (
            _compare(partial(slow, in_turn=in_turn), sizes.slow_turns, sizes.slow_rounds) for in_turn in (True, False)
        )
    return {
        "slow environment, against lock-step that asks one after the other": one_by_one,
        "slow environment, against lock-step that asks all at once": at_once,
        "fast environment": _compare(lambda: _default_setting(sizes.turns), sizes.fast_turns, sizes.fast_rounds),
        "fast environment, even responses": _compare(even, sizes.fast_turns, sizes.fast_rounds),
    }


def _default_setting(turns: int) -> Sides:
    name = "alfworld-small"
    student = TransformersPolicy.load(model_folder("embedded:student"), dtype="float32", device="cpu")
    style = style_for(name, answer="terse", actions="unlisted")
    acting = Acting(style, Codec(student.tokenizer), temperature=1.0, max_response_tokens=24, seed=0)
    pool = InlinePool([make_environment(name) for _ in range(PLACES)])
    return Sides(pool, student, acting, tasks(name, "train"), lambda number: turns)


class Counted:
    """A student that counts its answers."""

    def __init__(self, student: TransformersPolicy) -> None:
        self.answered = 0
        self._student = student
        self.add, self.score = student.add, student.score

    def respond(
        self, prompts: Sequence[Sequence[int]], *, temperature: float, max_tokens: int, seeds: Sequence[int]
    ) -> list[Response]:
        said = self._student.respond(prompts, temperature=temperature, max_tokens=max_tokens, seeds=seeds)
        self.answered += len(said)
        return said

    def step(self) -> list[tuple[Hashable, Response]]:
        said = self._student.step()
        self.answered += len(said)
        return said

    @property
    def pending(self) -> int:
        return self._student.pending


class InTurn:
    """An environment that cannot be asked now and waited for later."""

    def __init__(self, environment: Environment) -> None:
        self.reset, self.step = environment.reset, environment.step


class FastRoom:
    """Answers at once."""

    def reset(self, task: str) -> Observation:
        return Observation(f"the next {task}")

    def step(self, action: str) -> Observation:
        return Observation(f"look around the next room and {action}")


def _compare(make: Callable[[], Sides], turns: int, rounds: int) -> dict[str, float]:
    """Both ways in turn, so that what else the machine does meets both; each with its own environments and student.

    Turns are counted, not rollouts: in lock-step all of these end at once, at their own pace some are half done.
    """
    both = {"lock-step": make(), "ours": make()}
    students = {name: Counted(sides.student) for name, sides in both.items()}
    ways = {
        "lock-step": _in_lock_step(both["lock-step"], students["lock-step"]),
        "ours": _apart(both["ours"], Player(both["ours"].pool, students["ours"])),
    }
    played: list[int] = []  # turns of whole rollouts

    def go_on(name: str) -> Times:
        return a_turn(students[name], ways[name], turns, played)

    taken = interleaved({name: partial(go_on, name) for name in both}, rounds=rounds)
    for sides in both.values():
        sides.pool.close()
    return {
        "rollouts_per_second": 1 / (taken["ours"]["wall_s"] * float(np.mean(played))),
        "ratio": ratio(taken, ours="ours", theirs="lock-step", by="wall_s"),
        "ratio_by_processor_second": ratio(taken, ours="ours", theirs="lock-step"),
    }


def a_turn(student: Counted, way: Iterator[Played], turns: int, played: list[int]) -> Times:
    """What a turn takes, over so many at least; how many the rollouts had that ended goes to `played`."""
    before = student.answered

    def go_on() -> None:
        while student.answered - before < turns:
            played.append(len(next(way).turns))

    taken, answered = timed(go_on), student.answered - before
    return Times(taken.wall_s / answered, taken.processor_s / answered)


def _starts(sides: Sides) -> Iterator[Start]:
    """Without end, so that nobody waits for the last rollout."""
    return (Start(number, sides.tasks[number % len(sides.tasks)], sides.turns(number)) for number in count())


def _in_lock_step(sides: Sides, student: Counted) -> Iterator[Played]:
    environments = environments_in(sides.pool)
    if sides.in_turn:
        environments = [InTurn(environment) for environment in environments]
    return play_each(_starts(sides), sides.acting, student=student, environments=environments)


def _apart(sides: Sides, player: Player) -> Iterator[Played]:
    starts = _starts(sides)
    while True:
        while player.free:
            player.begin(next(starts), sides.acting)
        yield from player.step()


# ── beside the explorer of before ─────────────────────────────────────────────────────────────────────────────────


def run_beside(peer: Peer, process: PeerProcess, sizes: Sizes) -> dict:
    torch.set_num_threads(1)
    sides = _default_setting(sizes.turns)
    process.ask("begin", places=PLACES, turns=sizes.turns)
    student = Counted(sides.student)
    rollouts = _apart(sides, Player(sides.pool, student))

    taken = interleaved(
        {
            "ours": lambda: a_turn(student, rollouts, sizes.fast_turns, []),
            peer.name: lambda: process.times("play", rollouts=max(1, sizes.fast_turns // sizes.turns)),
        },
        rounds=sizes.fast_rounds,
    )
    return {
        "bench": "slots",
        "ratio": ratio(taken, ours="ours", theirs=peer.name),
        "unit": "processor seconds of a turn, a fast environment and a tiny student",
        "ours": taken["ours"]["processor_s"],
        "reference": taken[peer.name]["processor_s"],
        "detail": {"peer": peer.package, **process.ask("about"), **taken},
    }
