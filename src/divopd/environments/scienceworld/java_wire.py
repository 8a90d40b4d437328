"""Calls into a JVM over the wire format of py4j's gateway: one socket, one time limit, no retries.

py4j's own client reconnects and resends after a failure, logs tracebacks through the root logger, and talks to the JVM
whenever Python collects garbage. A simulator that may die or hang at any moment needs the opposite: the first thing
that goes wrong is an error here and now.
"""

import re
import socket
from typing import NamedTuple

Value = str | int | float | bool | None


class Ref(NamedTuple):
    """An object that lives in the JVM until it is released."""

    id: str


class JavaError(Exception):
    """The JVM answered with an exception."""


class JavaWire:
    """An authenticated connection. OSError (a time-out is one) or JavaError mean that it cannot be used any more."""

    def __init__(self, port: int, token: str, *, timeout_s: float) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers = self._socket.makefile("rb")
        self._ask(f"A\n{token}\n")

    def create(self, class_name: str) -> Ref:
        """A new object of a class, made without arguments."""
        return _as_ref(self._ask(f"i\n{class_name}\ne\n"))

    def call(self, target: Ref, method: str, *arguments: str | int | bool) -> Value | Ref:
        """Call a method. Anything that is no text, number or boolean comes back as a reference."""
        parts = "".join(f"{_encode(argument)}\n" for argument in arguments)
        return _decode(self._ask(f"c\n{target.id}\n{method}\n{parts}e\n"))

    def refer(self, target: Ref, method: str) -> Ref:
        """Call a method that returns an object."""
        return _as_ref(self._ask(f"c\n{target.id}\n{method}\ne\n"))

    def release(self, ref: Ref) -> None:
        """Let the JVM forget an object."""
        self._ask(f"m\nd\n{ref.id}\ne\n")

    def close(self) -> None:
        self._answers.close()
        self._socket.close()

    def _ask(self, command: str) -> str:
        self._socket.sendall(command.encode("utf-8"))
        line = self._answers.readline()
        if not line.endswith(b"\n"):
            raise ConnectionError("the connection was closed")
        answer = line.decode("utf-8").rstrip("\n").removeprefix("!")
        if not answer.startswith("y"):
            raise JavaError(_unescape(answer[1:])[:500] or "no reason given")
        return answer[1:]


def _encode(argument: str | int | bool) -> str:
    if isinstance(argument, bool):
        return f"b{argument}"
    if isinstance(argument, int):
        return f"i{argument}"
    return "s" + argument.replace("\\", "\\\\").replace("\r", "\\r").replace("\n", "\\n")


def _decode(answer: str) -> Value | Ref:
    kind, rest = answer[:1], answer[1:]
    if kind == "s":
        return _unescape(rest)
    if kind in ("i", "L"):
        return int(rest)
    if kind == "d":
        return float(rest)
    if kind == "b":
        return rest == "true"
    return None if kind in ("", "n", "v") else Ref(rest)


def _as_ref(answer: str) -> Ref:
    value = _decode(answer)
    if not isinstance(value, Ref):
        raise JavaError(f"expected an object, got {answer[:80]!r}")
    return value


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: {"n": "\n", "r": "\r"}.get(found[1], found[1]), text)
