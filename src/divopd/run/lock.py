"""One command at a time works on a run; whoever comes second is told who is at it.

    with RunLock(folder):
        ...

What is made while a run is held is readable by its owner only. The lock is the kernel's (flock): it goes with the
process that holds it, however that dies, so a lock is never left behind. The line in the file
says who holds it, and is for people only.
"""

import fcntl
import json
import os
import socket
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakSet

from divopd.errors import InputError, RunBusyError
from divopd.run.card import command_line
from divopd.run.folder import RunFolder

MAX_LINE_BYTES = 4_096


@dataclass(frozen=True)
class Holder:
    """Who works on a run: a command, where, as which process, since when."""

    command: str
    host: str
    pid: int
    since: str

    def __str__(self) -> str:
        return f"`{self.command}` on {self.host}, process {self.pid}, since {self.since}"


class RunLock:
    """Holds a run while it is entered; a RunBusyError that names the holder if another command does."""

    def __init__(self, folder: Path | str) -> None:
        self._run = RunFolder(folder)
        self._descriptor: int | None = None

    def __enter__(self) -> "RunLock":
        file = self._run.lock
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise InputError(
                f"{file}: cannot be written ({error.strerror}); expected the folder of a run that you may write"
            ) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _read_holder(descriptor)
            os.close(descriptor)
            raise RunBusyError(
                f"{self._run.path}: another command works on this run ({holder or 'it does not say who it is'}); "
                "wait for its end, or stop it first"
            ) from None
        except OSError as error:
            os.close(descriptor)
            raise InputError(
                f"{file}: cannot be locked ({error.strerror}); keep runs on a disk that knows locks, "
                "which their store needs too"
            ) from None
        self._descriptor = descriptor
        _HELD.add(self)
        _PRIVACY.begin()
        _write_line(descriptor, json.dumps(asdict(_this_process())))
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            _PRIVACY.end()
            _write_line(self._descriptor, "")
            self.drop()

    def drop(self) -> None:
        """Let go without a word: of a process that was forked, whose parent holds the run."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class _Privacy:
    """The umask of the process while it holds a run, or several; roles inherit it."""

    def __init__(self) -> None:
        self._lock, self._held, self._usual = Lock(), 0, 0

    def begin(self) -> None:
        with self._lock:
            if not self._held:
                self._usual = os.umask(0o077)
            self._held += 1

    def end(self) -> None:
        with self._lock:
            self._held -= 1
            if not self._held:
                os.umask(self._usual)


_PRIVACY = _Privacy()
_HELD: "WeakSet[RunLock]" = WeakSet()


def _drop_all() -> None:
    for lock in list(_HELD):
        lock.drop()


# a child would keep the lock alive after the death of the command
os.register_at_fork(after_in_child=_drop_all)


def _this_process() -> Holder:
    since = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return Holder(command_line(sys.argv), socket.gethostname(), os.getpid(), since)


def _write_line(descriptor: int, line: str) -> None:
    with suppress(OSError):  # a full disk: the lock holds all the same
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, line.encode("utf-8", errors="replace")[:MAX_LINE_BYTES], 0)


def _read_holder(descriptor: int) -> Holder | None:
    try:
        told: dict[str, Any] = json.loads(os.pread(descriptor, MAX_LINE_BYTES, 0))
        return Holder(str(told["command"]), str(told["host"]), int(told["pid"]), str(told["since"]))
    except (ValueError, KeyError, TypeError, OSError):
        return None
