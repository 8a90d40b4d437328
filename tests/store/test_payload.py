"""The bytes of a turn: everything comes back, and damaged bytes are refused before anything is allocated."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from divopd.errors import NotAStoreError
from divopd.store.payload import decode_turn, encode_turn
from divopd.turns import Turn

ids = st.lists(st.integers(0, 2**31 - 1), max_size=5)
numbers = st.none() | st.lists(st.floats(), max_size=5)
masks = st.none() | st.lists(st.integers(0, 1), max_size=5)
any_turn = st.builds(
    Turn,
    rollout=st.just("e.1"),
    turn=st.integers(0, 2**53 - 1),
    task=st.text(max_size=20),
    version=st.integers(0, 2**53 - 1),
    prompt_ids=ids,
    prompt_truncated=st.booleans(),
    response_ids=ids,
    student_logprobs=numbers,
    teacher_logprobs=numbers,
    action_mask=masks,
    teacher_mask=masks,
    reward=st.none() | st.floats(),
    success=st.none() | st.booleans(),
    rollout_turns=st.none() | st.integers(0, 2**53 - 1),
    rollout_valid_tokens=st.none() | st.integers(0, 2**53 - 1),
)


def identity_of(turn: Turn) -> dict[str, Any]:
    return {name: getattr(turn, name) for name in ("rollout", "turn", "task", "version", "available_at")}


@given(any_turn)
@example(Turn("e.1", 0, "t", 0, prompt_ids=[], response_ids=[], reward=0.0, success=False, rollout_turns=0))
def test_a_turn_comes_back_exactly(turn: Turn) -> None:
    """NaN, infinities, missing lists and lists of unequal length survive the encoding."""
    assert repr(decode_turn(encode_turn(turn), **identity_of(turn))) == repr(turn)


def test_arrays_come_back_as_lists() -> None:
    """numpy arrays may be put; every value is kept."""
    numpy = pytest.importorskip("numpy")
    lists = Turn("e.1", 0, "t", 0, prompt_ids=[1, 2], response_ids=[3], student_logprobs=[-0.5], action_mask=[1])
    arrays = replace(
        lists,
        prompt_ids=numpy.array([1, 2]),
        student_logprobs=numpy.array([-0.5], dtype=numpy.float32),
        action_mask=numpy.array([True]),
    )
    assert decode_turn(encode_turn(arrays), **identity_of(lists)) == lists


@given(any_turn, st.data())
def test_a_damaged_payload_is_refused_or_decoded_within_its_size(turn: Turn, data: st.DataObject) -> None:
    """Whatever lengths a payload claims, nothing is allocated that its bytes do not back."""
    payload = bytearray(encode_turn(turn))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(payload[: data.draw(st.integers(0, len(payload)))])
    try:
        decoded = decode_turn(cut, **identity_of(turn))
    except NotAStoreError:
        return
    assert len(decoded.prompt_ids) * 4 <= len(cut)
