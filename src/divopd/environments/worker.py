"""A worker process: it holds environments and does what a pool asks of them, one call after the other.

    python -m divopd.environments.worker SOCKET LIFELINE

Both are numbers of open files. Nothing that an environment prints gets between the messages: they have a socket of
their own. LIFELINE is the reading end of a pipe that the pool holds open and never writes to: when the pool's process
dies, in whatever way, the kernel kills this process and all that it started, even if an environment hangs.
"""

import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import Any

from divopd.environments import make_environment
from divopd.environments.checked import CheckedEnvironment
from divopd.environments.wire import Frames, observation_to_json, pack
from divopd.errors import EnvironmentFailure, EnvironmentMistake, InputError

ENDED = 3  # exit code of a worker whose pool is gone


def main(connection: str, lifeline: str) -> None:
    _die_with_the_pool(int(lifeline))
    with socket.socket(fileno=int(connection)) as stream:
        stream.set_inheritable(False)  # what an environment starts must not hold it open
        receive = _receiver(stream)
        if (hello := receive()) is None:
            return
        sys.path[:] = hello["path"]
        environments = Environments(hello["name"], hello["settings"])
        stream.sendall(pack({"ready": True}))
        while (request := receive()) is not None:
            stream.sendall(pack(environments.answer(**request)))
        environments.close()


class Environments:
    """The environments of this process, by their places in the pool; each is made at its first reset."""

    def __init__(self, name: str, settings: dict[str, Any]) -> None:
        self._make = lambda: make_environment(name, **settings)
        self._made: dict[int, CheckedEnvironment] = {}

    def answer(self, *, place: int, method: str, argument: str | None) -> dict[str, Any]:
        """What a call returned, or why it failed; an environment that failed by a mistake is made anew."""
        try:
            if place not in self._made:
                made = self._make()
                self._made[place] = made if isinstance(made, CheckedEnvironment) else CheckedEnvironment(made)
            call = getattr(self._made[place], method)
            returned = call() if argument is None else call(argument)
        except EnvironmentMistake as mistake:
            self._made.pop(place, None)
            return {"mistake": str(mistake)}
        except EnvironmentFailure as failure:
            return {"failure": str(failure)}
        except InputError as error:
            return {"refusal": str(error)}
        except BaseException as error:  # not even what is no Exception may end the process without a word
            self._made.pop(place, None)
            return {"mistake": f"{method} raised {type(error).__name__}"}
        return {"actions": returned} if method == "valid_actions" else {"seen": observation_to_json(returned)}

    def close(self) -> None:
        """The pool has closed: whoever has something to put away may do so."""
        for environment in self._made.values():
            with suppress(Exception):
                getattr(environment, "close", lambda: None)()


def _receiver(stream: socket.socket) -> Callable[[], dict[str, Any] | None]:
    frames = Frames()

    def receive() -> dict[str, Any] | None:
        """The next request; None: there will be none."""
        while (request := frames.take()) is None:
            if not (more := stream.recv(frames.missing())):
                return None
            frames.feed(more)
        return request

    return receive


def _die_with_the_pool(lifeline: int) -> None:
    """Let the kernel kill this process group when the pipe closes; where it cannot, a thread does."""
    os.set_inheritable(lifeline, False)
    try:
        import fcntl

        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)  # Linux only
        fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    except (ImportError, AttributeError, OSError):
        Thread(target=_watch, args=(lifeline,), daemon=True).start()
        return
    with suppress(BlockingIOError):  # it is open
        os.read(lifeline, 1)
        os._exit(ENDED)  # it was closed before the kernel knew whom to tell


def _watch(lifeline: int) -> None:
    os.read(lifeline, 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
