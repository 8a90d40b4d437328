"""A time limit for foreign code that runs in this process: an environment's file, its list of tasks, their kinds."""

import signal
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

from divopd.errors import InputError

AGAIN_S = 1.0  # the code may have swallowed the first interruption


class _Late(BaseException):
    """No Exception, so that ordinary code does not take it for one of its own."""


@contextmanager
def limited(what: str, *, seconds: float) -> Generator[None]:
    """An InputError if the body takes longer, with what was called.

    It interrupts Python, not a library that never comes back to it. Only the main thread can be interrupted: in others
    there is no limit, nor on systems without such a timer.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise _Late

    before = signal.signal(signal.SIGALRM, interrupt)
    others_s, _ = signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)
    began = time.monotonic()
    try:
        yield
    except _Late:
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise InputError(f"{what} did not return within {seconds:g} s (setting loading_s of the environment)") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before or signal.SIG_DFL)
        if others_s:  # somebody else's timer goes on
            signal.setitimer(signal.ITIMER_REAL, max(0.001, others_s - (time.monotonic() - began)))
