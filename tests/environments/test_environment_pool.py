"""Environments in worker processes: whatever one of them does costs its rollout, and nothing else."""

import gc
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from divopd.environments import Observation, make_environment, tasks
from divopd.environments.pool import (
    Answer,
    EnvironmentPool,
    InlinePool,
    Method,
    WorkerPool,
    Workers,
    environments_in,
    open_pool,
)
from divopd.errors import EnvironmentFailure, EnvironmentMistake, InputError
from waiting import is_alive

TESTS = Path(__file__).parents[1]
ROOM, HUNT = f"{TESTS / 'hostile_room.py'}:HostileRoom", f"{TESTS / 'coin_hunt.py'}:CoinHunt"
SOON_S = 2.0  # the limit of calls that hang
LATE_S = 100.0  # the limit of those that do not

HARMS = {  # what is done, and what is said of it
    "hang": "{method} did not return within {limit} s (environment.timeout_s)",
    "leave": "environment HostileRoom.{method} called sys.exit(0)",
    "vanish": "its process ended with exit code 5",
    "crash": "its process was killed by SIGSEGV",
    "divide": "environment HostileRoom.{method} raised ZeroDivisionError: division by zero (hostile_room.py, line",
    "interrupt": "{method} raised KeyboardInterrupt",
    "break": r"the roof\x1b[2J fell in",
    "bytes": "HostileRoom.{method} returned an Observation whose text is b'You are here.'; expected a string",
    "tuple": "environment HostileRoom.{method} returned a tuple; expected an Observation",
    "surrogate": r"text is 'You are \ud800.', with half a surrogate pair in it; expected text that can be written",
    "surrogate action": r"allowed_actions is a list with '\udfff', with half a surrogate pair in it",
    "not a number": "reward is nan; expected a finite number",
    "too large a number": "expected a finite number",
    "flood": "text is 50,000,000 characters long; expected at most 1,000,000",
    "flood of actions": "allowed_actions is a list of 3,000,000 characters; expected at most 1,000,000",
    "no JSON": "answered with what is no JSON",
    "no message": "answered with what is no message",
    "no observation": "answered with what is no observation",
    "nested": "answered with what is no JSON",
    "endless message": "answered with 4,294,967,295 bytes; expected at most 10,000,000",
    "cut off": "its process has closed its connection to the pool",
}


def ask(pool: EnvironmentPool, place: int, method: Method, argument: str | None = None) -> Answer:
    pool.submit(place, method, argument)
    while not (answers := pool.collect(timeout_s=1.0)):
        pass
    [answer] = answers
    assert answer.place == place
    return answer


def seen(answer: Answer) -> str:
    assert answer.failure is None, answer.failure
    assert isinstance(answer.value, Observation)
    return answer.value.text


@pytest.mark.parametrize(
    ("method", "harm"),
    [*(("step", harm) for harm in HARMS), *(("reset", harm) for harm in ("hang", "vanish", "tuple"))],
)
def test_whatever_an_environment_does_costs_its_rollout(method: Method, harm: str) -> None:
    """The answer is a failure of one line that says why; the neighbour goes on, and the next reset works."""
    timeout_s = SOON_S if harm == "hang" else LATE_S
    with closing(WorkerPool(ROOM, {}, size=2, workers=2, timeout_s=timeout_s)) as pool:
        assert seen(ask(pool, 1, "reset", "door")) == "door, turn 0"
        if method == "step":
            ask(pool, 0, "reset", "window")
        failed = ask(pool, 0, method, harm)
        assert failed.value is None
        said = str(failed.failure)
        limit = SOON_S * (3 if method == "reset" else 1)
        assert HARMS[harm].format(method=method, limit=f"{limit:g}") in said
        assert "\n" not in said
        assert "\x1b" not in said
        assert seen(ask(pool, 1, "step", "go")) == "go, turn 1"
        assert seen(ask(pool, 0, "reset", "window")) == "window, turn 0"
        assert seen(ask(pool, 0, "step", "go")) == "go, turn 1"


def test_a_mistake_in_a_class_is_told_from_a_failure() -> None:
    """Where there is nothing but the one rollout, a mistake is an input error; an honest failure is none."""
    with closing(WorkerPool(ROOM, {}, size=1, workers=1)) as pool:
        assert isinstance(ask(pool, 0, "reset", "tuple").failure, EnvironmentMistake)
        assert issubclass(EnvironmentMistake, InputError)
        assert not isinstance(ask(pool, 0, "reset", "break").failure, InputError)


def test_what_is_printed_costs_no_memory() -> None:
    """100 MB of prints are kept by nobody: neither here nor in the worker."""
    with closing(WorkerPool(ROOM, {}, size=1, workers=1, timeout_s=LATE_S)) as pool:
        ask(pool, 0, "reset", "door")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert seen(ask(pool, 0, "step", "say much")) == "quiet again"
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000
        assert int(seen(ask(pool, 0, "step", "memory"))) < 150_000  # kB


def test_a_worker_killed_from_outside_is_replaced() -> None:
    """Between two calls: the rollout is lost, with the reason; a reset is not, because a new process takes it."""
    with closing(WorkerPool(ROOM, {}, size=2, workers=1, timeout_s=LATE_S)) as pool:
        ask(pool, 1, "reset", "door")
        first = int(seen(ask(pool, 0, "reset", "pid")))
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: not is_alive(first))
        failure = str(ask(pool, 0, "step", "go").failure)
        assert "gone with the worker process that held it: its process was killed by SIGKILL" in failure
        assert int(seen(ask(pool, 0, "reset", "pid"))) != first
        assert "killed by SIGKILL" in str(ask(pool, 1, "step", "go").failure)
        assert seen(ask(pool, 1, "reset", "door")) == "door, turn 0"


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LATE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


ORPHANING = """
import sys
from divopd.environments.pool import open_pool
pool = open_pool(sys.argv[1], {}, size=1, timeout_s=3600)
pool.submit(0, "reset", "hold")
while True:
    pool.collect(timeout_s=60)
"""


def test_no_worker_outlives_its_parent(tmp_path: Path) -> None:
    """SIGKILL of the parent while an environment hangs, with a child of its own: all of them are gone."""
    note = tmp_path / "pids"
    command = [sys.executable, "-c", ORPHANING, ROOM]
    with subprocess.Popen(command, env=os.environ | {"HOSTILE_PIDS": str(note)}) as parent:
        wait_for(lambda: note.exists() and len(note.read_text(encoding="utf-8").split()) == 2)
        pids = [int(word) for word in note.read_text(encoding="utf-8").split()]
        assert all(map(is_alive, pids))
        parent.kill()
    wait_for(lambda: not any(map(is_alive, pids)))


def test_a_pool_that_is_closed_or_forgotten_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments that answer may put things away first; one that hangs is killed."""
    monkeypatch.setenv("HOSTILE_CLOSED", str(tmp_path / "closed"))
    pool = WorkerPool(ROOM, {}, size=2, workers=2, timeout_s=LATE_S)
    pids = [int(seen(ask(pool, place, "reset", "pid"))) for place in (0, 1)]
    pool.submit(0, "step", "hang")
    pool.close()
    assert not any(map(is_alive, pids))
    assert (tmp_path / "closed").exists()
    forgotten = WorkerPool(ROOM, {}, size=1, workers=1, timeout_s=LATE_S)
    pid = int(seen(ask(forgotten, 0, "reset", "pid")))
    del forgotten
    gc.collect()
    assert not is_alive(pid)


def test_a_machine_without_room_for_a_worker_costs_the_rollout() -> None:
    """No file can be opened any more: that is a failure with its reason, and when there is room again, it goes on."""
    with closing(WorkerPool(ROOM, {}, size=1, workers=1, timeout_s=LATE_S)) as pool:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            failed = ask(pool, 0, "reset", "door")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert "no worker process can be started (Too many open files)" in str(failed.failure)
        assert seen(ask(pool, 0, "reset", "door")) == "door, turn 0"


def test_who_collects_late_finds_the_answer() -> None:
    """The limit is for the environment: a policy may take longer than that before it asks for the answer."""
    with closing(WorkerPool(ROOM, {}, size=1, workers=1, timeout_s=SOON_S)) as pool:
        ask(pool, 0, "reset", "door")
        pool.submit(0, "step", "go")
        time.sleep(SOON_S + 1)
        [answer] = pool.collect()
        assert seen(answer) == "go, turn 1"


def test_nobody_waits_for_a_place_that_hangs() -> None:
    """Answers of other workers come while one hangs, also those of places that were asked after it."""
    with closing(WorkerPool(ROOM, {}, size=3, workers=3, timeout_s=3600)) as pool:
        for place in range(3):
            ask(pool, place, "reset", "door")
        for place, action in enumerate(("hang", "go", "pid")):
            pool.submit(place, "step", action)
        found: set[int] = set()
        while len(found) < 2:
            found |= {answer.place for answer in pool.collect(timeout_s=1.0)}
        assert found == {1, 2}


def test_places_that_share_a_worker_take_turns() -> None:
    """Three places in one process, asked together: all answer, each from its own environment."""
    with closing(WorkerPool(ROOM, {}, size=3, workers=1, timeout_s=LATE_S)) as pool:
        for place in range(3):
            pool.submit(place, "reset", f"door {place}")
        found: dict[int, str] = {}
        while len(found) < 3:
            found |= {answer.place: seen(answer) for answer in pool.collect(timeout_s=1.0)}
        assert found == {place: f"door {place}, turn 0" for place in range(3)}


def test_workers_answer_as_the_environment_itself_does() -> None:
    """A whole rollout of a user's class and of a native one, with what is allowed: the same in a worker as here."""
    for name in (HUNT, "alfworld-small"):
        task = tasks(name, "test")[0]
        here = InlinePool([make_environment(name)])
        with closing(open_pool(name, {}, size=1, workers=1, timeout_s=LATE_S)) as there:
            assert isinstance(there, WorkerPool)
            first = ask(here, 0, "reset", task)
            assert ask(there, 0, "reset", task) == first
            assert isinstance(first.value, Observation)
            for action in [*(first.value.allowed_actions or ["look"])[:3], "nonsense ü \N{GRINNING FACE}"]:
                assert ask(there, 0, "step", action) == ask(here, 0, "step", action)
                assert ask(there, 0, "valid_actions") == ask(here, 0, "valid_actions")


@pytest.mark.parametrize(
    ("name", "workers", "kind"),
    [
        (HUNT, "auto", WorkerPool),
        (HUNT, 0, InlinePool),
        ("alfworld-small", "auto", InlinePool),
        ("openenv", "auto", WorkerPool),
    ],
)
def test_foreign_code_runs_in_workers(name: str, workers: Workers, kind: type) -> None:
    """Unless the setting says otherwise: a user's class and servers in processes of their own, native ones here."""
    with closing(open_pool(name, {}, size=2, workers=workers)) as pool:
        assert isinstance(pool, kind)


def test_settings_that_cannot_be_used_end_it_at_once() -> None:
    """What is no fault of a rollout is an input error for whoever asks."""
    with (
        closing(open_pool("openenv", {}, size=1)) as pool,
        pytest.raises(InputError, match="the setting url is missing"),
    ):
        ask(pool, 0, "reset", "seed/1")


def test_a_place_of_a_pool_is_an_environment() -> None:
    """Its methods wait, and raise what went wrong; whoever waits is heard meanwhile."""

    class Enough(Exception):
        pass

    def stop() -> None:
        if asked:
            raise Enough

    asked: list[str] = []
    with closing(open_pool(ROOM, {}, size=1, timeout_s=3600)) as pool:
        [room] = environments_in(pool, heed=stop)
        assert room.reset("door").text == "door, turn 0"
        assert room.valid_actions() is None  # type: ignore[attr-defined]
        with pytest.raises(EnvironmentFailure, match="the roof"):
            room.step("break")
        room.reset("door")
        asked.append("to stop")
        with pytest.raises(Enough):
            room.step("hang")
