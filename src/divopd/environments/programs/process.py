"""One program at work: started for one attempt, heard with a limit, and killed with all that it started."""

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from divopd.environments.programs import launcher
from divopd.errors import EnvironmentFailure

MOST_OUTPUT = 64 * 1024  # bytes of the program's output that are kept, the last ones
MOST_OUTCOME = 64 * 1024  # bytes of the file with the outcome
READ_AT_ONCE = 2**16
SWEEPS = 5  # for what a program starts while it is being killed
KEY, BASE_URL, TASK_FILE, OUTCOME_FILE = "OPENAI_API_KEY", "OPENAI_BASE_URL", "TASK_FILE", "OUTCOME_FILE"


class Outcome(NamedTuple):
    """How a task ended, as the program says it."""

    success: bool = False
    reward: float = 0.0


class ProgramProcess:
    """A program with its files. `output` is the end of what it has printed, on both streams together."""

    def __init__(self, command: Sequence[str], task: Mapping[str, Any], *, key: str, base_url: str) -> None:
        """An OSError means that the machine has no process, no file or no room left."""
        self._key, self.output = key, b""
        self._folder = tempfile.TemporaryDirectory(prefix="divopd-program-", ignore_cleanup_errors=True)
        try:
            files = {
                TASK_FILE: Path(self._folder.name, "task.json"),
                OUTCOME_FILE: Path(self._folder.name, "outcome.json"),
            }
            files[TASK_FILE].write_text(json.dumps(task, ensure_ascii=False), encoding="utf-8", errors="replace")
            self._outcome = files[OUTCOME_FILE]
            told = {KEY: key, BASE_URL: base_url} | {name: str(file) for name, file in files.items()}
            self._start(command, _environment() | told)
        except BaseException:
            self._folder.cleanup()
            raise

    def _start(self, command: Sequence[str], environment: dict[str, str]) -> None:
        reading, self._lifeline = os.pipe()
        self._out, writing = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", launcher.__file__, str(reading), *command],
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                pass_fds=(reading,),
                env=environment,
                start_new_session=True,  # what it starts is killed with it
            )
        except BaseException:
            os.close(self._lifeline)
            os.close(self._out)
            raise
        finally:
            os.close(reading)
            os.close(writing)
        os.set_blocking(self._out, False)

    def hear(self) -> None:
        """Take what it has printed since. A program that prints more than is taken waits."""
        with suppress(BlockingIOError):
            while piece := os.read(self._out, READ_AT_ONCE):
                self.output = (self.output + piece)[-MOST_OUTPUT:]
                if len(piece) < READ_AT_ONCE:
                    break

    @property
    def exit_code(self) -> int | None:
        """None as long as it runs."""
        return self._process.poll()

    def outcome(self) -> Outcome:
        """What it has written about its task: nothing means that it failed at it."""
        try:
            with self._outcome.open("rb") as file:
                content = file.read(MOST_OUTCOME + 1)
        except FileNotFoundError:
            return Outcome()
        except OSError as error:
            raise EnvironmentFailure(f"{OUTCOME_FILE} cannot be read ({error.strerror})") from None
        return read_outcome(content)

    def end(self) -> None:
        """Kill it and all that it started, take the last of its output and remove its files."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        sweep(self._key)
        self.hear()
        os.close(self._out)
        os.close(self._lifeline)
        self._folder.cleanup()

    @property
    def ending(self) -> str:
        """How it ended, for people."""
        code = self._process.returncode
        if code == launcher.NOT_STARTED:
            return "it could not be started"
        known = {number.value: number.name for number in signal.Signals}
        return (
            f"it ended with exit code {code}"
            if code >= 0
            else f"it was killed by {known.get(-code, f'signal {-code}')}"
        )

    @property
    def words(self) -> str:
        """The end of its output as text."""
        return self.output.decode("utf-8", "replace")


def read_outcome(content: bytes) -> Outcome:
    """`{"success": true, "reward": 1.0}`; without a reward it is 1 for a success and 0 otherwise."""
    wanted = f'{OUTCOME_FILE} holds {content[:60]!r}; expected {{"success": true, "reward": 1.0}}'
    try:
        said: Any = json.loads(content) if len(content) <= MOST_OUTCOME else None
        success = said["success"]
        reward = float(said.get("reward", success))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise EnvironmentFailure(wanted) from None
    if not isinstance(success, bool) or not math.isfinite(reward):
        raise EnvironmentFailure(wanted)
    return Outcome(success, reward)


def sweep(key: str) -> None:
    """Kill what has left the program's process group: on Linux it is known by the key in its environment."""
    mark = f"{KEY}={key}".encode()
    for _ in range(SWEEPS):
        found = [pid for pid in _processes() if mark in _environ(pid)]
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            return


def _processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    except OSError:  # another system
        return []


def _environ(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # another user's, or gone
        return []


def _environment() -> dict[str, str]:
    """Ours, with no proxy between the program and the endpoint on this machine."""
    direct = "127.0.0.1,localhost"
    around = {name: ",".join(filter(None, [os.environ.get(name), direct])) for name in ("NO_PROXY", "no_proxy")}
    return dict(os.environ) | around
