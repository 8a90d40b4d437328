"""What somebody outside asks of `divopd train` while it goes on: SIGTERM stops it after a checkpoint, SIGUSR1 asks for
a checkpoint alone. Schedulers of clusters send both.

The signals are heard in a thread, by a pipe into which they write: a process that computes one long operation hears
them too, and ends in time.
"""

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from divopd.printable import tell

TERMINATED = 143  # the exit code after SIGTERM: 128 + 15


class Stopped(Exception):
    """The run is to stop; raised where a run or a role can stop without losing anything."""


class Wishes:
    """A run looks here wherever it could stop. Without signals there are no wishes."""

    def __init__(self) -> None:
        self.to_stop = False
        self.end_roles: Callable[[], None] = lambda: None  # whoever starts processes says how to end them at once
        self._checkpoint = False

    def check(self) -> None:
        """Stop here if the run is to stop."""
        if self.to_stop:
            raise Stopped

    def ask_checkpoint(self) -> None:
        self._checkpoint = True

    def take_checkpoint(self) -> bool:
        """Whether a checkpoint has been asked for since the last time that this was called."""
        wanted, self._checkpoint = self._checkpoint, False
        return wanted


@contextmanager
def wishes_by_signal(*, grace_s: float, resume: str) -> Iterator[Wishes]:
    """Hear SIGTERM and SIGUSR1 from here on. The process ends when it still runs `grace_s` seconds after a SIGTERM.

    `resume` is the command that goes on with the run. Only the main thread of a process can hear signals.
    """
    listener = _Listener(grace_s=grace_s, resume=resume)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    former = {number: signal.signal(number, _noted) for number in (signal.SIGTERM, signal.SIGUSR1)}
    former_pipe = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    thread = threading.Thread(target=listener.listen, args=(reading,), daemon=True)
    thread.start()
    try:
        yield listener.wishes
    finally:
        if not listener.wishes.to_stop:  # else it sees to it that the process ends in time
            signal.set_wakeup_fd(former_pipe)
            for number, handler in former.items():
                signal.signal(number, handler)
            os.close(writing)
            thread.join()
            os.close(reading)


def _noted(_number: int, _frame: FrameType | None) -> None:
    """Nothing is left to do: the signal's number is in the pipe."""


class _Listener:
    def __init__(self, *, grace_s: float, resume: str) -> None:
        self.wishes = Wishes()
        self.grace_s, self.resume = grace_s, resume

    def listen(self, pipe: int) -> None:
        """Read the numbers of signals until the pipe is closed, or the process has to end."""
        end_by: float | None = None
        while True:
            left = None if end_by is None else max(0.0, end_by - time.monotonic())
            if not select.select([pipe], [], [], left)[0]:
                self._end(f"not done {self.grace_s:g} s after SIGTERM")
            numbers = os.read(pipe, 64)
            if not numbers:
                return
            for number in numbers:
                if number == signal.SIGUSR1:
                    _say("SIGUSR1: makes a checkpoint and goes on")
                    self.wishes.ask_checkpoint()
                elif number == signal.SIGTERM and end_by is not None:
                    self._end("a second SIGTERM")
                elif number == signal.SIGTERM:
                    end_by = time.monotonic() + self.grace_s
                    _say(
                        f"SIGTERM: makes a checkpoint and ends within {self.grace_s:g} s, a second SIGTERM ends it at "
                        f"once; go on with: {self.resume}"
                    )
                    self.wishes.to_stop = True

    def _end(self, why: str) -> None:
        _say(f"{why}: ended without a checkpoint; --resume goes on from the last one")
        try:
            self.wishes.end_roles()
        finally:
            sys.stdout.flush()
            os._exit(TERMINATED)


def _say(words: str) -> None:
    tell(words)
