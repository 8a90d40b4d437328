"""Environments side by side, in this process or in worker processes, behind one interface that never waits too long.

    pool = open_pool("rooms.py:CountingRoom", {}, size=16)
    pool.submit(3, "reset", "room/7")
    [answer] = pool.collect(timeout_s=60)

A user's class, a Gymnasium environment and an OpenEnv client run in worker processes unless the setting `workers` says
otherwise. There a call has a time limit, and what hangs, exits, crashes, floods or returns nonsense costs its rollout:
the answer is an EnvironmentFailure, the process is killed with all that it started, and the next reset has a new one.
"""

import select
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, cast

from divopd.environments import find_entry, make_environment
from divopd.environments.environment import Call, Environment, Method, Observation, Returned, answer
from divopd.environments.wire import WireError, observation_from_json
from divopd.environments.worker_process import ENDING_S, Request, Told, WorkerProcess
from divopd.errors import EnvironmentFailure, EnvironmentMistake, InputError
from divopd.printable import one_line

if TYPE_CHECKING:
    from divopd.environments.programs.pool import ProgramPool

Workers = int | Literal["auto"]
TIMEOUT_S = 120.0  # of a call, unless a config says otherwise
RESETS = 3  # a reset may take so many times as long: it may start a JVM or load a catalogue
MOST_WORKERS = 16  # processes of a pool whose number nobody chose; beyond it environments share them
LOOK_S = 0.2  # between two looks at workers that say nothing


class Answer(NamedTuple):
    """What a call returned: `value`, or the `failure` that cost the rollout at this place."""

    place: int
    value: Observation | list[str] | None
    failure: EnvironmentFailure | None = None


class EnvironmentPool(Protocol):
    """Environments at places 0 to size - 1, each asked for one thing at a time; a failed one wants a reset next.

    `submit` and `collect` raise an InputError if the environment cannot be made as its settings say.
    """

    size: int

    def submit(self, place: int, method: Method, argument: str | None = None) -> None:
        """Ask the environment at a place; the answer comes by `collect`."""
        ...

    def collect(self, *, timeout_s: float = 0.0) -> list[Answer]:
        """The answers that are there; waits at most so long for the first. Also sees to it that limits are kept."""
        ...

    def close(self) -> None:
        """End what the pool has started; no call is possible afterwards."""
        ...


def open_pool(
    name: str,
    settings: Mapping[str, Any],
    *,
    size: int,
    workers: Workers = "auto",
    timeout_s: float = TIMEOUT_S,
) -> "InlinePool | WorkerPool | ProgramPool":
    """A pool of `size` environments. `workers`: how many processes hold them, 0: this one, auto: as the kind needs.

    A program has a process of its own in any case; `timeout_s` is then for all of its rollout.
    """
    if find_entry(name).program:
        from divopd.environments.programs.pool import ProgramPool
        from divopd.environments.programs.source import Program

        program = Program(**settings)
        return ProgramPool(program.argv(), program.records(), size=size, timeout_s=timeout_s)
    if workers == "auto":
        workers = MOST_WORKERS if find_entry(name).in_workers else 0
    if workers == 0:
        return InlinePool([make_environment(name, **settings) for _ in range(size)])
    return WorkerPool(name, settings, size=size, workers=min(workers, size), timeout_s=timeout_s)


def environments_in(pool: EnvironmentPool, *, heed: Callable[[], None] = lambda: None) -> list[Environment]:
    """The places of a pool as ordinary environments, whose methods wait for their answers.

    `heed` is called while they wait: it may raise what ends the run.
    """
    if isinstance(pool, InlinePool):
        return list(pool.environments)
    mailbox = _Mailbox(pool, heed=heed)
    return [PooledEnvironment(mailbox, place) for place in range(pool.size)]


class InlinePool:
    """Environments of this process: a call is made when it is submitted, and nothing limits it."""

    def __init__(self, environments: Sequence[Environment]) -> None:
        self.environments = list(environments)
        self.size = len(self.environments)
        self._answers: list[Answer] = []

    def submit(self, place: int, method: Method, argument: str | None = None) -> None:
        try:
            self._answers.append(Answer(place, answer(self.environments[place], Call(method, argument))))
        except EnvironmentFailure as failure:
            self._answers.append(Answer(place, None, failure))

    def collect(self, *, timeout_s: float = 0.0) -> list[Answer]:
        del timeout_s  # whatever was asked has been answered
        answers, self._answers = self._answers, []
        return answers

    def close(self) -> None:
        """Nothing was started; the environments are whose they were, and some keep a JVM warm for the next ones."""


class WorkerPool:
    """Environments in worker processes, which are started when they are first needed.

    Where there are fewer workers than places, environments share a process: one that is killed takes the rollouts of
    its neighbours with it.
    """

    def __init__(
        self, name: str, settings: Mapping[str, Any], *, size: int, workers: int, timeout_s: float = TIMEOUT_S
    ) -> None:
        self.size, self._name, self._timeout_s = size, name, timeout_s
        hello = {"name": name, "settings": dict(settings), "path": sys.path}
        self._workers = [WorkerProcess(hello, read=_read) for _ in range(workers)]
        self._asked: set[int] = set()
        self._answers: list[Answer] = []
        self._end = weakref.finalize(self, _close, self._workers)  # also when nobody refers to the pool any more

    def submit(self, place: int, method: Method, argument: str | None = None) -> None:
        assert place not in self._asked, f"place {place} was asked before it has answered"
        self._asked.add(place)
        limit_s = self._timeout_s * (RESETS if method == "reset" else 1)
        worker = self._workers[place % len(self._workers)]
        worker.waiting.append(Request(place, method, argument, limit_s))
        self._answers += map(self._answer, worker.look())

    def collect(self, *, timeout_s: float = 0.0) -> list[Answer]:
        until = time.monotonic() + timeout_s
        while True:
            for worker in self._workers:
                self._answers += map(self._answer, worker.look())
            now = time.monotonic()
            if self._answers or now >= until or not self._asked:
                break
            self._wait(min(until - now, LOOK_S))
        answers, self._answers = self._answers, []
        self._asked -= {answer.place for answer in answers}
        return answers

    def close(self) -> None:
        self._end()

    def _wait(self, seconds: float) -> None:
        """Until a worker says something, or so long."""
        poll = select.poll()
        for worker in self._workers:
            worker.register(poll)
        poll.poll(seconds * 1000)

    def _answer(self, told: Told) -> Answer:
        place, method, *_ = told.request
        if told.reason:
            words = f"environment {self._name}, {method}: {one_line(told.reason)}"
            return Answer(place, None, EnvironmentFailure(words))
        if isinstance(told.value, EnvironmentFailure):
            return Answer(place, None, told.value)
        if isinstance(told.value, InputError):
            raise told.value
        return Answer(place, told.value)


def _read(request: Request, message: Mapping[str, Any]) -> tuple[object, bool]:
    """What a worker says, checked again; an error is for whoever asked. The rollout goes on if there is none."""
    for kind, error in (("mistake", EnvironmentMistake), ("failure", EnvironmentFailure), ("refusal", InputError)):
        if kind in message:
            return error(one_line(str(message[kind]))), False
    if request.method != "valid_actions":
        return observation_from_json(message.get("seen")), True
    listed = message.get("actions")
    if listed is not None and not (isinstance(listed, list) and all(isinstance(one, str) for one in listed)):
        raise WireError("answered with what is no list of actions")
    return listed, True


def _close(workers: Sequence[WorkerProcess]) -> None:
    for worker in workers:
        worker.stop_sending()
    at = time.monotonic() + ENDING_S
    for worker in workers:
        worker.close(at=at)


class PooledEnvironment:
    """One place of a pool as an environment. Places may be asked together: they work at the same time."""

    def __init__(self, mailbox: "_Mailbox", place: int) -> None:
        self._mailbox, self._place = mailbox, place

    def reset(self, task: str) -> Observation:
        return cast(Observation, self.submit(Call("reset", task))())

    def step(self, action: str) -> Observation:
        return cast(Observation, self.submit(Call("step", action))())

    def valid_actions(self) -> list[str] | None:
        return cast("list[str] | None", self.submit(Call("valid_actions"))())

    def submit(self, call: Call) -> Callable[[], Returned]:
        """Ask now, and wait for the answer where it is wanted."""
        self._mailbox.submit(self._place, call)
        return partial(self._mailbox.wait_for, self._place)


class _Mailbox:
    """The answers of a pool, until those who asked come for them."""

    def __init__(self, pool: EnvironmentPool, *, heed: Callable[[], None]) -> None:
        self._pool, self._heed = pool, heed
        self._answers: dict[int, Answer] = {}

    def submit(self, place: int, call: Call) -> None:
        self._pool.submit(place, call.method, call.argument)

    def wait_for(self, place: int) -> Returned:
        while place not in self._answers:
            came = self._pool.collect(timeout_s=LOOK_S)
            self._answers |= {one.place: one for one in came}
            if not came:
                self._heed()
        answer = self._answers.pop(place)
        if answer.failure is not None:
            raise answer.failure
        return answer.value
