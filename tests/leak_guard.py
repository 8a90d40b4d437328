"""No test leaves a thread, a process, a port or a temporary folder behind: it would fail, or hold up, another one.

A pytest plugin. What is there after a test and was not there before makes the test fail, with its name. A fixture of a
module or of the session may keep things as long as it lives: it is set up before the test is looked at, and what it
started must be gone when it is torn down. Processes that such a fixture starts later are registered with `kept`, those
that the product itself keeps between two uses with `keep`.
"""

import ctypes
import gc
import multiprocessing.resource_tracker
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

PATIENCE_S = 5.0  # for what is about to end
LISTENING = "0A"  # in /proc/net/tcp
SUBREAPER = 36  # of prctl: the children of a child that died become ours, so that they are found
PROC = "/proc"  # without it, threads and folders are all that is looked at
CACHES = ("pymp-", "torchinductor_")  # of multiprocessing and torch: of the process, not of a test


@dataclass(frozen=True)
class Kept:
    """Processes that the product keeps between two uses, and how to end them."""

    pids: Callable[[], Iterable[int]]
    end: Callable[[], object]


_kept: list[Kept] = []
_told: set[tuple[str, object]] = set()  # what somebody has been blamed for
_session: list[pytest.Session] = []
_folder: list[Path] = []


def keep(pids: Callable[[], Iterable[int]], *, end: Callable[[], object]) -> None:
    """Let these processes live from test to test; they are ended with the session, and must be gone then."""
    _kept.append(Kept(pids, end))


@contextmanager
def kept(pids: Callable[[], Iterable[int]]) -> Iterator[None]:
    """Let these processes live from test to test; whoever says so ends them afterwards."""
    one = Kept(pids, lambda: None)
    _kept.append(one)
    yield
    _kept.remove(one)


# ── what is there ─────────────────────────────────────────────────────────────────────────────────────────────────


def threads() -> list[threading.Thread]:
    """Those that Python would wait for at its end."""
    return [one for one in threading.enumerate() if one is not threading.main_thread() and not one.daemon]


def children() -> dict[int, str]:
    """Child processes that are alive, with their commands."""
    found: dict[int, str] = {}
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # there is none, dead or alive: that is quickly said
        return found
    for number in _descended():
        with suppress(OSError):  # it has just ended
            state, parent = _read(f"{PROC}/{number}/stat").rpartition(")")[2].split()[:2]
            if int(parent) == os.getpid() and state not in "ZX":
                found[number] = _read(f"{PROC}/{number}/cmdline").replace("\0", " ").strip()
    return found


def _descended() -> list[int]:
    """Children of this process where the system lists them, which is quickly read; else all processes."""
    if os.path.exists(f"{PROC}/self/task/{os.getpid()}/children"):
        numbers: list[int] = []
        for task in os.listdir(f"{PROC}/self/task"):
            with suppress(OSError):  # a thread that has just ended: its children are another's by now
                numbers += map(int, _read(f"{PROC}/self/task/{task}/children").split())
        return numbers
    return [int(name) for name in os.listdir(PROC) if name.isdigit()] if os.path.isdir(PROC) else []


def _read(file: str) -> str:
    with open(file, errors="replace") as stream:
        return stream.read()


def ports() -> dict[str, int]:
    """Ports on which this process listens, by the number of the socket."""
    own, found = f"{PROC}/self/fd", {}
    sockets = set()
    for name in os.listdir(own) if os.path.isdir(own) else ():
        with suppress(OSError):  # the descriptor by which the folder is read
            if (target := os.readlink(f"{own}/{name}")).startswith("socket:["):
                sockets.add(target[len("socket:[") : -1])
    for table in ("tcp", "tcp6") if sockets else ():
        with suppress(FileNotFoundError):
            for fields in map(str.split, _read(f"{PROC}/self/net/{table}").splitlines()[1:]):
                if fields[3] == LISTENING and fields[9] in sockets:
                    found[fields[9]] = int(fields[1].rpartition(":")[2], 16)
    return found


def folders() -> list[Path]:
    """All that lies in the temporary folder, which is this run's own."""
    place = Path(tempfile.gettempdir())
    return [place / name for name in os.listdir(place) if not name.startswith(CACHES)]


def traces() -> dict[tuple[str, object], str]:
    """All that could be left behind: its kind and identity, and what to call it."""
    kept = {pid for one in _kept for pid in one.pids()}
    found: dict[tuple[str, object], str] = {
        **{("thread", id(one)): f"thread {one.name}" for one in threads()},
        **{("process", pid): f"process {pid} ({words})" for pid, words in children().items() if pid not in kept},
        **{("port", socket): f"port {number}" for socket, number in ports().items()},
        **{("folder", path): f"temporary {path}" for path in folders()},
    }
    return {key: words for key, words in found.items() if key not in _told}


# ── when it is looked at ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="session", autouse=True)
def _session_leaves_nothing() -> Iterator[None]:
    before = traces()
    yield
    for one in _kept:
        one.end()
    _kept.clear()
    refuse_leftovers(before, "the session or one of its fixtures")


@pytest.fixture(scope="module", autouse=True)
def _module_leaves_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    before = traces()
    yield
    refuse_leftovers(before, f"a fixture of {request.node.nodeid}")


@pytest.fixture(autouse=True)
def _test_leaves_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    before = traces()
    yield
    refuse_leftovers(before, request.node.nodeid)


def refuse_leftovers(before: dict[tuple[str, object], str], who: str) -> None:
    """Fail if something new stays; what can be removed is removed, so that no other test is blamed for it."""

    def new() -> dict[tuple[str, object], str]:
        return {key: words for key, words in traces().items() if key not in before}

    if not new():
        return
    gc.collect()  # what nobody refers to any more may end by that
    deadline = time.monotonic() + PATIENCE_S
    while (left := new()) and time.monotonic() < deadline:
        time.sleep(0.05)
    _told.update(left)
    for kind, what in left:
        if kind == "process":
            with suppress(ProcessLookupError):
                os.kill(int(str(what)), signal.SIGKILL)
        elif kind == "folder":
            remove(Path(str(what)))
    if left:
        pytest.fail(f"{who} left behind: {', '.join(sorted(left.values()))}", pytrace=False)


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


# ── the run as a whole ────────────────────────────────────────────────────────────────────────────────────────────


def pytest_configure() -> None:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # tmp_path stays where one looks for it
    _folder.append(Path(tempfile.mkdtemp(prefix="dv-")))  # short: paths of sockets may not be long
    os.environ["TMPDIR"] = tempfile.tempdir = str(_folder[0])
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # torch compiles at once, not in a pool that stays
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    tracker = multiprocessing.resource_tracker._resource_tracker  # a process that Python itself starts and ends
    keep(lambda: filter(None, [getattr(tracker, "_pid", None)]), end=lambda: None)


def pytest_sessionstart(session: pytest.Session) -> None:
    _session.append(session)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_unconfigure(config: pytest.Config) -> Iterator[None]:
    """Python waits for threads before it ends; those that are still there now would be waited for for ever."""
    try:
        yield
    finally:  # whatever other plugins find fault with
        shutil.rmtree(_folder[0], ignore_errors=True)
        if left := threads():
            names = ", ".join(f"thread {one.name}" for one in left)
            config.get_terminal_writer().line(f"not waited for: {names}", flush=True)
            os._exit(int(_session[0].exitstatus) if _session and _session[0].exitstatus else 1)
