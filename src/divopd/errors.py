"""Every error that a user can cause or meet, in one tree.

DivopdError                     the base: one line, says what was got, what was expected and what to do
├── InputError                  a file, field, option or name that the user gave is wrong (exit code 2)
│   ├── TurnFormatError         a line of a recording is not a turn
│   ├── RunBusyError            another command works on the run
│   ├── UnknownNameError        no method, preset, environment … of that name
│   ├── StateError              the saved state of a pool is of other settings, or none
│   ├── MissingExtraError       an optional part of divopd is not installed
│   └── UnsupportedVersionError  a framework has another version than the one its adapter fits
├── StoreError                  the store cannot do what was asked
│   ├── NotAStoreError          the file is no store, is damaged, or has another format
│   ├── ConflictError           the same id was put before with another content
│   ├── FencedError             another learner has taken over this store
│   └── LedgerError             the journal does not add up
├── NotReady                    a pool has fewer rows than a batch takes
├── CheckpointError             a checkpoint is missing, incomplete or damaged
├── TransferError               weights did not get into an engine; they go another way
├── TeacherAwayError            the teacher cannot be reached now; its rollouts wait
├── AlignmentError              two models do not agree on tokens, lengths or vocabulary
│   └── WrongAnswerError        a teacher's server answered something else than it was asked; it costs a rollout
└── EnvironmentFailure          an environment died or hung; it costs a rollout, and the run if too many break off
    ├── EnvironmentMistake      a user's class raised an error or returned what is no observation (also an InputError)
    └── ProgramFailure          an agent program died or took too long

NothingToTrainWarning           no error: a batch in which no turn passed the gate
"""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


class DivopdError(Exception):
    """Base of all errors that are shown to a user as one line."""


class InputError(DivopdError):
    """What the user gave is wrong; nothing was changed."""


class TurnFormatError(InputError):
    """A line of a recording is not a turn."""


class RunBusyError(InputError):
    """Another command works on the run; it is named, and nothing was changed."""


class UnknownNameError(InputError):
    """No thing of that kind has that name; the nearest names are suggested."""

    def __init__(self, kind: str, got: str, known: Iterable[str]) -> None:
        names = list(known)
        near = get_close_matches(got, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
        super().__init__(f"unknown {kind} {got!r}; {hint}")


class StateError(InputError):
    """The saved state of a pool is of other settings, or no state at all; nothing was changed."""


def how_to_install(extra: str) -> str:
    """The command that brings an extra. divopd is on no registry: it is installed from a clone."""
    return f"pip install -e '.[{extra}]' in the clone of divopd"


class MissingExtraError(InputError):
    """An optional part is not installed; the message names the extra that brings it."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} is not installed; run {how_to_install(extra)}")


class UnsupportedVersionError(InputError):
    """A framework has a version that its adapter does not fit; the message names one that it does."""


class StoreError(DivopdError):
    """The store cannot do what was asked; what was acknowledged before is still there."""


class NotAStoreError(StoreError, InputError):
    """The file is no store, is damaged, or has another format."""


class ConflictError(StoreError):
    """The same rollout or update was written before with another content."""


class FencedError(StoreError):
    """Another learner has taken over this store; this one must stop."""


class LedgerError(StoreError):
    """The journal does not add up: a batch differs from its own recomputation."""


class NotReady(DivopdError):
    """A pool has fewer rows than a batch takes; nothing was changed.

    `rows` are there. `full`: the pool has no room for more, so that waiting does not help.
    """

    def __init__(self, message: str, *, rows: int = 0, full: bool = False) -> None:
        super().__init__(message)
        self.rows, self.full = rows, full


class CheckpointError(DivopdError):
    """A checkpoint is missing, incomplete or damaged."""


class TransferError(DivopdError):
    """Weights did not get into an engine, or only half of them."""


class TeacherAwayError(DivopdError):
    """The teacher cannot be reached now. Rollouts wait for it; they are lost only when they are stale.

    `who` names it: the host and port of a server.
    """

    def __init__(self, message: str, *, who: str = "the teacher") -> None:
        super().__init__(message)
        self.who = who


class AlignmentError(DivopdError):
    """Two models do not agree on tokens, lengths or vocabulary."""


class WrongAnswerError(AlignmentError):
    """A teacher's server gave a complete answer that is not what it was asked for.

    It costs the rollout that it was asked about; the run goes on unless too many answers are wrong.
    """


class EnvironmentFailure(DivopdError):
    """An environment died or hung. It costs one rollout; the run goes on unless too many of them break off."""


class EnvironmentMistake(EnvironmentFailure, InputError):
    """A user's class raised an error of its own, or returned what it must not; the message names class and method."""


class ProgramFailure(EnvironmentFailure):
    """An agent program died, took too long or wrote no readable outcome. `told` has its output, among other things."""

    def __init__(self, message: str, *, told: dict[str, Any]) -> None:
        super().__init__(message)
        self.told = told


class NothingToTrainWarning(UserWarning):
    """A batch has no valid turn although turns came: the update would change nothing."""
