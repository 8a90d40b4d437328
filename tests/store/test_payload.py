"""The bytes of a turn: everything comes back, and damaged bytes are refused before anything is allocated."""

import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from divopd.errors import NotAStoreError, TurnFormatError
from divopd.store.numbers import Numbers
from divopd.store.payload import decode_turn, encode_turn
from divopd.turns import Turn

CODES = {"i": st.integers(0, 2**31 - 1), "d": st.floats(allow_nan=False), "B": st.integers(0, 1)}
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
    lists = Turn("e.1", 0, "t", 0, prompt_ids=[1, 2], response_ids=[3], student_logprobs=[-0.5], action_mask=[1])
    arrays = replace(
        lists,
        prompt_ids=np.array([1, 2]),
        student_logprobs=np.array([-0.5], dtype=np.float32),
        action_mask=np.array([True]),
    )
    assert decode_turn(encode_turn(arrays), **identity_of(lists)) == lists


@given(st.one_of(*(st.tuples(st.just(code), st.lists(each, max_size=6)) for code, each in CODES.items())), st.data())
def test_numbers_read_like_the_list_that_was_stored(coded: tuple[str, list], data: st.DataObject) -> None:
    """Length, order, places from both ends, slices, equality and arrays are those of the list; nothing else equals."""
    code, values = coded
    numbers = Numbers(code, struct.pack(f"<{len(values)}{code}", *values))
    assert (len(numbers), list(numbers), numbers.tolist(), repr(numbers)) == (len(values), values, values, repr(values))
    assert numbers == values
    assert values == numbers
    assert numbers == Numbers(code, numbers.raw)
    assert numbers != [*values, 1]
    assert np.asarray(numbers).tolist() == values
    assert np.asarray(numbers, dtype=np.float64).tolist() == [float(value) for value in values]
    first, last = data.draw(st.tuples(st.integers(-7, 7), st.integers(-7, 7)))
    assert numbers[first:last] == values[first:last]
    for place in range(-len(values), len(values)):
        assert numbers[place] == values[place]
    with pytest.raises(IndexError):
        numbers[len(values)]


@pytest.mark.parametrize("kind", ["int64", "int32", "uint16"])
def test_ids_of_any_kind_of_array_are_those_of_the_list(kind: str) -> None:
    """Arrays are written as they lie in memory where that keeps the values, and checked like lists."""
    ids = [0, 3, 65_535]
    lists = Turn("e.1", 0, "t", 0, prompt_ids=ids, response_ids=[3], action_mask=[1])
    assert encode_turn(replace(lists, prompt_ids=np.array(ids, dtype=kind))) == encode_turn(lists)
    assert encode_turn(replace(lists, prompt_ids=np.array([*ids, 9], dtype=kind)[:3])) == encode_turn(lists)


@pytest.mark.parametrize(
    "wrong",
    [
        {"prompt_ids": np.array([-1], dtype=np.int32)},
        {"prompt_ids": np.array([2**31])},
        {"prompt_ids": np.array([[1, 2]])},
        {"prompt_ids": np.array([1.5])},
        {"action_mask": np.array([7], dtype=np.uint8)},
        {"action_mask": np.array([256])},
    ],
)
def test_an_array_that_has_no_place_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(TurnFormatError, match=f"{next(iter(wrong))} is not a list of"):
        encode_turn(replace(Turn("e.1", 0, "t", 0, prompt_ids=[1], response_ids=[3]), **wrong))


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
