"""`make same`: a difference between two runs is found and named; kept records are used only where they hold."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import same
import same_record


def record() -> dict[str, Any]:
    """What two updates did, in small."""
    updates = [
        {
            "update": number,
            "rows": [f"r{number}/0", f"r{number}/1"],
            "weights": [1.0, 1.0],
            "turns": {"response_ids": ["aa", "bb"], "teacher_logprobs": ["cc", "dd"]},
        }
        for number in range(2)
    ]
    return {
        "updates": updates,
        "fates": {"r0": {"trained": 2}, "r1": {"stale": 1, "trained": 2}},
        "evaluations": {"0": {"success_rate": 10.0, "by_kind": {"heat": 10.0}}, "2": {"success_rate": 20.0}},
        "weights": {"head": "F32 [2] ee"},
    }


def test_equal_records_are_the_same() -> None:
    assert same.first_difference(record(), record()) is None


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("updates", 1, "weights", 1), 0.5, "update 1, row 1 (r1/1), weight: 1.0 at BASE, 0.5 here"),
        (("updates", 1, "rows", 0), "r9/0", "update 1, row 0, ROLLOUT/TURN: r1/0 at BASE, r9/0 here"),
        (("updates", 0, "update"), 7, "update 0, rows at BASE, update 7, rows here"),
        (
            ("updates", 0, "turns", "teacher_logprobs", 1),
            "xx",
            "update 0, row 1 (r0/1), digest of teacher_logprobs: dd at BASE, xx here",
        ),
        (("evaluations", "0", "by_kind", "heat"), 0.0, "evaluation of version 0, by_kind: {'heat': 10.0} at BASE"),
        (("evaluations", "2", "success_rate"), 25.0, "evaluation of version 2, success_rate: 20.0 at BASE, 25.0 here"),
        (("fates", "r1"), {"trained": 3}, "fates of rollout r1: {'stale': 1, 'trained': 2} at BASE"),
        (("weights", "head"), "F32 [2] xx", "final weights, head: F32 [2] ee at BASE, F32 [2] xx here"),
        (("weights", "tail"), "F32 [2] xx", "final weights, tail: only here"),
    ],
)
def test_a_difference_is_named(path: tuple[Any, ...], value: object, named: str) -> None:
    """Whatever is changed, the message says the update, the row and the thing; and both values where there are two."""
    here = record()
    place = here
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    found = same.first_difference(record(), here)
    assert found is not None
    assert found.startswith(named)


def test_the_first_difference_counts() -> None:
    """A weight that changed in update 1 changes everything after it: update 1 is what one wants to hear."""
    here = record()
    here["updates"][1]["weights"][0] = 2.0
    here["evaluations"]["2"]["success_rate"] = 0.0
    here["weights"]["head"] = "F32 [2] xx"
    assert "update 1, row 0" in str(same.first_difference(record(), here))


def test_a_row_or_an_update_that_is_missing_is_named() -> None:
    short, shorter = record(), record()
    for column in (short["updates"][1]["rows"], short["updates"][1]["weights"]):
        column.pop()
    shorter["updates"].pop()
    assert same.first_difference(record(), short) == "update 1, rows: 2 at BASE, 1 here"
    assert str(same.first_difference(record(), shorter)).startswith("update 1, rows at BASE, evaluation of version 2")


def test_a_field_that_only_one_side_has_is_not_compared_and_said() -> None:
    """A later commit may give turns one more field."""
    here = record()
    for batch in here["updates"]:
        batch["turns"]["rollout_valid_tokens"] = ["11", "22"]
    assert same.first_difference(record(), here) is None
    assert same.first_difference(here, record()) is None
    assert "rollout_valid_tokens" in same.uncompared(record(), here)
    assert same.uncompared(record(), record()) == ""


def test_kept_records_hold_in_their_circumstances_only(tmp_path: Path) -> None:
    file = tmp_path / "kept" / "abc.json"
    assert same.kept_records(file, circumstances={"torch": "2"}) == {}
    same.keep_records(file, {"divopd 3": record()}, circumstances={"torch": "2"})
    same.keep_records(file, {"vanilla 3": record()}, circumstances={"torch": "2"})
    kept = same.kept_records(file, circumstances={"torch": "2"})
    assert kept == {"divopd 3": record(), "vanilla 3": record()}
    assert same.kept_records(file, circumstances={"torch": "3"}) == {}
    same.keep_records(file, {"divopd 3": record()}, circumstances={"torch": "3"})
    assert list(same.kept_records(file, circumstances={"torch": "3"})) == ["divopd 3"]


def tensor_file(path: Path, tensors: dict[str, bytes], *, dtype: str = "F32") -> Path:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    content = b""
    for name, data in tensors.items():
        offsets = [len(content), len(content) + len(data)]
        header[name] = {"dtype": dtype, "shape": [len(data) // 4], "data_offsets": offsets}
        content += data
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content)
    return path


def test_tensors_are_compared_wherever_they_lie_in_the_file(tmp_path: Path) -> None:
    """The order in a file says nothing; one bit, the type and the name do."""
    tensors = {"a": b"\0\0\0\0", "b": b"\1\0\0\0\2\0\0\0"}
    one = same_record.tensor_digests(tensor_file(tmp_path / "one", tensors))
    two = same_record.tensor_digests(tensor_file(tmp_path / "two", dict(reversed(tensors.items()))))
    assert one == two
    assert list(one) == ["a", "b"]
    bit = same_record.tensor_digests(tensor_file(tmp_path / "bit", tensors | {"a": b"\0\0\0\x01"}))
    assert [name for name in one if one[name] != bit[name]] == ["a"]
    assert same_record.tensor_digests(tensor_file(tmp_path / "type", tensors, dtype="I32"))["a"] != one["a"]
