"""What an explorer does on either clock: which task comes next, how deep it may go, who may help."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

from divopd.config import Config
from divopd.curricula import Probe, adapted_depth, growing_depth, is_probe
from divopd.environments import Environment, make_environment, tasks
from divopd.explorer import Acting, Played, Start, play
from divopd.models.policy import Policy
from divopd.prompts import Codec
from divopd.recovery import Recovery
from divopd.turns import Rollout
from divopd.validity import disagreement, why_invalid


class Exploration:
    """Plays training rollouts. Rollout number n always has the same task and the same random numbers."""

    def __init__(self, config: Config, codec: Codec) -> None:
        self.config = config
        self._acting = Acting(
            style=config.prompts,
            codec=codec,
            temperature=config.explorer.temperature,
            max_response_tokens=config.explorer.max_response_tokens,
            seed=config.seed,
        )
        self._environments: list[Environment] = []

    @cached_property
    def _tasks(self) -> list[str]:
        environment = self.config.environment
        return tasks(environment.name, environment.train_split, **environment.settings)

    def start(self, number: int, *, version: int, probes: Sequence[Probe]) -> Start:
        """Rollout number `number`: training tasks cycle in a fixed order; a curriculum may limit the depth."""
        return Start(number, self._tasks[number % len(self._tasks)], self._depth(number, version, probes))

    def _depth(self, number: int, version: int, probes: Sequence[Probe]) -> int:
        config, horizon = self.config, self.config.environment.horizon
        if config.method == "tcod-f2b":
            step = 1 + number // config.explorer.rollouts_in_flight
            return growing_depth(step, growth=config.curriculum.growth, horizon=horizon)
        if config.method == "turnopd" and not is_probe(version):
            return adapted_depth(probes, horizon=horizon)
        return horizon

    def play(
        self,
        starts: Sequence[Start],
        *,
        version: int,
        student: Policy,
        teacher: Policy | None,
        finished: Callable[[Played], None] = lambda played: None,
        heartbeat: Callable[[], None] = lambda: None,
    ) -> list[Played]:
        """Play the starts together with the student of this version; see explorer.play."""
        config = self.config
        recovery = Recovery(**config.recovery.model_dump())
        helped = config.method == "divopd-r" and recovery.begun(version)
        acting = replace(self._acting, recovery=recovery if helped else None)
        wanted = min(len(starts), config.explorer.rollouts_in_flight)
        while len(self._environments) < wanted:
            self._environments.append(make_environment(config.environment.name, **config.environment.settings))
        return play(
            starts,
            acting,
            student=student,
            teacher=teacher,
            environments=self._environments[:wanted],
            finished=finished,
            heartbeat=heartbeat,
        )


def probe_of(rollout: Rollout) -> Probe:
    """A scored full-depth rollout as TurnOPD looks at it."""
    values = tuple(disagreement(turn) if why_invalid(turn) is None else 0.0 for turn in rollout.turns)
    return Probe(rollout.version, bool(rollout.turns[0].success), values)
