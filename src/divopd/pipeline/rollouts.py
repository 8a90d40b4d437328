"""Training rollouts as the config wants them: which task comes next, where it begins and ends, who may help."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import cast

from divopd.config import Config
from divopd.curricula import Depths, Outcome
from divopd.environments import Environment, Expert, expert_actions, make_environment, make_expert, tasks
from divopd.errors import EnvironmentFailure, InputError
from divopd.explorer import Acting, Played, Start, play_each
from divopd.methods import find_method
from divopd.models.policy import Policy
from divopd.pipeline.asked_teachers import AskedTeachers
from divopd.prompts import Codec, Reader
from divopd.recovery import Recovery
from divopd.teacher import Teachers

FAILURES = 4  # rollouts in a row that break off, at least, before a run is stopped


class TrainingRollouts:
    """Plays training rollouts. Rollout number n always has the same task and the same random numbers.

    A curriculum may limit their depth; it wants to `hear` of what has arrived.
    """

    def __init__(self, config: Config, codec: Codec, *, teacher_reader: Callable[[str], Reader] | None = None) -> None:
        self.config = config
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
        self._failures = 0  # in a row
        self._expert_actions: dict[str, tuple[str, ...]] = {}  # by task

    @cached_property
    def _environments(self) -> list[Environment]:
        name, settings = self.config.environment.name, self.config.environment.settings
        return [make_environment(name, **settings) for _ in range(self.config.explorer.rollouts_in_flight)]

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
                if failures == FAILURES:
                    raise

    @cached_property
    def _expert(self) -> tuple[Environment, Expert] | None:
        """An environment of its own for the expert, which plays each task once; None: there is no expert."""
        name, settings = self.config.environment.name, self.config.environment.settings
        environment = make_environment(name, **settings)
        try:
            return environment, make_expert(name, environment)
        except InputError:
            return None

    def play_each(
        self,
        starts: Iterable[Start],
        *,
        version: int,
        student: Policy,
        teachers: Teachers | AskedTeachers | None,
        heartbeat: Callable[[], None] = lambda: None,
    ) -> Iterator[Played]:
        """Play with the student of this version; see explorer.play_each.

        An EnvironmentFailure means that as many rollouts in a row broke off as are in flight.
        """
        recovery = Recovery(**self.config.recovery.model_dump())
        helped = self.method.recovers and recovery.begun(version)
        rollouts = play_each(
            starts,
            replace(self._acting, recovery=recovery if helped else None),
            student=student,
            teacher_of=cast(Callable[[str], Policy], teachers.of) if teachers else None,  # nobody scores here
            environments=self._environments,
            heartbeat=heartbeat,
        )
        for played in rollouts:
            yield played
            self._count_failures(played)

    def _count_failures(self, played: Played) -> None:
        """The odd failure costs its rollout; when nothing else happens any more, the environment does not work."""
        self._failures = self._failures + 1 if played.failure else 0
        if self._failures >= max(FAILURES, self.config.explorer.rollouts_in_flight):
            name = self.config.environment.name
            raise EnvironmentFailure(
                f"the last {self._failures} rollouts broke off, the last one of task {played.start.task}: "
                f"{played.failure}; see that `divopd play {name}` works, then go on with --resume"
            )


def in_order_of(seed: int, training: Sequence[str]) -> list[str]:
    """Training tasks in the order in which runs of this seed repeat them, whatever the method (specification §6.1)."""
    return random.Random(seed).sample(training, len(training))


def has_room(backlog: int, bound: int | None) -> bool:
    """Admission control: a rollout may begin while fewer turns wait than the bound allows; without one, always."""
    return bound is None or backlog < bound


def is_synced(config: Config, version: int) -> bool:
    """Whether explorers get this policy version."""
    return version % config.explorer.sync_interval == 0
