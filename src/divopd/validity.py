"""The gate: when a turn has usable supervision, why not if it has none, and how much the two models disagree."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import compress
from math import fsum, isfinite
from operator import sub
from typing import Any, Literal, NamedTuple

from divopd.turns import Rollout, Turn

Reason = Literal[
    "prompt_truncated",
    "no_tokens",
    "no_student_logprobs",
    "no_teacher_logprobs",
    "no_action_mask",
    "misaligned",
    "no_valid_token",
    "not_finite",
]
REASONS: tuple[Reason, ...] = Reason.__args__  # pyright: ignore[reportAttributeAccessIssue]

MAX_LOGPROB = 1e-4  # above it a "log probability" is no rounding of 0 but an error


class Assessment(NamedTuple):
    """What the gate says of a turn, and how much the models disagree over its valid tokens (0.0 if it has none)."""

    reason: Reason | None
    disagreement: float
    valid_tokens: int


def assess(turn: Turn) -> Assessment:
    """`why_invalid`, `disagreement` and `valid_tokens` with one look at the lists."""
    reason, mask, student, teacher = _gate(turn)
    return Assessment(reason, 0.0, 0) if reason else Assessment(None, fsum(map(sub, student, teacher)), sum(mask))


def why_invalid(turn: Turn) -> Reason | None:
    """The first reason, in the order of specification §2, why the loss cannot use this turn; None if it can."""
    return _gate(turn)[0]


_Numbers = Sequence[float]


def _gate(turn: Turn) -> tuple[Reason | None, Sequence[int], _Numbers, _Numbers]:
    """The reason; of a valid turn also its mask, and the log probabilities of its valid tokens, as plain numbers."""
    reason = _missing(turn)
    if reason is not None:
        return reason, (), (), ()
    mask = valid_mask(turn)
    if not any(mask):
        return "no_valid_token", (), (), ()
    student, teacher = _plain(turn.student_logprobs), _plain(turn.teacher_logprobs)
    if not all(mask):
        student, teacher = list(compress(student, mask)), list(compress(teacher, mask))
    used = [*student, *teacher]
    if not isfinite(sum_or_nan(used)) or max(used) > MAX_LOGPROB:
        return "not_finite", (), (), ()
    return None, mask, student, teacher


def _missing(turn: Turn) -> Reason | None:
    """The reasons for which no log probability has to be looked at."""
    if turn.prompt_truncated:
        return "prompt_truncated"
    size = len(turn.response_ids)
    if not size or not len(turn.prompt_ids):
        return "no_tokens"
    student, teacher, action = turn.student_logprobs, turn.teacher_logprobs, turn.action_mask
    if student is None or not len(student):
        return "no_student_logprobs"
    if teacher is None or not len(teacher):
        return "no_teacher_logprobs"
    if action is None or not any(_plain(action)):
        return "no_action_mask"
    lists = [student, teacher, action] if turn.teacher_mask is None else [student, teacher, action, turn.teacher_mask]
    return "misaligned" if any(len(values) != size for values in lists) else None


def _plain(values: Any) -> list[Any]:
    """Python's numbers, which are faster one by one than an array's, and never overflow."""
    return values.tolist() if hasattr(values, "tolist") else values  # a list otherwise


def valid_mask(turn: Turn) -> Sequence[int]:
    """1 where a token counts in the loss (V of specification §2): chosen by the student, scored by the teacher.

    Only for turns whose lists are aligned.
    """
    action = () if turn.action_mask is None else _plain(turn.action_mask)
    if turn.teacher_mask is None:
        return action
    return [int(a and t) for a, t in zip(action, _plain(turn.teacher_mask), strict=True)]


def valid_tokens(turn: Turn) -> int:
    """How many tokens of a turn count in the loss: |V|, and 0 for an invalid turn."""
    return assess(turn).valid_tokens


def with_valid_tokens(rollout: Rollout) -> Rollout:
    """A scored rollout whose turns all say how many valid tokens it has."""
    total = sum(map(valid_tokens, rollout.turns))
    return replace(rollout, turns=tuple(replace(turn, rollout_valid_tokens=total) for turn in rollout.turns))


def disagreement(turn: Turn) -> float:
    """Summed student-minus-teacher log probability over the valid tokens (specification §3), from the cached values.

    The sum, not the mean: long turns rank higher on purpose (eq. 2, learning-need). At the version that generated the
    turn it is |V|/β times the loss of its row (eq. 5, score-loss-equivalence). Only for valid turns.
    """
    mask = valid_mask(turn)
    assert turn.student_logprobs is not None
    assert turn.teacher_logprobs is not None
    student, teacher = _plain(turn.student_logprobs), _plain(turn.teacher_logprobs)
    return fsum(map(sub, compress(student, mask), compress(teacher, mask)))


def sum_or_nan(values: Sequence[float]) -> float:
    """Finite if all values are; a list may hold an integer that no float holds, which is simply not finite here."""
    try:
        return float(sum(values))
    except OverflowError:
        return float("nan")
