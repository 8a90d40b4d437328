"""Recovery (the paper's +R): the teacher acts for a few turns when the student is stuck (specification §6.3)."""

from dataclasses import dataclass
from typing import Literal

from divopd.environments.environment import Observation
from divopd.errors import InputError


@dataclass(frozen=True)
class Recovery:
    """After `patience` turns in a row without progress the teacher acts, for at most `takeover` turns in a rollout.

    Not before `warmup` learner updates.
    """

    patience: int = 4
    takeover: int = 6
    warmup: int = 0

    def __post_init__(self) -> None:
        if self.patience < 1 or self.takeover < 0 or self.warmup < 0:
            raise InputError(
                f"recovery is patience {self.patience}, takeover {self.takeover}, warmup {self.warmup}; "
                "expected at least 1, 0 and 0"
            )

    def begun(self, version: int) -> bool:
        """Whether rollouts of this policy version may be helped."""
        return version >= self.warmup


class RecoveryState:
    """Who acts next in one rollout."""

    def __init__(self, recovery: Recovery) -> None:
        self._recovery = recovery
        self._stuck = 0  # turns in a row without progress
        self._used = 0  # turns that the teacher has acted
        self.teacher_acts = False

    def record(
        self,
        actor: Literal["student", "teacher"],
        *,
        action: str | None,
        last_action: str | None,
        before: Observation,
        after: Observation,
    ) -> None:
        """A turn is over. The teacher keeps control until it made progress or its turns are used up."""
        self._used += actor == "teacher"
        progress = made_progress(action, last_action=last_action, before=before, after=after)
        self._stuck = 0 if progress else self._stuck + 1
        if actor == "teacher" and progress:
            self.teacher_acts = False
        elif self._stuck >= self._recovery.patience:
            self.teacher_acts = True
        self.teacher_acts = self.teacher_acts and self._used < self._recovery.takeover


def made_progress(action: str | None, *, last_action: str | None, before: Observation, after: Observation) -> bool:
    """False if the action was invalid, or repeats the last one and did not change what is allowed.

    Where an environment does not list allowed actions, what it says stands for them.
    """
    if action is None or not after.valid:
        return False
    return action != last_action or _situation(after) != _situation(before)


def _situation(seen: Observation) -> object:
    return seen.text if seen.allowed_actions is None else frozenset(seen.allowed_actions)
