"""Reading and writing turns: what is bad input, and what is only an invalid turn."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given

from divopd.errors import TurnFormatError
from divopd.turns import (
    Rollout,
    TeacherTurn,
    Turn,
    group_into_rollouts,
    read_turns,
    turn_from_json,
    turn_to_json,
    write_turns,
)
from strategies import recordings, turn


@given(turns=recordings(updates=3))
def test_a_turn_survives_json(turns: list[Turn]) -> None:
    """What is written is read back equal, field by field."""
    for one in turns:
        assert turn_from_json(json.loads(json.dumps(turn_to_json(one)))) == one


def test_a_recording_survives_a_file(tmp_path: Path) -> None:
    """Turns come back in order, also those with missing, short and not-finite lists."""
    turns = [
        turn("a", 0),
        turn("a", 1, student_logprobs=None, prompt_ids=[]),
        turn("b", 0, teacher_logprobs=[-math.inf, -1.0]),
        turn("c/1.x-_", 7, teacher_mask=[1, 0, 1], success=True, reward=0.5, rollout_turns=9, rollout_valid_tokens=30),
    ]
    assert write_turns(tmp_path / "turns.jsonl", turns) == 4
    assert read_turns(tmp_path / "turns.jsonl") == turns


def test_null_inside_a_list_is_not_a_number(tmp_path: Path) -> None:
    """Strict JSON has no NaN: a null entry is read as one, and the turn is invalid, not the file."""
    record = {**turn_to_json(turn()), "teacher_logprobs": [None, -1.0, -1.0]}
    assert math.isnan(turn_from_json(record).teacher_logprobs[0])  # type: ignore[index]


GOOD = turn_to_json(turn("a", 0))
BAD_LINES = {
    "broken JSON": ('{"rollout": "a"', "broken JSON at column"),
    "not an object": ("[1, 2]", "expected a JSON object"),
    "missing rollout": (json.dumps({k: v for k, v in GOOD.items() if k != "rollout"}), "'rollout' is missing"),
    "missing flag": (
        json.dumps({k: v for k, v in GOOD.items() if k != "prompt_truncated"}),
        "'prompt_truncated' is missing",
    ),
    "wrong type": (json.dumps({**GOOD, "turn": "0"}), "field 'turn' is '0'"),
    "bool as a number": (json.dumps({**GOOD, "turn": True}), "field 'turn' is True"),
    "negative version": (json.dumps({**GOOD, "version": -1}), "field 'version' is -1"),
    "version from the future": (json.dumps({**GOOD, "version": 3}), "above 'available_at' 0"),
    "ids that are no ids": (json.dumps({**GOOD, "prompt_ids": [1, -2]}), "'prompt_ids'"),
    "a list that is text": (json.dumps({**GOOD, "student_logprobs": "x"}), "'student_logprobs'"),
    "a mask of twos": (json.dumps({**GOOD, "action_mask": [2, 1, 1]}), "'action_mask'"),
    "a path as an id": (json.dumps({**GOOD, "rollout": "../../etc"}), "without '..'"),
    "a line break in an id": (json.dumps({**GOOD, "rollout": "a\n"}), "field 'rollout'"),
    "a huge number": ('{"turn": ' + "9" * 5000 + "}", "too large"),
    "deep nesting": ("[" * 100_000, "too large"),
    "binary": ("\x00\x01\x02", "broken JSON"),
}


@pytest.mark.parametrize(("line", "complaint"), BAD_LINES.values(), ids=BAD_LINES.keys())
def test_a_bad_line_is_named(tmp_path: Path, line: str, complaint: str) -> None:
    """The error names file, line, field and value."""
    path = tmp_path / "turns.jsonl"
    path.write_text(json.dumps({**GOOD, "rollout": "first"}) + "\n\n" + line + "\n")
    with pytest.raises(TurnFormatError) as caught:
        read_turns(path)
    assert f"{path}:3: " in str(caught.value)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_duplicate_turn_is_named(tmp_path: Path) -> None:
    path = tmp_path / "turns.jsonl"
    path.write_text(json.dumps(GOOD) + "\n" + json.dumps(GOOD) + "\n")
    with pytest.raises(TurnFormatError, match=r"jsonl:2: rollout 'a' turn 0 was already on line 1"):
        read_turns(path)


@pytest.mark.parametrize(
    "content", [b"", b"\n \n", bytes(range(256)), b"\xff\xfe"], ids=["empty", "blank", "binary", "utf-16"]
)
def test_a_file_without_turns_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "turns.jsonl"
    path.write_bytes(content)
    with pytest.raises(TurnFormatError):
        read_turns(path)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    """A recording is written whole or not at all."""
    path = tmp_path / "turns.jsonl"
    write_turns(path, [turn("old")])

    def broken():
        yield turn("new")
        raise OSError(28, "No space left on device")

    with pytest.raises(TurnFormatError, match="No space left"):
        write_turns(path, broken())
    assert [t.rollout for t in read_turns(path)] == ["old"]
    assert list(tmp_path.iterdir()) == [path]


def test_a_rollout_is_whole_and_in_order() -> None:
    """Turns of a rollout share its id and task, come in turn order, and no weights are older than those before."""
    assert [r.id for r in group_into_rollouts([turn("b", 1), turn("a", 0), turn("b", 0)])] == ["b", "a"]
    out_of_order, twice = (turn("a", 1), turn("a", 0)), (turn("a", 0), turn("a", 0))
    back = (turn("a", 0, version=1), turn("a", 1, version=0))
    for turns in [(), (turn("b", 0),), out_of_order, twice, back]:
        with pytest.raises(TurnFormatError):
            Rollout("a", turns)
    assert Rollout("a", (turn("a", 0), turn("a", 1, version=1))).version == 0


@pytest.mark.parametrize("numbers", [(0,), (2,), (3, 1), (1, 1)])
def test_turns_of_the_teacher_have_numbers_of_their_own(numbers: tuple[int, ...]) -> None:
    """None that a row has, none twice, and in order."""
    rows = (turn("a", 0), turn("a", 2))
    assert [t.turn for t in Rollout("a", rows, (TeacherTurn(1, (), None, ""),)).teacher_turns] == [1]
    with pytest.raises(TurnFormatError, match="turns of the teacher are"):
        Rollout("a", rows, tuple(TeacherTurn(number, (), None, "") for number in numbers))
