"""One worker process as its pool sees it: what it was asked, how long it may take, and why it is gone."""

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple

from divopd.environments.wire import Frames, WireError, pack

WORKER = "divopd.environments.worker"
START_S = 300.0  # for Python and our own modules, on a machine that is very busy; no code of the user runs yet
SENDING_S = 30.0  # for the rest of an answer that has begun
ENDING_S = 2.0  # for environments that have something to put away when the pool closes
READ_AT_ONCE = 2**18  # bytes


class Request(NamedTuple):
    """A call that an environment is to make."""

    place: int
    method: str
    argument: str | None
    limit_s: float


class Told(NamedTuple):
    """What became of a request: the value that the worker answered with, or why there is none."""

    request: Request
    value: Any
    reason: str = ""


class WorkerProcess:
    """Starts when there is something to do; whatever goes wrong, it is killed, and the next request starts another."""

    def __init__(self, hello: dict[str, Any], *, read: Callable[[Request, dict[str, Any]], tuple[Any, bool]]) -> None:
        """`read` makes a value of a message, and says whether the rollout goes on; or it raises a WireError."""
        self._hello, self._read = hello, read
        self.waiting: deque[Request] = deque()
        self._asked: Request | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._lifeline = -1
        self._ready = False
        self._frames, self._unsent = Frames(), b""
        self._deadline = 0.0
        self._alive: set[int] = set()  # places whose rollout is in this process
        self._gone: dict[int, str] = {}  # places whose rollout ended with a process, and why that ended

    def register(self, poll: "select.poll") -> None:
        if self._socket is not None:
            poll.register(self._socket, select.POLLIN | (select.POLLOUT if self._unsent else 0))

    def look(self) -> list[Told]:
        """Go on without waiting for anything; returns what became of requests meanwhile."""
        told: list[Told] = []
        self._take(told)  # an end that nobody has noticed yet is not the fault of the next request
        told += self._advance()
        while self._take(told):
            told += self._advance()
        return told

    def close(self, *, at: float) -> None:
        """End it; environments have until the moment `at` to put things away. `stop_sending` comes first."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(max(0.0, at - time.monotonic()))
        self._kill("the pool is closed")

    def stop_sending(self) -> None:
        """Say that there will be no request any more."""
        self.waiting.clear()
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)

    # ── asking ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _advance(self) -> list[Told]:
        """Ask for the next thing if it is time to."""
        lost: list[Told] = []
        while self._asked is None and self.waiting:
            request = self.waiting.popleft()
            if request.method != "reset" and request.place not in self._alive:
                lost.append(Told(request, None, self._gone.get(request.place, "it has to be reset first")))
                continue
            try:
                if self._process is None:
                    self._start()
            except OSError as error:  # the machine has no process, no file or no memory left
                lost.append(Told(request, None, f"no worker process can be started ({error.strerror})"))
                continue
            self._asked = request
            if self._ready:
                self._send_request()
        return lost

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs, ExitStack() as on_error:
            on_error.callback(ours.close)
            reading, lifeline = os.pipe()
            on_error.callback(os.close, lifeline)
            with os.fdopen(reading, "rb"):
                process = subprocess.Popen(
                    [sys.executable, "-m", WORKER, str(theirs.fileno()), str(reading)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(), reading),
                    start_new_session=True,  # what it starts is killed with it
                )
            on_error.pop_all()
        ours.setblocking(False)
        self._process, self._socket, self._lifeline = process, ours, lifeline
        self._frames, self._ready = Frames(), False
        self._unsent = pack(self._hello)
        self._deadline = time.monotonic() + START_S

    def _send_request(self) -> None:
        assert self._asked is not None
        place, method, argument, limit_s = self._asked
        self._unsent = pack({"place": place, "method": method, "argument": argument})
        self._deadline = time.monotonic() + limit_s

    # ── hearing ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _take(self, told: list[Told]) -> bool:
        """Hear what the worker says; True: something is over, and the next thing may be asked."""
        if self._process is None or self._socket is None:
            return False
        try:
            self._send()
            if not self._receive():
                return self._give_up(told, self._end())
            message = self._frames.take()
        except WireError as error:
            return self._give_up(told, str(error))
        if message is not None:
            return self._heard(told, message)
        if self._process.poll() is not None and not self._readable():
            return self._give_up(told, self._end())
        if self._asked is not None and time.monotonic() > self._deadline:
            return self._give_up(told, self._too_late())
        return False

    def _heard(self, told: list[Told], message: dict[str, Any]) -> bool:
        if not self._ready and message == {"ready": True}:
            self._ready = True
            if self._asked is not None:
                self._send_request()
            return True
        if self._asked is None or not self._ready:
            return self._give_up(told, "answered without having been asked")
        try:
            value, goes_on = self._read(self._asked, message)
        except WireError as error:
            return self._give_up(told, str(error))
        request, self._asked = self._asked, None
        self._gone.pop(request.place, None)
        (self._alive.add if goes_on else self._alive.discard)(request.place)
        told.append(Told(request, value))
        return True

    def _give_up(self, told: list[Told], reason: str) -> bool:
        request = self._asked
        self._kill(reason)
        if request is None:
            return bool(self.waiting)
        told.append(Told(request, None, reason))
        return True

    def _send(self) -> None:
        assert self._socket is not None
        with suppress(BlockingIOError, OSError):  # a worker that is gone is noticed when it is read from
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]

    def _receive(self) -> bool:
        """Read what is there, up to the end of one message; False: the worker says nothing any more."""
        assert self._socket is not None
        while missing := self._frames.missing():
            had_begun = bool(self._frames)
            try:
                more = self._socket.recv(min(missing, READ_AT_ONCE))
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not more:
                return False
            self._frames.feed(more)
            if not had_begun:
                self._deadline = max(self._deadline, time.monotonic() + SENDING_S)
        return True

    def _readable(self) -> bool:
        assert self._socket is not None
        with suppress(OSError):
            return bool(self._socket.recv(1, socket.MSG_PEEK))
        return False

    def _end(self) -> str:
        assert self._process is not None
        try:
            code = self._process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            return "its process has closed its connection to the pool"
        known = {number.value: number.name for number in signal.Signals}
        how = f"ended with exit code {code}" if code >= 0 else f"was killed by {known.get(-code, f'signal {-code}')}"
        early = "" if self._ready else f" before it began; see that `{sys.executable} -m {WORKER} 0 0` starts"
        return f"its process {how}{early}"

    def _too_late(self) -> str:
        if not self._ready:
            return f"the worker process did not start within {START_S:g} s; is the machine out of memory?"
        assert self._asked is not None
        return f"{self._asked.method} did not return within {self._asked.limit_s:g} s (environment.timeout_s)"

    def _kill(self, reason: str) -> None:
        """End the process, and all that it started, now."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert self._socket is not None
        self._socket.close()
        os.close(self._lifeline)
        self._socket, self._asked, self._unsent = None, None, b""
        lost = f"the rollout is gone with the worker process that held it: {reason}"
        self._gone.update(dict.fromkeys(self._alive, lost))
        self._alive.clear()
