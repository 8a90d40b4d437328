"""What each role of a run does now: one small file a process, which `divopd watch` reads and nobody else needs.

A process that dies leaves its file behind; the moment in it says how long ago that was.
"""

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

OFTEN_S = 1.0  # between two words about the same


@dataclass(frozen=True)
class Now:
    """What a role does: `what`, and how far it is with it, if that can be counted."""

    role: str
    what: str
    done: int | None
    of: int | None
    at: float  # seconds since the epoch

    @property
    def sentence(self) -> str:
        """evaluating version 0: 35 of 140"""
        if self.done is None:
            return self.what
        return f"{self.what}, {self.done} so far" if self.of is None else f"{self.what}: {self.done} of {self.of}"


class Doing:
    """Says what a process does, at most once a second as long as it is the same; `write` gets each word."""

    def __init__(self, write: Callable[[Now], object], *, clock: Callable[[], float] = time.time) -> None:
        self._write, self._clock = write, clock
        self._last: Now | None = None

    def __call__(self, role: str, what: str, done: int | None = None, of: int | None = None) -> None:
        now, last = Now(role, what, done, of, at=self._clock()), self._last
        if last is None or (role, what) != (last.role, last.what) or now.at - last.at >= OFTEN_S:
            self._write(now)
            self._last = now


def silent(role: str, what: str, done: int | None = None, of: int | None = None) -> None:
    """Of a process that nobody watches."""


def write_now(folder: Path, name: str, now: Now) -> None:
    """Put a word where `read_now` finds it, whole. A folder that cannot be written is no error: nobody needs it."""
    partial = folder / f".{name}.{os.getpid()}"
    with suppress(OSError):
        folder.mkdir(exist_ok=True)
        partial.write_text(json.dumps(asdict(now)), encoding="utf-8")
        partial.replace(folder / f"{name}.json")


def read_now(folder: Path) -> dict[str, Now]:
    """The last word of every process that is at work, by its name; what cannot be read is left out."""
    found: dict[str, Now] = {}
    for file in sorted(folder.glob("*.json")):
        with suppress(OSError, ValueError, TypeError):
            said = json.loads(file.read_text(encoding="utf-8"))
            found[file.stem] = Now(**{**said, "at": float(said["at"])})
    return found


def forget_now(folder: Path) -> None:
    """The processes of a run have ended."""
    with suppress(OSError):
        for file in (*folder.glob("*.json"), *folder.glob(".*")):
            file.unlink(missing_ok=True)
        folder.rmdir()
