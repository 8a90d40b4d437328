"""The gate of specification §2 and the disagreement of §3."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divopd.validity import REASONS, assess, disagreement, why_invalid
from strategies import turn

# each change alone makes a valid turn invalid for that reason
CAUSES: dict[str, dict[str, Any]] = {
    "prompt_truncated": {"prompt_truncated": True},
    "no_tokens": {"prompt_ids": []},
    "no_student_logprobs": {"student_logprobs": None},
    "no_teacher_logprobs": {"teacher_logprobs": None},
    "no_action_mask": {"action_mask": [0, 0, 0]},
    "misaligned": {"teacher_mask": [1, 1]},
    "no_valid_token": {"action_mask": [1, 0, 0], "teacher_mask": [0, 1, 1]},
    "not_finite": {"teacher_logprobs": [-math.inf, -1.0, -1.0]},
}


def test_a_whole_turn_is_valid() -> None:
    assert why_invalid(turn()) is None
    assert why_invalid(turn(teacher_mask=[0, 0, 1])) is None


@pytest.mark.parametrize("reason", REASONS)
def test_each_reason(reason: str) -> None:
    assert why_invalid(turn(**CAUSES[reason])) == reason


@pytest.mark.parametrize(("first", "second"), list(pairwise(REASONS)))
def test_the_first_reason_in_order_counts(first: str, second: str) -> None:
    """A turn that is invalid for two reasons carries the one that the specification names first."""
    changes: dict[str, Any]
    if (first, second) == ("misaligned", "no_valid_token"):
        changes = {"action_mask": [1, 0, 0], "teacher_mask": [0, 1]}
    elif (first, second) == ("no_action_mask", "misaligned"):
        changes = {"action_mask": [0, 0]}
    elif (first, second) == ("no_valid_token", "not_finite"):
        changes = {**CAUSES[first], **CAUSES[second]}
    else:
        changes = {**CAUSES[second], **CAUSES[first]}
    assert why_invalid(turn(**changes)) == first


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"response_ids": []}, "no_tokens"),
        ({"action_mask": None}, "no_action_mask"),
        ({"student_logprobs": [-0.1, -0.1]}, "misaligned"),
        ({"teacher_logprobs": [-0.1] * 4}, "misaligned"),
        ({"action_mask": [1, 1]}, "misaligned"),
        ({"student_logprobs": [math.nan, -1.0, -1.0]}, "not_finite"),
        ({"student_logprobs": [math.inf, -math.inf, -1.0]}, "not_finite"),
        ({"student_logprobs": [0.001, -1.0, -1.0]}, "not_finite"),
        ({"student_logprobs": [0.0001, -1.0, -1.0]}, None),
        ({"teacher_logprobs": [-math.inf, -1.0, -1.0], "teacher_mask": [0, 1, 1]}, None),
    ],
)
def test_edges_of_the_gate(changes: dict, reason: str | None) -> None:
    """Only what lies inside the valid tokens counts; rounding above 0 is forgiven."""
    assert why_invalid(turn(**changes)) == reason


def test_masks_as_small_numbers_do_not_overflow() -> None:
    """300 valid tokens are 300, also where the mask is an array of bytes; a put of it is a put of the lists."""
    size = 300
    lists = turn(
        response_ids=[1] * size, student_logprobs=[-0.5] * size, teacher_logprobs=[-1.0] * size, action_mask=[1] * size
    )
    arrays = replace(
        lists,
        student_logprobs=np.full(size, -0.5),
        teacher_logprobs=np.full(size, -1.0),
        action_mask=np.ones(size, dtype=np.uint8),
    )
    assert assess(arrays) == assess(lists) == (None, 150.0, size)
    assert type(assess(arrays).valid_tokens) is int


@given(st.lists(st.tuples(st.floats(-50, 0), st.floats(-50, 0), st.integers(0, 1), st.integers(0, 1)), min_size=1))
def test_disagreement_is_the_sum_over_valid_tokens(tokens: list[tuple[float, float, int, int]]) -> None:
    student, teacher, action, scored = zip(*tokens, strict=True)
    one = turn(
        response_ids=[1] * len(tokens),
        student_logprobs=student,
        teacher_logprobs=teacher,
        action_mask=action,
        teacher_mask=scored,
    )
    expected = math.fsum(s - t for s, t, a, m in tokens if a and m)
    assert disagreement(one) == pytest.approx(expected, abs=1e-12)
    assert assess(one).disagreement == pytest.approx(expected, abs=1e-12)
    assert (why_invalid(one) is None) == any(a and m for *_, a, m in tokens)


def test_arrays_of_another_framework_serve_as_lists() -> None:
    """Numpy arrays in a turn are gated and measured like lists."""
    plain = turn(teacher_mask=[1, 0, 1])
    names = ("prompt_ids", "response_ids", "student_logprobs", "teacher_logprobs", "action_mask", "teacher_mask")
    arrays = replace(plain, **{name: np.asarray(getattr(plain, name)) for name in names})
    assert why_invalid(arrays) is None
    assert disagreement(arrays) == disagreement(plain)
