"""Records: what is written is read back equal, and what is no record is refused with a ValueError."""

import json
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from divopd.records import (
    EvaluationRecord,
    Observers,
    UpdateRecord,
    decode_evaluation,
    decode_update,
    encode_evaluation,
    encode_update,
)
from doubles.small_records import make_evaluation_record, make_update_record

Path = tuple[str, ...]
BY_NAME = ("seconds", "processor_s", "by_kind", "invalid_by_reason", "answers")  # objects whose keys are free
NEWER = {("drained",), ("pending",), ("invalid_by_reason",), ("answers",)} | {
    ("learner", name) for name in ("clipped_norm", "lr", "memory_bytes", "processor_s")
}
MAY_BE_NULL = {("learner",), ("learner", "logprob_gap"), *NEWER}
MAY_BE_MISSING = NEWER  # records of earlier versions do not have them
DECODERS = {"update": decode_update, "evaluation": decode_evaluation}


def small(kind: str) -> dict[str, Any]:
    return encode_update(make_update_record(3)) if kind == "update" else encode_evaluation(make_evaluation_record(3))


def paths(data: dict[str, Any], above: Path = ()) -> Iterator[Path]:
    """Where every value of nested objects lies."""
    for name, value in data.items():
        yield (*above, name)
        if isinstance(value, dict):
            yield from paths(value, (*above, name))


def inside(data: dict[str, Any], path: Path) -> dict[str, Any]:
    """The object that holds the value at a path."""
    for name in path[:-1]:
        data = data[name]
    return data


PLACES = [(kind, path) for kind in DECODERS for path in paths(small(kind))]


# ── there and back ────────────────────────────────────────────────────────────────────────────────────────────────


@given(record=st.from_type(UpdateRecord))
def test_an_update_is_read_back_as_it_was(record: UpdateRecord) -> None:
    """Through JSON, whatever its numbers are; those that are not finite are figures like any other."""
    read = decode_update(json.loads(json.dumps(encode_update(record))))
    assert repr(read) == repr(record)  # by their repr: NaN is not equal to itself


@given(record=st.from_type(EvaluationRecord))
def test_an_evaluation_is_read_back_as_it_was(record: EvaluationRecord) -> None:
    read = decode_evaluation(json.loads(json.dumps(encode_evaluation(record))))
    assert repr(read) == repr(record)


@given(record=st.from_type(UpdateRecord))
def test_no_figure_covers_another(record: UpdateRecord) -> None:
    """Batch and queue lie beside each other in the object, so no two of their figures may have one name."""
    parts = (record.batch, record.queue)
    others = ("update", "learner", "spent", f"{record.clock}_s", "waited_s", "starved_s")
    assert len(encode_update(record)) == sum(len(vars(part)) for part in parts) + len(others)


def test_whole_seconds_are_numbers() -> None:
    """JSON of another program may say 10 where 10.0 is meant."""
    read = decode_update(small("update") | {"wall_s": 10})
    assert repr(read.elapsed_s) == "10.0"


def test_what_else_an_object_holds_is_left_alone() -> None:
    """metrics.jsonl puts the kind beside the figures."""
    assert decode_update(small("update") | {"kind": "update"}) == make_update_record(3)
    assert decode_evaluation(small("evaluation") | {"kind": "evaluation"}) == make_evaluation_record(3)


def test_records_without_newer_figures_are_read() -> None:
    """Versions before these figures did not write them; everything else of their records is as it was."""
    whole, data = make_update_record(3), small("update")
    for path in NEWER - {("answers",)}:
        del inside(data, path)[path[-1]]
    assert whole.learner is not None
    learner = replace(whole.learner, clipped_norm=None, lr=None, memory_bytes=None, processor_s=None)
    queue = replace(whole.queue, drained=None, pending=None, invalid_by_reason=None)
    assert decode_update(data) == replace(whole, learner=learner, queue=queue)
    evaluation = small("evaluation")
    del evaluation["answers"]
    assert decode_evaluation(evaluation) == replace(make_evaluation_record(3), answers=None)


# ── damage ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("kind", "path"), PLACES, ids=lambda part: part if isinstance(part, str) else ".".join(part))
def test_a_damaged_record_is_refused(kind: str, path: Path) -> None:
    """Every value, at any depth, that is of another type or missing; the sentence names the record's kind."""
    name = path[-1]
    for wrong in ("many", None, True, [1], {"a": "b"}):
        data = deepcopy(small(kind))
        inside(data, path)[name] = wrong
        if wrong is None and path in MAY_BE_NULL:
            DECODERS[kind](data)
            continue
        with pytest.raises(ValueError, match=f"not the record of an {kind}"):
            DECODERS[kind](data)
    if path not in MAY_BE_MISSING and (len(path) < 2 or path[-2] not in BY_NAME):
        data = deepcopy(small(kind))
        del inside(data, path)[name]
        with pytest.raises(ValueError, match=f"not the record of an {kind}"):
            DECODERS[kind](data)


@pytest.mark.parametrize("wrong", [1.5, 3.0, float("inf"), float("nan")])
@pytest.mark.parametrize("path", [("update",), ("rows",), ("turns_put",), ("spent", "trained_tokens")])
def test_a_count_is_a_whole_number(path: Path, wrong: float) -> None:
    """Also infinity is refused with a ValueError, not with the OverflowError of int()."""
    data = deepcopy(small("update"))
    inside(data, path)[path[-1]] = wrong
    with pytest.raises(ValueError, match=f"{path[-1]} is {wrong}, expected a whole number"):
        decode_update(data)


@pytest.mark.parametrize("path", [("wall_s",), ("top1_share",), ("learner", "seconds", "forward")])
def test_a_number_too_large_for_a_float_is_refused(path: Path) -> None:
    data = deepcopy(small("update"))
    inside(data, path)[path[-1]] = 10**400
    with pytest.raises(ValueError, match="not the record of an update"):
        decode_update(data)


@pytest.mark.parametrize("data", [None, [], "update", 7, {}, {"update": {}}])
def test_what_is_no_object_of_figures_is_refused(data: Any) -> None:
    for decode in DECODERS.values():
        with pytest.raises(ValueError, match="not the record"):
            decode(data)


# ── clocks ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_clock_is_told_by_the_name_of_its_seconds() -> None:
    data = small("update")
    seconds = data.pop("wall_s")
    read = decode_update(data | {"virtual_s": seconds})
    assert (read.clock, read.elapsed_s) == ("virtual", seconds)


def test_a_clock_that_is_unknown_is_not_guessed() -> None:
    """No seconds, those of a clock nobody knows, or those of two clocks."""
    data = small("update")
    seconds = data.pop("wall_s")
    for clocks in ({}, {"processor_s": seconds}, {"virtual_s": seconds, "wall_s": seconds}):
        with pytest.raises(ValueError, match="clocks, expected those of one"):
            decode_update(data | clocks)


# ── observers ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Diary:
    """Writes down what it hears, with its own name."""

    def __init__(self, name: str, heard: list[tuple[str, object]]) -> None:
        self.name, self.heard = name, heard

    def updated(self, record: UpdateRecord) -> None:
        self.heard.append((self.name, record))

    def evaluated(self, record: EvaluationRecord) -> None:
        self.heard.append((self.name, record))

    def told(self, sentence: str) -> None:
        self.heard.append((self.name, sentence))


def test_every_observer_hears_everything_in_order() -> None:
    heard: list[tuple[str, object]] = []
    everyone = Observers(Diary("first", heard), Diary("second", heard))
    update, evaluation, sentence = make_update_record(0), make_evaluation_record(0), "the teacher is away"
    everyone.updated(update)
    everyone.evaluated(evaluation)
    everyone.told(sentence)
    assert heard == [(name, said) for said in (update, evaluation, sentence) for name in ("first", "second")]
