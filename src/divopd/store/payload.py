"""The tokens of a turn as bytes: the part of a stored turn that only a learner and an audit read.

Little-endian: one byte of flags, the lengths of six lists (-1: the list is missing), reward, the rollout's turns and
valid tokens, and then the lists: int32 ids, float64 log probabilities, one byte per mask entry. NaN, infinities and
lists of unequal length come back as they were: whether a turn is valid is not this module's question.
"""

import json
import struct
from collections.abc import Sequence
from dataclasses import asdict
from hashlib import sha256
from itertools import islice
from typing import Any

from divopd.errors import NotAStoreError, TurnFormatError
from divopd.store.numbers import BYTES, KINDS, Numbers
from divopd.turns import MAX_LINE_BYTES, Rollout, TeacherTurn, Turn

MAX_PAYLOAD_BYTES = MAX_LINE_BYTES
TEACHER_TURNS_FORMAT = 1
_HEADER = struct.Struct("<B6id2q")
_ID = struct.Struct("<i")
_LISTS = (
    ("prompt_ids", "i", "token ids (integers from 0 to 2^31 - 1)"),
    ("response_ids", "i", "token ids (integers from 0 to 2^31 - 1)"),
    ("student_logprobs", "d", "numbers, or None"),
    ("teacher_logprobs", "d", "numbers, or None"),
    ("action_mask", "B", "0 and 1, or None"),
    ("teacher_mask", "B", "0 and 1, or None"),
)
_TRUNCATED, _REWARD, _OUTCOME, _SUCCESS, _ROLLOUT_TURNS, _ROLLOUT_VALID_TOKENS = 1, 2, 4, 8, 16, 32


def encode_turn(turn: Turn) -> bytes:
    """The payload of a turn. Values that have no place in one (a negative id, a mask of 7) raise a TurnFormatError."""
    lengths: list[int] = []
    chunks: list[bytes] = []
    for name, code, expected in _LISTS:
        values = getattr(turn, name)
        if values is None and code != "i":
            lengths.append(-1)
            continue
        try:
            chunk = _encode_list(values, code)
        except (TypeError, ValueError, struct.error):
            raise TurnFormatError(
                f"rollout {turn.rollout!r} turn {turn.turn}: {name} is not a list of {expected}"
            ) from None
        lengths.append(len(chunk) // BYTES[code])
        chunks.append(chunk)
    flags = _TRUNCATED * turn.prompt_truncated
    flags |= _REWARD * (turn.reward is not None)
    flags |= _OUTCOME * (turn.success is not None) | _SUCCESS * bool(turn.success)
    flags |= _ROLLOUT_TURNS * (turn.rollout_turns is not None)
    flags |= _ROLLOUT_VALID_TOKENS * (turn.rollout_valid_tokens is not None)
    ending = turn.reward or 0.0, turn.rollout_turns or 0, turn.rollout_valid_tokens or 0
    payload = _HEADER.pack(flags, *lengths, *ending) + b"".join(chunks)
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise TurnFormatError(
            f"rollout {turn.rollout!r} turn {turn.turn}: {len(payload)} bytes; a turn takes at most {MAX_PAYLOAD_BYTES}"
        )
    return payload


def decode_turn(payload: bytes, **identity: Any) -> Turn:
    """The turn of a payload; `identity` is what the payload does not hold: rollout, turn, task, version, available_at.

    Its lists are Numbers. Sizes are checked before anything is allocated; a payload that does not fit its own header
    raises a NotAStoreError.
    """
    where = "rollout {rollout!r} turn {turn}"
    if len(payload) < _HEADER.size:
        what = f"its stored tokens are damaged ({len(payload)} bytes); restore the store from a copy"
        raise NotAStoreError(f"{where.format(**identity)}: {what}")
    flags, *lengths, reward, rollout_turns, rollout_valid_tokens = _HEADER.unpack_from(payload)
    values: dict[str, Any] = {}
    start = _HEADER.size
    for (name, code, _), length in zip(_LISTS, lengths, strict=True):
        if length < 0:
            values[name] = None
        else:
            end = start + length * BYTES[code]
            values[name] = Numbers(code, payload[start:end])  # never more than there is
            start = end
    if len(payload) != start or min(lengths[:2]) < 0 or min(lengths) < -1:
        what = "its stored tokens do not fit their own lengths; restore the store from a copy"
        raise NotAStoreError(f"{where.format(**identity)}: {what}")
    turn = Turn.__new__(Turn)  # as Turn(…) makes it; a frozen one sets field by field, in six times the time
    turn.__dict__.update(
        identity,
        **values,
        prompt_truncated=bool(flags & _TRUNCATED),
        reward=reward if flags & _REWARD else None,
        success=bool(flags & _SUCCESS) if flags & _OUTCOME else None,
        rollout_turns=rollout_turns if flags & _ROLLOUT_TURNS else None,
        rollout_valid_tokens=rollout_valid_tokens if flags & _ROLLOUT_VALID_TOKENS else None,
    )
    return turn


def encode_rollout(rollout: Rollout) -> bytes:
    """A whole rollout: a line of JSON with what payloads do not hold, then the payloads of its turns.

    Prompts that only the teacher reads follow them.
    """
    payloads = [encode_turn(turn) for turn in rollout.turns]
    turns = [(t.turn, t.version, t.available_at, len(data)) for t, data in zip(rollout.turns, payloads, strict=True)]
    own = [_encode_list(ids, "i") for ids in rollout.teacher_prompts or ()]
    head: dict[str, Any] = {"rollout": rollout.id, "task": rollout.task, "turns": turns}
    if rollout.teacher_turns:
        head["teacher_turns"] = _teacher_turns_to_json(rollout.teacher_turns)
    if rollout.teacher_prompts is not None:
        head["teacher_prompts"] = [len(ids) // BYTES["i"] for ids in own]
    return b"".join([json.dumps(head).encode(), b"\n", *payloads, *own])


def decode_rollout(content: bytes) -> Rollout:
    """The rollout of `encode_rollout`; anything else raises a ValueError, KeyError, TypeError or NotAStoreError."""
    start = content.index(b"\n") + 1
    head = json.loads(content[:start])
    whose = {"rollout": head["rollout"], "task": head["task"]}
    turns: list[Turn] = []
    for number, version, available_at, size in head["turns"]:
        identity = whose | {"turn": number, "version": version, "available_at": available_at}
        turns.append(decode_turn(content[start : start + size], **identity))
        start += size
    taught = _teacher_turns_from_json(head["teacher_turns"]) if "teacher_turns" in head else ()
    own = _teacher_prompts(content[start:], head["teacher_prompts"]) if "teacher_prompts" in head else None
    return Rollout(head["rollout"], tuple(turns), taught, own)


def _teacher_prompts(content: bytes, lengths: list[int]) -> tuple[list[int], ...]:
    if len(content) != _ID.size * sum(lengths):
        raise ValueError("prompts of the teacher do not fit their lengths")
    ids = iter([id_ for (id_,) in _ID.iter_unpack(content)])
    return tuple(list(islice(ids, length)) for length in lengths)


def encode_teacher_turns(turns: Sequence[TeacherTurn]) -> bytes:
    """The turns of the teacher in one rollout; nothing if there are none."""
    if not turns:
        return b""
    return json.dumps(_teacher_turns_to_json(turns), separators=(",", ":"), sort_keys=True).encode()


def decode_teacher_turns(content: bytes) -> tuple[TeacherTurn, ...]:
    """The turns of `encode_teacher_turns`; anything else raises a ValueError, KeyError or TypeError."""
    return _teacher_turns_from_json(json.loads(content)) if content else ()


def _teacher_turns_to_json(turns: Sequence[TeacherTurn]) -> dict[str, Any]:
    return {"format": TEACHER_TURNS_FORMAT, "turns": [asdict(turn) for turn in turns]}


def _teacher_turns_from_json(data: dict[str, Any]) -> tuple[TeacherTurn, ...]:
    if data["format"] != TEACHER_TURNS_FORMAT:
        raise ValueError(f"turns of the teacher in format {data['format']}")
    return tuple(_teacher_turn(turn) for turn in data["turns"])


def _teacher_turn(data: dict[str, Any]) -> TeacherTurn:
    number, ids, action, seen = (data[name] for name in ("turn", "response_ids", "action", "seen"))
    whole = all(type(value) is int and 0 <= value < 2**31 for value in (number, *ids))
    if not whole or not isinstance(action, str | None) or not isinstance(seen, str):
        raise TypeError("not a turn of the teacher")
    return TeacherTurn(number, tuple(ids), action, seen)


def digest_of(*parts: bytes) -> bytes:
    """A checksum (SHA-256) over the parts in order, each with its length."""
    chunks = [chunk for part in parts for chunk in (len(part).to_bytes(8, "little"), part)]
    return sha256(b"".join(chunks)).digest()  # the fastest of hashlib where the processor has instructions for it


def _encode_list(values: Any, code: str) -> bytes:
    if isinstance(values, Numbers) and values.code == code:
        raw = values.raw
    elif hasattr(values, "astype") and (array := _fitting(values, code)) is not None:
        raw = array.tobytes()
    else:
        if hasattr(values, "tolist"):  # arrays of another kind, tensors
            values = values.tolist()
        raw = struct.pack(f"<{len(values)}{code}", *values)
    if code == "i" and not raw[3::4].isascii():  # the highest byte of a negative id is 128 or more
        raise ValueError
    if code == "B" and raw.strip(b"\0\1"):
        raise ValueError
    return raw


def _fitting(values: Any, code: str) -> Any:
    """An array in the kind of a payload, if that changes no value of its kind; else None."""
    import numpy as np  # here only: whoever imports divopd need not wait for it

    fits = values.ndim == 1 and np.can_cast(values.dtype, KINDS[code], "safe")
    return np.asarray(values).astype(KINDS[code], copy=False) if fits else None
