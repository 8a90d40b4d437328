"""Waiting for what a process does."""

import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def wait_for(condition: Callable[[], object], *, while_: subprocess.Popen[str], seconds: float = 240.0) -> None:
    """Until the condition holds; it is an error if the process ends or the time runs out before."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert while_.poll() is None, (while_.returncode, while_.stderr and while_.stderr.read())
        assert time.monotonic() < deadline
        time.sleep(0.05)


def processes_of(words: str) -> list[str]:
    """The command lines of the processes that have these words in them; this machine need not have pgrep."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has just ended
            line = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            found += [line] if words in line else []
    return found


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that is dead and that nobody has asked for its exit code does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
