"""The endpoint: an OpenAI-compatible server on loopback to which programs come with a key of their own.

A key is made for one attempt at one rollout: it says whose call it is, and it is the permission. Requests wait here,
in threads of the server, until whoever plays the rollout has taken the call and replied. When the attempt is over its
key is revoked, and whatever still comes with it is refused (409).
"""

import hashlib
import json
import re
import secrets
import select
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from divopd.environments.programs import replies
from divopd.environments.programs.requests import Refused, read_request
from divopd.loopback import LOOPBACK, Handler, Server

MOST_BYTES = 16 * 2**20  # of a request
MOST_AT_ONCE = 64  # calls of a program that wait for an answer
MOST_TOLD = 20  # refusals whose sentences are kept
TAKEN_S = 10.0  # for a client to take an answer
HEARD_S = 5.0  # for a client to close its connection after an answer
RETRY = "x-stainless-retry-count"  # how OpenAI's clients say that they ask again
_ROUTE = re.compile(r"(?:/agent/([A-Za-z0-9._-]{1,64}))?/v1/(chat/completions|models)")
MAIN = "main"  # the label of an agent that has none

Json = dict[str, Any]


@dataclass(eq=False)
class ChatCall:
    """A chat completion that a program asks for. `delivered` is None as long as nobody knows."""

    number: int
    agent: str
    digest: bytes
    request: Json
    arrived_at: float
    reply: tuple[int, Json] | None = None
    delivered: bool | None = None
    connections: list[socket.socket] = field(default_factory=list)


@dataclass(eq=False)
class Attempt:
    """One attempt at one rollout: its key, and the calls that came with it."""

    key: str
    calls: list[ChatCall] = field(default_factory=list)
    waiting: deque[ChatCall] = field(default_factory=deque)
    revoked: str = ""  # why
    refused: list[str] = field(default_factory=list)  # sentences, the first ones
    refusals: int = 0  # all of them
    late: int = 0  # calls after the end


class Endpoint:
    """Serves every attempt of a pool. It listens from the first attempt on, in threads of its own."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._attempts: dict[bytes, Attempt] = {}  # by a digest of the key
        self._server: Server | None = None

    @property
    def address(self) -> str:
        assert self._server is not None, "nobody has begun an attempt"
        return f"http://{LOOPBACK}:{self._server.server_port}/v1"

    def begin(self) -> Attempt:
        """A new attempt, with a key that nobody else has."""
        if self._server is None:
            self._server = _Server((LOOPBACK, 0), type("Own", (_Requests,), {"endpoint": self}))
            threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        attempt = Attempt(f"sk-divopd-{secrets.token_urlsafe(32)}")
        with self.changed:
            self._attempts[_digest(attempt.key.encode())] = attempt
        return attempt

    def take(self, attempt: Attempt) -> ChatCall | None:
        """The next call that waits, if there is one: the taker replies to it."""
        with self.changed:
            return attempt.waiting.popleft() if attempt.waiting else None

    def reply(self, call: ChatCall, status: int, body: Json) -> None:
        with self.changed:
            call.reply = (status, body)
            self.changed.notify_all()

    def revoke(self, attempt: Attempt, why: str) -> None:
        """Answer nothing any more: what waits is refused, and so is what comes later."""
        with self.changed:
            attempt.revoked = why
            attempt.waiting.clear()
            for call in attempt.calls:
                call.reply = call.reply or _late(why)
            self.changed.notify_all()

    def undelivered(self, attempt: Attempt) -> list[int]:
        """The calls of a revoked attempt whose answers the program has not heard; waits until that is known.

        Each answer has its own limits of time (`_deliver`), so this wait has none: on a machine that is busy, a thread
        that knows better would come too late, and its row would be lost.
        """
        with self.changed:
            while any(call.delivered is None for call in attempt.calls):
                self.changed.wait()
            undelivered = [call.number for call in attempt.calls if not call.delivered]
            attempt.calls = []  # the key alone is remembered, for calls that come too late
            return undelivered

    def wait(self, seconds: float) -> None:
        """Until something changes, or so long."""
        with self.changed:
            self.changed.wait(seconds)

    def close(self) -> None:
        """Stop listening; attempts that are under way are revoked."""
        for attempt in list(self._attempts.values()):
            if not attempt.revoked:
                self.revoke(attempt, "the run has ended")
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    # ── for the threads of the server ─────────────────────────────────────────────────────────────────────────────

    def admitted(self, key: str) -> Attempt:
        """Whose key it is; an unknown or a revoked one is refused."""
        with self.changed:
            attempt = self._attempts.get(_digest(key.encode("utf-8", "replace")))
            if attempt is None:
                raise Refused(
                    "the key is not known here; expected OPENAI_API_KEY of the program", status=401, code="key"
                )
            if attempt.revoked:
                attempt.late += 1
                raise Refused(_sentence(attempt.revoked), status=409, code="over")
            return attempt

    def note_refusal(self, attempt: Attempt, refused: Refused) -> None:
        with self.changed:
            attempt.refusals += 1
            attempt.refused.append(refused.sentence)
            del attempt.refused[MOST_TOLD:]

    def call_for(
        self, attempt: Attempt, *, agent: str, digest: bytes, request: Json, is_retry: bool, connection: socket.socket
    ) -> ChatCall:
        """The call that a request makes; a client's retry joins the call that it did not hear the answer of."""
        with self.changed:
            if attempt.revoked:
                raise Refused(_sentence(attempt.revoked), status=409, code="over")
            known = [one for one in attempt.calls if (one.agent, one.digest) == (agent, digest) and not one.delivered]
            call = next((one for one in known if _is_lost(one)), None) if is_retry else None
            if call is None:
                if sum(one.reply is None for one in attempt.calls) >= MOST_AT_ONCE:
                    raise Refused(
                        f"more than {MOST_AT_ONCE} calls at once; ask for less at a time", status=429, code="many"
                    )
                call = ChatCall(len(attempt.calls), agent, digest, request, time.monotonic())
                attempt.calls.append(call)
                attempt.waiting.append(call)
            call.delivered = None
            call.connections.append(connection)
            self.changed.notify_all()
            return call

    def replied(self, call: ChatCall) -> tuple[int, Json]:
        """Wait for the reply to a call."""
        with self.changed:
            while call.reply is None:
                self.changed.wait()
            return call.reply

    def tell_delivered(self, call: ChatCall, connection: socket.socket, *, delivered: bool) -> None:
        with self.changed:
            call.connections.remove(connection)
            call.delivered = delivered or (None if call.connections else bool(call.delivered))
            self.changed.notify_all()


class _Server(Server):
    request_queue_size = 128  # programs ask in bursts


class _Requests(Handler):
    """One request, in a thread of its own. Every answer closes its connection: so it is known to have arrived."""

    endpoint: Endpoint
    timeout = 60  # seconds for a request: a program that has begun one may have to wait for its turn on this machine

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def _serve(self) -> None:
        if not self.is_welcome():
            return
        try:
            attempt = self.endpoint.admitted(self.headers.get("Authorization", "").removeprefix("Bearer ").strip())
        except Refused as refused:
            self._refuse(refused)
            return
        try:
            self._answer(attempt)
        except Refused as refused:
            self.endpoint.note_refusal(attempt, refused)
            self._refuse(refused)

    def _answer(self, attempt: Attempt) -> None:
        route = _ROUTE.fullmatch(self.place)
        if route is None or (route[2] == "models") != (self.command == "GET"):
            raise Refused(
                f"{self.command} {self.place[:80]} is not served; expected POST /v1/chat/completions, or GET /v1/models"
            )
        if route[2] == "models":
            self._send(HTTPStatus.OK, replies.models())
            return
        body = self._body()
        request = read_request(body)
        call = self.endpoint.call_for(
            attempt,
            agent=route[1] or MAIN,
            digest=_digest(json.dumps(body, sort_keys=True).encode("utf-8", "replace")),
            request=request,
            is_retry=self.headers.get(RETRY, "0").strip() not in ("", "0"),
            connection=self.connection,
        )
        delivered = False
        try:
            status, reply = self.endpoint.replied(call)
            delivered = self._deliver(status, reply, request)
        finally:
            self.endpoint.tell_delivered(call, self.connection, delivered=delivered)

    def _deliver(self, status: int, reply: Json, request: Json) -> bool:
        """Send the reply; whether the client has heard it: it closes the connection after the last byte, not before."""
        if _is_closed(self.connection):
            return False
        try:
            self.connection.settimeout(TAKEN_S)
            if status == HTTPStatus.OK and request["stream"]:
                events = replies.as_events(reply, usage=request["usage"])
                self.send(HTTPStatus.OK, events, "text/event-stream")
            else:
                self._send(HTTPStatus(status), reply)
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_WR)
        except OSError:  # it went, or took nothing for so long
            return False
        try:
            self.connection.settimeout(HEARD_S)
            self.connection.recv(1)
        except TimeoutError:
            return True  # it keeps the connection open, but did not break it off
        except OSError:
            return False
        return True

    def _body(self) -> object:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MOST_BYTES:
            raise Refused(
                f"the body has {length[:20] or 'no'} bytes; expected at most {MOST_BYTES}", status=413, code="size"
            )
        try:
            return json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            raise Refused("the body is no JSON; expected that of a chat completion", code="invalid") from None

    def _refuse(self, refused: Refused) -> None:
        # a client that asks again would hear the same, unless it asked for too much at once
        again = "true" if refused.status == HTTPStatus.TOO_MANY_REQUESTS else "false"
        with suppress(OSError):
            body = replies.error(refused.sentence, code=refused.code)
            self._send(HTTPStatus(refused.status), body, x_should_retry=again)

    def _send(self, status: HTTPStatus, body: Json, **headers: str) -> None:
        self.send(status, replies.as_json(body), "application/json", **headers)


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def _sentence(why: str) -> str:
    return f"this rollout is over ({why}); its key is no longer answered"


def _late(why: str) -> tuple[int, Json]:
    return 409, replies.error(_sentence(why), code="over")


def _is_lost(call: ChatCall) -> bool:
    """Whether nobody listens for the answer any more."""
    return all(_is_closed(connection) for connection in call.connections)


def _is_closed(connection: socket.socket) -> bool:
    """Whether the other side has gone; one that has more to say has not."""
    try:
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        return bool(poll.poll(0)) and connection.recv(1, socket.MSG_PEEK) == b""
    except (OSError, ValueError):  # reset, or closed by us
        return True
