"""Recovery (the paper's +R): the teacher acts for a few turns when the student is stuck (specification §6.3)."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal

from divopd.environments.environment import Call, Observation
from divopd.errors import InputError


@dataclass(frozen=True)
class Recovery:
    """After `patience` turns in a row without progress the teacher acts; `takeover` turns are its budget in a rollout.

    `until` says when it gives control back: when its budget is used up, or at the first progress. Not before `warmup`
    learner updates.
    """

    patience: int = 4
    takeover: int = 6
    warmup: int = 0
    until: Literal["budget", "progress"] = "budget"

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

    def record(self, actor: Literal["student", "teacher"], *, progress: bool) -> None:
        """A turn is over. The teacher keeps control as long as `until` says, and never beyond its budget."""
        self._used += actor == "teacher"
        self._stuck = 0 if progress else self._stuck + 1
        if progress and self._recovery.until == "progress":
            self.teacher_acts = False
        elif self._stuck >= self._recovery.patience:
            self.teacher_acts = True
        self.teacher_acts = self.teacher_acts and self._used < self._recovery.takeover


class ProgressWatch:
    """Tells whether the actions of one rollout make progress.

    What is allowed matters only where an action is repeated, and an environment may take long to tell it, so it is
    asked only then: the methods are generators that yield the call and are sent its answer.
    """

    def __init__(self) -> None:
        self._last_action: str | None = None
        self._here: object = None  # what is allowed now, if it is known

    def expect(self, action: str, seen: Observation) -> Generator[Call, Any, None]:
        """The action is about to be taken where this was seen last."""
        if action == self._last_action and self._here is None:
            self._here = yield from self._situation(seen)

    def made(self, action: str | None, seen: Observation) -> Generator[Call, Any, bool]:
        """Whether the action, after which this was seen, made progress; None is an answer without an action.

        An invalid action makes none, nor does one that repeats the action before and leaves the set of allowed actions
        as it was.
        """
        repeated, self._last_action = action == self._last_action, action
        before, self._here = self._here, None
        if action is None or not seen.valid:
            return False
        if not repeated or seen.done:
            return True
        self._here = yield from self._situation(seen)
        return self._here != before

    def _situation(self, seen: Observation) -> Generator[Call, Any, object]:
        """The set of allowed actions, whether or not prompts list it; where nobody tells it, the text that was seen."""
        allowed = seen.allowed_actions
        if allowed is None:
            allowed = yield Call("valid_actions")
        return seen.text if allowed is None else frozenset(allowed)
