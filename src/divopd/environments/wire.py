"""What goes between a pool and its worker processes: JSON with its length before it, never longer than a cap.

Whoever is at the other end is not trusted: a message that is too long is refused by its length, before it is read.
"""

import json
import struct
from dataclasses import asdict
from typing import Any

from divopd.environments.checked import MOST_TEXT, plain, what_is_wrong
from divopd.environments.environment import Observation

MOST_BYTES = 10 * MOST_TEXT  # of a message: a text and a list of actions as UTF-8, and what JSON adds to them
_LENGTH = struct.Struct(">I")


class WireError(Exception):
    """What came is no message; the sentence goes on from "the worker"."""


def pack(message: dict[str, Any]) -> bytes:
    """A message as bytes."""
    text = json.dumps(message, ensure_ascii=False).encode("utf-8", "surrogatepass")  # an action may be broken Unicode
    return _LENGTH.pack(len(text)) + text


class Frames:
    """Takes bytes as they come, and gives whole messages."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def __bool__(self) -> bool:
        """Whether a message has begun and is not whole yet."""
        return bool(self._bytes)

    def feed(self, more: bytes) -> None:
        self._bytes += more

    def missing(self) -> int:
        """How many bytes are still to come before something can be taken; 0: a whole message is there."""
        if len(self._bytes) < _LENGTH.size:
            return _LENGTH.size - len(self._bytes)
        [length] = _LENGTH.unpack_from(self._bytes)
        if length > MOST_BYTES:
            raise WireError(f"answered with {length:,} bytes; expected at most {MOST_BYTES:,}")
        return max(0, _LENGTH.size + length - len(self._bytes))

    def take(self) -> dict[str, Any] | None:
        """The next message, if it is whole."""
        if self.missing():
            return None
        [length] = _LENGTH.unpack_from(self._bytes)
        text = bytes(self._bytes[_LENGTH.size : _LENGTH.size + length])
        del self._bytes[: _LENGTH.size + length]
        try:
            message = json.loads(text.decode("utf-8", "surrogatepass"))
        except (ValueError, RecursionError):
            raise WireError("answered with what is no JSON") from None
        if not isinstance(message, dict):
            raise WireError("answered with what is no message")
        return message


def observation_to_json(seen: Observation) -> dict[str, Any]:
    return asdict(seen)


def observation_from_json(data: object) -> Observation:
    """Checked again: a worker is as little trusted as the environment in it."""
    try:
        seen = Observation(**data)  # type: ignore[arg-type]
    except TypeError:
        raise WireError("answered with what is no observation") from None
    if wrong := what_is_wrong(seen):
        raise WireError(wrong)
    return plain(seen)
