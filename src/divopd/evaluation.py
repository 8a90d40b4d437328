"""How often a policy succeeds: student only, temperature 0.4, the same tasks and draws every time (SPEC §8)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from divopd.environments import Environment, find_entry, make_environment
from divopd.explorer import Acting, Played, Start, play
from divopd.models.policy import Policy
from divopd.prompts import Codec, PromptStyle


@dataclass(frozen=True)
class Evaluation:
    """Rollouts in the order of the tasks. `percent` is the success rate (SR)."""

    rollouts: tuple[Played, ...]

    @property
    def percent(self) -> float:
        return 100.0 * sum(rollout.success for rollout in self.rollouts) / max(1, len(self.rollouts))


@dataclass(frozen=True)
class Setting:
    """What is the same for every rollout of an evaluation; without a `horizon` it is the environment's own.

    Its environments are made at the first evaluation and kept for the next: a JVM is slow until it is warm.
    """

    environment: str
    style: PromptStyle
    codec: Codec
    settings: dict[str, Any] = field(default_factory=dict)  # of the environment
    horizon: int | None = None
    temperature: float = 0.4
    max_response_tokens: int = 32
    in_flight: int = 64
    seed: int = 0
    _made: list[Environment] = field(default_factory=list, init=False, repr=False, compare=False)

    def environments(self, tasks: int) -> list[Environment]:
        """As many as play at once when there are so many tasks."""
        wanted = min(self.in_flight, find_entry(self.environment).side_by_side, tasks)
        while len(self._made) < wanted:
            self._made.append(make_environment(self.environment, **self.settings))
        return self._made[:wanted]


def success_rate(policy: Policy, tasks: Sequence[str], setting: Setting) -> Evaluation:
    """Play every task once with the policy."""
    return _evaluate(tasks, setting, student=policy, teacher=None, takeover_at=None)


def takeover_success_rate(
    student: Policy, tasks: Sequence[str], setting: Setting, *, teacher: Policy, after_turns: int
) -> Evaluation:
    """Play every task once; the teacher takes over from the student for good after so many turns.

    It tells whether a teacher knows its way from the states a student gets into: one that does not cannot teach.
    """
    return _evaluate(tasks, setting, student=student, teacher=teacher, takeover_at=after_turns)


def _evaluate(
    tasks: Sequence[str], setting: Setting, *, student: Policy, teacher: Policy | None, takeover_at: int | None
) -> Evaluation:
    acting = Acting(
        style=setting.style,
        codec=setting.codec,
        temperature=setting.temperature,
        max_response_tokens=setting.max_response_tokens,
        seed=setting.seed,
        takeover_at=takeover_at,
    )
    depth = setting.horizon or find_entry(setting.environment).horizon
    starts = [Start(number, task, depth) for number, task in enumerate(tasks)]
    teacher_of = None if teacher is None else lambda task: teacher
    environments = setting.environments(len(tasks))
    return Evaluation(tuple(play(starts, acting, student=student, teacher_of=teacher_of, environments=environments)))
