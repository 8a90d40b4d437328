"""Teachers behind a url that are absent, drip, lie, break off or never end: away, wrong or too large, never a hang."""

import json
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest

from divopd.errors import AlignmentError, InputError, TeacherAwayError
from divopd.models.openai_policy import OpenAIPolicy
from raw_server import RawServer, completion, in_chunks, until_the_end, with_length

Bytes = Iterator[bytes]
Framed = Callable[[bytes], bytes]
framed = pytest.mark.parametrize("framed", [with_length, in_chunks, until_the_end], ids=lambda f: f.__name__)
IDS = [3, 9, 4]


def score(server: RawServer, *, timeout_s: float = 10.0) -> list[float]:
    [[values]] = OpenAIPolicy(server.url, model="teacher", timeout_s=timeout_s).score([IDS], [[(1, 3)]])
    return values.tolist()


def respond(server: RawServer, *, timeout_s: float = 10.0) -> list[int]:
    policy = OpenAIPolicy(server.url, model="teacher", timeout_s=timeout_s)
    [response] = policy.respond([IDS], temperature=1.0, max_tokens=2, seeds=[0])
    return response.ids


def serving(data: bytes) -> AbstractContextManager[RawServer]:
    return RawServer(lambda body: iter([data]))


@framed
def test_a_whole_answer_is_read_however_it_is_framed(framed: Framed) -> None:
    """With a length, in chunks, or until the connection ends."""
    with serving(framed(completion(IDS))) as server:
        assert score(server) == [-1.0, -1.0]
        assert respond(server) == [5]


# ── away ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@framed
@pytest.mark.parametrize("where", ["nothing", "status", "headers", "body", "last byte"])
def test_a_connection_that_drops_is_an_absence(framed: Framed, where: str) -> None:
    """Wherever it drops: the same question gets a whole answer later. A short answer is not a wrong one."""
    whole = framed(completion(IDS))
    head = whole.index(b"\r\n\r\n")
    cut = {"nothing": 0, "status": 5, "headers": head - 3, "body": head + 30, "last byte": len(whole) - 1}[where]
    cut -= 5 if where == "last byte" and framed is in_chunks else 0  # what follows the last chunk says nothing
    with serving(whole[:cut]) as server:
        for ask in (score, respond):
            with pytest.raises(TeacherAwayError):
                ask(server)
        server.answer = lambda body: iter([whole])
        assert score(server) == [-1.0, -1.0]


@framed
@pytest.mark.parametrize("from_the_first", [True, False], ids=["headers", "body"])
def test_a_teacher_that_drips_has_no_more_time_than_a_silent_one(framed: Framed, from_the_first: bool) -> None:
    """`timeout_s` is for the whole answer, however often a byte of it comes."""
    whole = framed(completion(IDS))
    start = 0 if from_the_first else whole.index(b"\r\n\r\n") + 10

    def drip(_body: dict[str, Any]) -> Bytes:
        yield whole[:start]
        for place in range(start, start + 80):
            time.sleep(0.05)
            yield whole[place : place + 1]
        yield whole[start + 80 :]  # after four seconds the whole answer is there

    with RawServer(drip) as server, pytest.raises(TeacherAwayError, match=r"timed out: no whole answer in 0\.5 s"):
        score(server, timeout_s=0.5)


def test_a_teacher_that_is_busy_and_then_is_not() -> None:
    """5xx, 408 and 429 pass, also when the error itself breaks off, never ends or has no text."""
    errors = [
        with_length(b"overloaded", status="500 no"),
        with_length(b"", status="503 Busy"),
        b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 900\r\n\r\nhalf",
        with_length(b"slowly", status="429 Too Many Requests"),
        with_length(b"late", status="408 Request Timeout"),
    ]

    def answer(_body: dict[str, Any]) -> Bytes:
        yield errors.pop(0) if errors else with_length(completion(IDS))

    with RawServer(answer) as server:
        for words in ("500: overloaded", "503: Busy", "502: half", "429: slowly", "408: late"):
            with pytest.raises(TeacherAwayError, match=f"answered {words}; it is asked again"):
                score(server)
        assert score(server) == [-1.0, -1.0]


def test_a_teacher_that_is_not_there() -> None:
    with serving(b"") as server:
        url = server.url
    with pytest.raises(TeacherAwayError, match=r"cannot be reached \(.*refused"):
        OpenAIPolicy(url, model="teacher", timeout_s=5.0).score([IDS], [[(1, 3)]])


def test_a_teacher_that_takes_and_says_nothing() -> None:
    def silent(_body: dict[str, Any]) -> Bytes:
        server.over.wait(20)
        yield b""

    with RawServer(silent) as server, pytest.raises(TeacherAwayError, match="timed out"):
        score(server, timeout_s=0.3)


# ── wrong ─────────────────────────────────────────────────────────────────────────────────────────────────────────

ABSURD = ["1" + "0" * 400, "-1" + "0" * 400, "1e400", "-1e400", "NaN", "Infinity", "-Infinity", "0.5", "true", "null"]


@pytest.mark.parametrize("number", [*ABSURD, '"-1"', "[]", "-10000"])
def test_what_is_no_log_probability_is_refused(number: str) -> None:
    """A finite number up to 0, within rounding; whether it was scored or sampled."""
    text = completion(IDS).replace(b"-1.0", number.encode())
    with serving(with_length(text)) as server:
        with pytest.raises(AlignmentError, match="as a log probability; expected a number from -9999 to 0"):
            score(server)
        with pytest.raises(AlignmentError, match="as a log probability"):
            respond(server)


@pytest.mark.parametrize(("number", "value"), [("5e-5", 5e-5), ("0", 0.0), ("-3", -3.0), ("-9999.0", -np.inf)])
def test_rounding_and_minus_infinity_are_log_probabilities(number: str, value: float) -> None:
    with serving(with_length(completion(IDS).replace(b"-1.0", number.encode()))) as server:
        assert score(server) == [value, value]


@framed
@pytest.mark.parametrize("text", [b"<html>", b"[1]", b"", b"[" * 10_000, b"\xff\xfe", b'{"a": ' + b"9" * 5000 + b"}"])
def test_a_complete_answer_that_is_no_object_is_refused(framed: Framed, text: bytes) -> None:
    """If it might have broken off, the server is away instead."""
    expected = TeacherAwayError if framed is until_the_end else AlignmentError
    with serving(framed(text)) as server, pytest.raises(expected):
        score(server)


@pytest.mark.parametrize(
    "lie",
    [
        {"prompt_logprobs": [None, {"9": -1.0}]},
        {"prompt_logprobs": [None, {"9": -1.0}, {"8": -1.0}]},
        {"prompt_logprobs": {"9": -1.0}},
        {"prompt_logprobs": None},
    ],
)
def test_scores_of_something_else_are_refused(lie: dict[str, Any]) -> None:
    with serving(with_length(completion(IDS, **lie))) as server, pytest.raises(AlignmentError):
        score(server)


@pytest.mark.parametrize("ids", [[], [5, 6, 7], [-1], [2**31], [True], [5.0], None, "5"])
def test_tokens_that_nobody_asked_for_are_refused(ids: Any) -> None:
    """More than were wanted, or what is no token id."""
    values = {"token_logprobs": [-1.0] * (len(ids) if isinstance(ids, list) else 1)}
    lie = completion(IDS, token_ids=ids, logprobs=values)
    with serving(with_length(lie)) as server, pytest.raises(AlignmentError, match="which tokens it generated"):
        respond(server)


def test_what_a_server_says_cannot_steer_a_terminal() -> None:
    """One line, no control characters, not too long; also where a status line or a model's name says it."""
    evil = "\x1b[2Jgone\r\nsecond\u202eline\x07" + "x" * 5000
    answers = [
        with_length(evil.encode(), status="404 x"),
        with_length(evil.encode(), status="500 x"),
        with_length(b"", status=f"503 {evil[:60].encode().decode('latin-1')}".replace("\r\n", " ")),
        b"\x1b[2J\x07" + b"x" * 5000 + b"\r\n\r\n",
    ]
    with RawServer(lambda body: iter([answers.pop(0)])) as server:
        for _ in range(4):
            with pytest.raises((InputError, TeacherAwayError)) as caught:
                score(server)
            assert str(caught.value).isprintable()
            assert len(str(caught.value)) < 500


# ── too large ─────────────────────────────────────────────────────────────────────────────────────────────────────


def endless(begin: bytes, part: bytes) -> Callable[[dict[str, Any]], Bytes]:
    def answer(_body: dict[str, Any]) -> Bytes:
        yield begin
        for _ in range(3000):  # 200 MB: a test of something broken ends, too
            yield part

    return answer


SPACES = b" " * 2**16


@pytest.mark.parametrize(
    "answer",
    [
        endless(b"HTTP/1.0 200 OK\r\n\r\n", SPACES),
        endless(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", SPACES),
        endless(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + SPACES + b"\r\n"),
        endless(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffff\r\n", SPACES),
        endless(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n", SPACES),
    ],
    ids=["until the end", "length", "chunks", "one chunk", "a negative chunk"],
)
def test_an_endless_answer_is_cut_off(answer: Callable[[dict[str, Any]], Bytes]) -> None:
    """After what the answer could need; memory stays small."""
    with RawServer(answer) as server:
        tracemalloc.start()
        with pytest.raises(AlignmentError, match=r"answers with more than \d+ bytes"):
            score(server)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert most < 2**21


def test_endless_headers_end_with_the_time() -> None:
    """Or before it: a line is limited, and so is their number."""
    for answer in (endless(b"HTTP/1.1 200 OK\r\nX: ", b"x" * 2**16), endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n")):
        with RawServer(answer) as server, pytest.raises(TeacherAwayError):
            score(server, timeout_s=1.0)


def test_a_long_answer_to_a_long_question_is_read() -> None:
    """Of 4,000 tokens, each with a long text of its own: the bound grows with what was asked."""
    ids = list(range(1000, 5000))
    said = [None, *({str(token): {"logprob": -2.0, "rank": 1, "decoded_token": "☃" * 60}} for token in ids[1:])]
    with serving(with_length(completion(ids, prompt_logprobs=said))) as server:
        policy = OpenAIPolicy(server.url, model="teacher", timeout_s=30.0)
        [[values]] = policy.score([ids], [[(1, len(ids))]])
    assert values.tolist() == [-2.0] * 3999


def test_the_list_of_models_is_not_trusted_either() -> None:
    """Names that are none, and a list of something else; a name that is one is shown on a line."""
    with serving(with_length(completion(IDS))) as server:
        for cards in ([{"id": 7}], [{}], ["teacher"], {"id": "teacher"}, None):
            server.models = with_length(json.dumps({"data": cards}).encode())
            with pytest.raises(AlignmentError, match="does not list models"):
                score(server)
        server.models = with_length(json.dumps({"data": [{"id": "\x1b[2J\n" + "x" * 5000}]}).encode())
        with pytest.raises(InputError, match="has no model 'teacher'; it has") as caught:
            score(server)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "url",
    [
        "http://host:99999/v1",
        "http://host:x/v1",
        "http://ho st/v1",
        "http://h/\x1b[2J",
        "http://[::1",
        "http://me:secret@host/v1",
    ],
)
def test_addresses_that_are_none_are_refused(url: str) -> None:
    with pytest.raises(InputError, match="no address of a server") as caught:
        OpenAIPolicy(url, model=None, timeout_s=1.0)
    assert str(caught.value).isprintable()
