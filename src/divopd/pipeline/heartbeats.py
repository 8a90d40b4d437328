"""Heartbeats of the learner's ranks: one that hangs, by whatever cause, is found though its process is still there.

A process beats by a thread that touches a file (`beat`); an actor is asked by Ray (on_ray.py). Who started them looks
at the beats (`Heartbeats`): silence is counted by its own looks, so that a machine that slept, or a run that was
stopped with Ctrl-Z, finds nobody hung when it goes on.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

BEAT_S = 1.0
LONGEST_LOOK_S = 5.0  # what one look may add to a silence
START_S = 600.0  # a process that starts may be silent for so long: it loads its libraries


def beat(file: Path) -> Callable[[], object]:
    """Beat until the answer is called: touch a file every second, from a thread of its own."""
    over = threading.Event()

    def go_on() -> None:
        with suppress(OSError):  # the folder is gone: so is the run
            file.parent.mkdir(exist_ok=True)
            file.touch()
            while not over.wait(BEAT_S):
                file.touch()

    threading.Thread(target=go_on, name="heartbeat", daemon=True).start()
    return over.set


class Heartbeats:
    """How long each of several workers has been silent."""

    def __init__(self, limit_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s, self._clock = limit_s, clock
        self._last: dict[str, tuple[object, float, float]] = {}  # its newest sign, its silence, the moment of the look

    def look(self, name: str, sign: object) -> float | None:
        """Look at the newest sign of a worker, None before its first; seconds of silence if they are too many."""
        now = self._clock()
        before, silence, looked = self._last.get(name, (sign, 0.0, now))
        silence = 0.0 if sign != before else silence + min(now - looked, LONGEST_LOOK_S)
        self._last[name] = sign, silence, now
        limit = self._limit_s if sign is not None else max(self._limit_s, START_S)
        return silence if silence > limit else None

    def forget(self, name: str) -> None:
        """It is started again."""
        self._last.pop(name, None)
