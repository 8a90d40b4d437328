"""Rows for the pool: what a composer must know of a turn, measured from lists, arrays or tensors of any framework."""

from dataclasses import dataclass, field, replace
from math import isfinite, nan
from operator import index
from typing import Any

from divopd.composers.composer import Candidate, candidate_of
from divopd.errors import InputError
from divopd.turns import Turn
from divopd.validity import REASONS, Reason


@dataclass(frozen=True)
class Measured:
    """All that a composer looks at in a turn: a few numbers, and why it cannot be trained if it cannot.

    `source` has the lists that were measured, for a recorder; a pool lets go of them when the row is put.
    """

    reason: Reason | None  # why the turn is invalid
    disagreement: float  # 0.0 for an invalid turn
    tokens: int  # prompt and response
    valid_tokens: int  # 0 for an invalid turn
    rollout_turns: int | None = None  # the last two are of the whole rollout: turnopd weighs rows by them
    rollout_valid_tokens: int | None = None
    source: Turn | None = field(default=None, compare=False, repr=False)

    @property
    def numbers(self) -> tuple[Any, ...]:
        """JSON types, to travel beside a row; Measured(*numbers) is the same again without its source."""
        whole = self.rollout_turns, self.rollout_valid_tokens
        return (self.reason, self.disagreement, self.tokens, self.valid_tokens, *whole)


@dataclass(frozen=True)
class Row:
    """One turn for the pool. `payload` is opaque: a tensor, an index, an object; it comes back as it was put."""

    rollout: str
    turn: int
    task: str
    version: int
    measured: Measured
    payload: Any = field(default=None, compare=False, repr=False)
    success: bool | None = field(default=None, compare=False)  # of its rollout, for recordings; no composer looks at it

    @classmethod
    def of(cls, turn: Turn) -> "Row":
        """A row whose payload is the whole turn."""
        return cls(turn.rollout, turn.turn, turn.task, turn.version, measured_of(turn), turn, turn.success)

    @property
    def key(self) -> tuple[str, int]:
        """What identifies the row."""
        return self.rollout, self.turn

    @property
    def content(self) -> tuple[Any, ...]:
        """What must be the same when the row is put again; the payload may differ."""
        return (self.task, self.version, *self.measured.numbers)

    def light(self) -> "Row":
        """The row without the lists that it was measured from."""
        return self if self.measured.source is None else replace(self, measured=replace(self.measured, source=None))

    def candidate(self, *, first_seen: int) -> Candidate:
        return Candidate(self.rollout, self.turn, self.task, self.version, first_seen, *self.measured.numbers)


def measured_of(turn: Turn) -> Measured:
    """A whole turn, measured."""
    return Measured(*candidate_of(turn, first_seen=0)[5:], source=turn)


def measure(
    student: Any,
    teacher: Any,
    mask: Any,
    teacher_mask: Any = None,
    *,
    prompt_tokens: int,
    prompt_truncated: bool = False,
    response_tokens: int | None = None,
    rollout_turns: int | None = None,
    rollout_valid_tokens: int | None = None,
) -> Measured:
    """Gate a turn and measure its disagreement from the log probabilities and masks of its response tokens.

    Lists, arrays, tensors (on any device, of any type) or None. What is missing, misaligned or not finite makes the
    turn invalid with the reason of specification §2, and never raises. `teacher_mask` None: every score is usable.
    `response_tokens`: the length of the response; without it the longest of the lists is taken for it.
    """
    lists = [_numbers(values) for values in (student, teacher, mask, teacher_mask)]
    known = [len(values) for values in lists if isinstance(values, list)]
    size = max(known, default=0) if response_tokens is None else response_tokens
    # what cannot be read as a list of numbers is told as misaligned: it becomes a list of another length
    scores = [[nan] * (size + 1) if values is _UNREADABLE else values for values in lists]
    masks = [None if values is None else [int(bool(value)) for value in values] for values in scores[2:]]
    return measured_of(
        Turn(
            rollout="",
            turn=0,
            task="",
            version=0,
            prompt_ids=range(max(0, prompt_tokens or 0)),  # only their number is known
            prompt_truncated=bool(prompt_truncated),
            response_ids=range(max(0, size)),
            student_logprobs=scores[0],
            teacher_logprobs=scores[1],
            action_mask=masks[0],
            teacher_mask=masks[1],
            rollout_turns=rollout_turns,
            rollout_valid_tokens=rollout_valid_tokens,
        )
    )


_UNREADABLE: Any = object()


def _numbers(values: Any) -> list[float] | None:
    """Any framework's list of numbers as a plain one; None inside it is not a number, as in JSON."""
    if values is None:
        return None
    try:
        if hasattr(values, "tolist"):  # numpy, torch (also bfloat16, which numpy cannot take), jax
            values = values.tolist()
        elif hasattr(values, "__array__"):
            import numpy as np  # here only: whoever imports divopd need not wait for it

            values = np.asarray(values).tolist()
        return [nan if value is None else float(value) for value in values]
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return _UNREADABLE


def checked(row: Row) -> Row:
    """The row with plain numbers; an InputError names what no row can have."""
    measured = row.measured
    try:
        turn, version = index(row.turn), index(row.version)
        whole = [None if value is None else index(value) for value in measured.numbers[4:]]
        counts = [index(measured.tokens), index(measured.valid_tokens)]
        disagreement = float(measured.disagreement)
    except (TypeError, ValueError, AttributeError):
        raise InputError(f"row {row!r}: expected whole numbers, and what measure() gives as `measured`") from None
    names: list[Any] = [row.rollout, row.task]
    if not all(isinstance(name, str) for name in names):
        raise InputError(f"row {row!r}: expected strings as rollout and task; use str(...)")
    if min(turn, version, *counts) < 0 or not isfinite(disagreement):
        raise InputError(f"row {row!r}: expected counts of 0 or more, and a finite disagreement")
    if measured.reason is not None and measured.reason not in REASONS:
        raise InputError(f"row {row!r}: unknown reason {measured.reason!r}; known: {', '.join(REASONS)}")
    numbers = Measured(measured.reason, disagreement, *counts, *whole, source=measured.source)
    return Row(row.rollout, turn, row.task, version, numbers, row.payload, row.success)
