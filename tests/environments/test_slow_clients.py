"""Whether a program has heard an answer, where the program or the machine is slow."""

import json
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from divopd.environments.programs import replies
from divopd.environments.programs.endpoint import HEARD_S, Attempt, ChatCall, Endpoint
from program_desk import wait_for

LATE_S = HEARD_S + 0.5
LARGE = "door " * 2_000_000  # more than two sockets hold


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with closing(Endpoint()) as endpoint:
        yield endpoint


def asked(endpoint: Endpoint, attempt: Attempt, question: str) -> tuple[socket.socket, ChatCall]:
    """A client that has asked and reads nothing yet, and its call."""
    address = urlsplit(endpoint.address)
    client = socket.create_connection((str(address.hostname), int(address.port or 0)))
    body = json.dumps({"messages": [{"role": "user", "content": question}]})
    head = f"POST /v1/chat/completions HTTP/1.0\r\nHost: {address.netloc}\r\nAuthorization: Bearer {attempt.key}\r\n"
    client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    wait_for(lambda: attempt.waiting)
    call = endpoint.take(attempt)
    assert call is not None
    return client, call


@pytest.mark.slow
def test_an_answer_is_heard_by_a_client_that_takes_its_time(endpoint: Endpoint) -> None:
    """It reads a large answer after a while, when its rollout is over: heard. One that never reads has not heard."""
    attempt = endpoint.begin()
    (late, first), (never, second) = (asked(endpoint, attempt, question) for question in ("read late", "never read"))
    body = replies.completion(call="c", model="m", content=LARGE, calls=[], finish="stop", read=1, written=1)
    heard: list[bytes] = []

    def read() -> None:
        time.sleep(LATE_S)
        heard.extend(iter(lambda: late.recv(2**20), b""))
        late.close()

    reader = threading.Thread(target=read)
    with late, never:
        reader.start()
        for call in (first, second):
            endpoint.reply(call, 200, body)
        wait_for(lambda: select.select([late, never], [], [], 1) == ([late, never], [], []))  # both are being sent
        endpoint.revoke(attempt, "the test is over")
        assert endpoint.undelivered(attempt) == [second.number]
        reader.join()
    assert json.loads(b"".join(heard).partition(b"\r\n\r\n")[2]) == body
