"""One question to a server, which is not trusted: the whole answer in time, or one of three errors.

away       it cannot be reached, is not done when `timeout_s` is over (silent or dripping), breaks off, or says 5xx, 408
           or 429: TeacherAwayError, and the same question may be asked again later
wrong      a complete answer that is not what was asked for (WrongAnswerError), or any other status (InputError): asking
           again would end the same
too large  more bytes than the answer can need (WrongAnswerError): nothing is read beyond them

An answer is complete if its length, or the end of its chunks, says so. One that only ends with the connection may have
broken off: if it is no JSON, the server is away.
"""

import io
import json
import socket
import time
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, cast
from urllib.parse import SplitResult, urlsplit

from divopd.errors import InputError, TeacherAwayError, WrongAnswerError
from divopd.printable import MAX_QUOTED, one_line

BUSY = (408, 429)  # statuses below 500 that pass
PART_BYTES = 2**16  # read at a time


def address_of(url: str) -> SplitResult:
    """The parts of a server's address; an InputError if it is none."""
    with suppress(ValueError):  # a port that is no number, a host in half a bracket
        parts = urlsplit(url)
        whole = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port)
        if whole and url.isascii() and url.isprintable() and not {" ", "@"} & set(url):  # nor a password: it is shown
            return parts
    raise InputError(f"{one_line(repr(url))} is no address of a server; expected http://HOST:PORT/v1 or https://…")


def ask(url: str, body: dict[str, Any] | None, *, timeout_s: float, max_bytes: int) -> dict[str, Any]:
    """The JSON object with which a server answers: POST with a body, GET without one. The errors are as above."""
    who = address_of(url).netloc
    try:
        status, text, is_complete = _exchange(url, body, deadline=time.monotonic() + timeout_s, max_bytes=max_bytes)
    except TimeoutError:
        raise TeacherAwayError(
            f"{url} timed out: no whole answer in {timeout_s:g} s; it is asked again", who=who
        ) from None
    except (OSError, HTTPException) as error:
        raise TeacherAwayError(
            f"{url} cannot be reached ({_reason(error)}); start the server, or correct teacher.url", who=who
        ) from None
    if status != 200:
        said = f"{url} answered {status}: {one_line(text.decode('utf-8', errors='replace'))}"
        if status >= 500 or status in BUSY:
            raise TeacherAwayError(f"{said}; it is asked again", who=who)
        raise InputError(f"{said}; check teacher.url, teacher.model and the length of prompts")
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        answer = None
    if isinstance(answer, dict):
        return answer
    if is_complete:
        raise WrongAnswerError(f"{url} did not answer with JSON; expected an OpenAI-compatible server")
    raise TeacherAwayError(f"{url} broke off in the middle of its answer; it is asked again", who=who)


def _exchange(url: str, body: dict[str, Any] | None, *, deadline: float, max_bytes: int) -> tuple[int, bytes, bool]:
    """(status, answer, whether it is complete); of an error only the beginning is read."""
    parts, data = address_of(url), None if body is None else json.dumps(body).encode()
    kind, usual = (HTTPSConnection, 443) if parts.scheme == "https" else (HTTPConnection, 80)
    with closing(kind(parts.hostname or "", parts.port or usual, timeout=_left(deadline))) as connection:
        connection.connect()
        connection.sock.settimeout(_left(deadline))
        headers = {"Content-Type": "application/json", "Connection": "close"}
        with suppress(BrokenPipeError, ConnectionResetError):  # it may have answered before it heard everything
            connection.request("GET" if data is None else "POST", parts.path or "/", data, headers)
        # what a response wants of a socket is a file to read from
        response = HTTPResponse(cast(socket.socket, _Timed(connection.sock, deadline)))
        with closing(response):
            response.begin()
            if response.status == 200:
                return 200, *_read(response, max_bytes, url)
            text = b""
            with suppress(OSError, HTTPException):  # it may fall silent in the middle
                text = response.read1(4 * MAX_QUOTED)
            return response.status, text or response.reason.encode(), True


def _read(response: HTTPResponse, max_bytes: int, url: str) -> tuple[bytes, bool]:
    announced, parts, size = response.length, list[bytes](), 0
    while size <= max_bytes and (announced or 0) <= max_bytes and (part := response.read1(PART_BYTES)):
        parts.append(part)
        size += len(part)
    if max(size, announced or 0) > max_bytes:
        raise WrongAnswerError(
            f"{url} answers with more than {max_bytes} bytes, which what it was asked for cannot take; "
            "expected an OpenAI-compatible server"
        )
    if response.length:  # so much is missing
        raise ConnectionError(f"it broke off {response.length} bytes before the end")
    return b"".join(parts), response.chunked or announced is not None


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _reason(error: Exception) -> str:
    return one_line(str(error)) or type(error).__name__


class _Timed(io.RawIOBase):
    """The bytes of a socket until a deadline: a server that drips has no more time than one that is silent."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._socket, self._deadline = connection, deadline

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._socket.settimeout(_left(self._deadline))
        return self._socket.recv_into(buffer)
