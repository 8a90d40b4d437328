"""One JVM with one ScienceWorld simulator in it, called over py4j's wire with a time limit.

The package's own class starts a JVM whose heap grows to gigabytes and lists about 500 valid actions after every
action. This module starts the package's simulator with a small heap and calls only what is asked for; actions go to
the simulator's agent itself, past a layer that keeps a history and prints every name of every thing in sight.
Several simulators in one JVM give wrong scores under threads, so each environment has its own.
"""

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from queue import Empty, Queue
from subprocess import DEVNULL, PIPE, Popen
from threading import Thread
from typing import IO, Any

from divopd.environments.scienceworld.java_wire import JavaError, JavaWire, Ref
from divopd.errors import EnvironmentFailure, InputError, MissingExtraError

# without a limit the heap grows to 0.9–2.4 GB; with one, and a small start, the process stays near 0.2 GB
JAVA_OPTIONS = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC")
_PAST_THE_AGENT = ("help", "objects", "task")  # words that the layer above the agent answers


def find_java() -> str:
    """The java program of JAVA_HOME or of the PATH; an InputError that says how to get one if there is none."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=os.path.join(home, "bin")) if home else shutil.which("java")
    if found is None:
        where = f"JAVA_HOME ({home})" if home else "PATH"
        raise InputError(
            f"ScienceWorld needs java (8 or newer): none in {where}; install one (Debian: apt install "
            "openjdk-17-jre-headless, macOS: brew install openjdk) or set JAVA_HOME"
        )
    return found


def check_installed() -> None:
    """The package, then java: an InputError names what is missing and how to get it."""
    if find_spec("scienceworld") is None:
        raise MissingExtraError("ScienceWorld", "scienceworld")
    find_java()


class Simulator:
    """A running simulator. Any failure of a call ends the JVM: what it held is lost, and a new one is needed."""

    def __init__(self, *, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._wire: JavaWire | None = None
        self._agent: Ref | None = None
        self.process = _start()
        try:
            port, token = self._greeting()
            self._wire = JavaWire(int(port), token, timeout_s=timeout_s)
            self._interface = self._wire.create("scienceworld.runtime.pythonapi.PythonInterface")
        except (Empty, ValueError, OSError, JavaError) as error:
            self.stop()
            raise EnvironmentFailure(
                f"ScienceWorld's JVM did not start within {timeout_s:g} s ({type(error).__name__}: {error}); "
                "is the machine out of memory, or very busy?"
            ) from None

    def call(self, method: str, *arguments: str | int | bool) -> Any:
        """Call a method of the simulator; a JVM that dies, throws or stays silent is an EnvironmentFailure."""
        return self._guard(method, lambda wire: wire.call(self._interface, method, *arguments))

    def call_list(self, method: str) -> list[str]:
        """As `call`, for a method that returns a Java list: its items are fetched one by one."""

        def fetch(wire: JavaWire) -> list[str]:
            listed = wire.refer(self._interface, method)
            items = [str(wire.call(listed, "get", number)) for number in range(int(wire.call(listed, "size")))]  # type: ignore[arg-type]
            wire.release(listed)
            return items

        return self._guard(method, fetch)

    def load(self, task_type: str, variation: int, simplifications: str, *, gold_path: bool) -> None:
        """Start a task."""
        self.call("load", task_type, variation, simplifications, gold_path)

        def find_agent(wire: JavaWire) -> Ref:
            option = wire.refer(self._interface, "agentInterface")
            agent = wire.refer(option, "get")
            for old in filter(None, (option, self._agent)):
                wire.release(old)
            return agent

        self._agent = self._guard("load", find_agent)

    def act(self, action: str) -> tuple[str, float, bool]:
        """Do an action in the task: what is seen, the score (1 is all) and whether the task counts as completed."""
        if action.strip().lower() in _PAST_THE_AGENT:
            return self.call("step", action), self.call("getScore"), self.call("getCompleted")

        def ask_agent(wire: JavaWire) -> Any:
            assert self._agent is not None
            triple = wire.call(self._agent, "step", action)
            assert isinstance(triple, Ref)
            text, score, completed = (wire.call(triple, part) for part in ("_1", "_2", "_3"))
            wire.release(triple)
            return text, score, completed

        return self._guard("act", ask_agent)

    def stop(self) -> None:
        """End the JVM now; harmless when it has ended."""
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.close()
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def _guard(self, what: str, call: Callable[[JavaWire], Any]) -> Any:
        if self._wire is None:
            raise EnvironmentFailure(f"ScienceWorld: {what}: the JVM has ended; reset the environment")
        try:
            return call(self._wire)
        except TimeoutError:
            cause = f"no answer within {self.timeout_s:g} s"
        except JavaError as error:
            cause = f"an exception in the JVM ({error})"
        except OSError as error:
            cause = f"its JVM ended ({error})"
        self.stop()
        raise EnvironmentFailure(f"ScienceWorld: {what}: {cause}; this rollout is lost, the next reset starts another")

    def _greeting(self) -> tuple[str, str]:
        """The port and the token, which the gateway prints first."""
        lines: Queue[str] = Queue()
        assert self.process.stdout is not None
        Thread(target=_drain, args=(self.process.stdout, lines), daemon=True).start()
        return lines.get(timeout=self.timeout_s), lines.get(timeout=self.timeout_s)


def _start() -> Popen[bytes]:
    try:
        from py4j.java_gateway import find_jar_path
        from scienceworld.constants import BASEPATH, JAR_PATH
    except ImportError:
        raise MissingExtraError("ScienceWorld", "scienceworld") from None
    classpath = os.pathsep.join((find_jar_path(), JAR_PATH))
    # the JVM ends with us: it stops when its standard input closes. The token keeps other users of the machine out
    options = ["-classpath", classpath, "py4j.GatewayServer", "--die-on-broken-pipe", "--enable-auth", "0"]
    command = [find_java(), *JAVA_OPTIONS, *options]
    # the simulator leaves a table of types in its working folder, so that is the package's own, as in the package
    return Popen(command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, cwd=BASEPATH)


def _drain(stream: IO[bytes], first_two: "Queue[str]") -> None:
    """Hand over the first two lines and read the rest away: a JVM whose output nobody reads stands still."""
    with stream:
        for number, line in enumerate(stream):
            if number < 2:
                first_two.put(line.decode("ascii", "replace").strip())
    first_two.put("")  # an early end must not look like a slow start
    first_two.put("")
