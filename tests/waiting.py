"""Waiting for what a process does."""

import subprocess
import time
from collections.abc import Callable


def wait_for(condition: Callable[[], object], *, while_: subprocess.Popen[str], seconds: float = 240.0) -> None:
    """Until the condition holds; it is an error if the process ends or the time runs out before."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert while_.poll() is None, (while_.returncode, while_.stderr and while_.stderr.read())
        assert time.monotonic() < deadline
        time.sleep(0.05)
