"""Training rollouts as the config wants them: which task comes next, where it begins and ends, who may help."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import cast

from divopd.config import Config
from divopd.curricula import Depths, Outcome
from divopd.environments import Environment, Expert, expert_actions, find_entry, make_expert, tasks
from divopd.environments.pool import EnvironmentPool, Workers, environments_in, open_pool
from divopd.errors import EnvironmentFailure, InputError
from divopd.explorer import Acting, Played, Start, play_each
from divopd.methods import find_method
from divopd.models.policy import Policy
from divopd.pipeline.broken import BrokenRollouts, Events, retelling
from divopd.program_rollout import programs_of
from divopd.prompts import Codec, Reader
from divopd.recovery import Recovery
from divopd.store import Calls
from divopd.teacher import Teachers

ATTEMPTS = 4  # of an expert at a task in which its environment breaks off


class TrainingRollouts:
    """Plays training rollouts. Rollout number n always has the same task and the same random numbers.

    A curriculum may limit their depth; it wants to `hear` of what has arrived.
    """

    def __init__(
        self,
        config: Config,
        codec: Codec,
        *,
        teacher_reader: Callable[[str], Reader] | None = None,
        calls: Calls | None = None,
    ) -> None:
        """`calls` keeps what agent programs ask and are answered."""
        self.config = config
        self._programs = programs_of(config, codec, calls=calls)
        self.method = find_method(config.method)
        self.curriculum = self.method.curriculum(
            Depths(
                horizon=config.environment.horizon,
                **config.curriculum.model_dump(),
            )
        )
        self._acting = Acting(
            style=config.prompts,
            codec=codec,
            temperature=config.explorer.temperature,
            max_response_tokens=config.explorer.max_response_tokens,
            seed=config.seed,
            teacher_reader=teacher_reader,
        )
        self._heard = 0  # number of the last arrival that the curriculum was told of
        self._broken = BrokenRollouts(config)
        self._expert_actions: dict[str, tuple[str, ...]] = {}  # by task

    @cached_property
    def pool(self) -> EnvironmentPool:
        """An environment for each rollout in flight."""
        return self._open_pool(self.config.explorer.rollouts_in_flight, workers=self.config.environment.workers)

    def _open_pool(self, size: int, *, workers: Workers) -> EnvironmentPool:
        part = self.config.environment
        return open_pool(part.name, part.settings, size=size, workers=workers, timeout_s=part.timeout_s)

    def close(self) -> None:
        """End the processes that hold the environments, if there are any."""
        for name in ("pool", "_experts_pool"):
            if name in self.__dict__:
                self.__dict__.pop(name).close()

    @cached_property
    def _tasks(self) -> list[str]:
        environment = self.config.environment
        return in_order_of(self.config.seed, tasks(environment.name, environment.train_split, **environment.settings))

    def hear(self, arrivals: Callable[[int], Iterable[Outcome]]) -> None:
        """Tell the curriculum of what has arrived since the last time, if it learns; `arrivals` takes a number."""
        for outcome in arrivals(self._heard) if self.curriculum.learns else ():
            self.curriculum.observe(outcome)
            self._heard = outcome.number

    def start(self, number: int, *, version: int) -> Start:
        """Rollout number `number`: training tasks cycle in the seed's order; a curriculum may limit the depth.

        It may also have the rollout begin with actions of the expert.
        """
        depth = self.curriculum.depth(number, version=version)
        task = self._tasks[number % len(self._tasks)]
        return Start(number, task, depth, self._replayed(number, task) if self.curriculum.replays else ())

    def _replayed(self, number: int, task: str) -> tuple[str, ...]:
        if task not in self._expert_actions:
            self._expert_actions[task] = self._ask_expert(task)
        actions = self._expert_actions[task]
        return actions[: self.curriculum.replayed(number, expert_actions=len(actions))]

    def _ask_expert(self, task: str) -> tuple[str, ...]:
        """What the expert does in a task; nothing where the environment has no expert."""
        if self._expert is None:
            return ()
        failures = 0
        while True:
            try:
                return expert_actions(*self._expert, task, horizon=self.config.environment.horizon)
            except EnvironmentFailure:  # the next reset starts the environment anew
                failures += 1
                if failures == ATTEMPTS:
                    raise

    @cached_property
    def _expert(self) -> tuple[Environment, Expert] | None:
        """An environment of its own for the expert, which plays each task once; None: there is no expert."""
        [environment] = environments_in(self._experts_pool)
        try:
            return environment, make_expert(self.config.environment.name, environment)
        except InputError:
            return None

    @cached_property
    def _experts_pool(self) -> EnvironmentPool:
        part = self.config.environment
        foreign = find_entry(part.name).in_workers  # experts of native environments look inside them
        return self._open_pool(1, workers=part.workers if foreign else 0)

    def acting(self, version: int) -> Acting:
        """How rollouts are played that begin with this policy version."""
        recovery = Recovery(**self.config.recovery.model_dump())
        helped = self.method.recovers and recovery.begun(version)
        program = None if self._programs is None else replace(self._programs, version=version)
        return replace(self._acting, recovery=recovery if helped else None, program=program)

    def play_each(
        self,
        starts: Iterable[Start],
        *,
        version: int,
        student: Policy,
        teachers: Teachers | None,
        heartbeat: Callable[[], None] = lambda: None,
        broken: Events | None = None,
    ) -> Iterator[Played]:
        """Play with the student of this version; see explorer.play_each.

        Rollouts that are among the `broken`, events by number, are only told again. An EnvironmentFailure means that
        too many others broke off (broken.py).
        """
        environments, retold = environments_in(self.pool, heed=heartbeat), frozenset[int]()
        if broken:
            starts = list(starts)
            environments, retold = retelling(environments, starts, broken), frozenset(broken)
        rollouts = play_each(
            starts,
            self.acting(version),
            student=student,
            teacher_of=cast(Callable[[str], Policy], teachers.of) if teachers else None,  # nobody scores here
            environments=environments,
            heartbeat=heartbeat,
        )
        for played in rollouts:
            yield played
            if played.start.number not in retold:
                self.count_failures(played)

    def count_failures(self, played: Played) -> None:
        """A rollout has ended; an EnvironmentFailure means that too many broke off."""
        self._broken.count(played)


def in_order_of(seed: int, training: Sequence[str]) -> list[str]:
    """Training tasks in the order in which runs of this seed repeat them, whatever the method (specification §6.1)."""
    return random.Random(seed).sample(training, len(training))


def has_room(backlog: int, bound: int | None) -> bool:
    """Admission control: a rollout may begin while fewer turns wait than the bound allows; without one, always."""
    return bound is None or backlog < bound


def is_synced(config: Config, version: int) -> bool:
    """Whether explorers get this policy version."""
    return version % config.explorer.sync_interval == 0
