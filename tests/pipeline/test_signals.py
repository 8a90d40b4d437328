"""SIGTERM and SIGUSR1 to `divopd train`: a checkpoint of the newest update, the exit code, and the way back."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from divopd.config import Config
from divopd.pipeline.begin import begin_run
from divopd.pipeline.wishes import Stopped, Wishes
from divopd.run.checkpoints import latest_checkpoint
from divopd.store import Store
from divopd.turns import Turn
from small_runs import config, outcome, train_small
from waiting import processes_of, wait_for

SELDOM = {"explorer": {"sync_interval": 2}}


@contextmanager
def training(run: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """`divopd train --resume` as a process, which is ended at last."""
    command = [sys.executable, "-m", "divopd", "train", "--resume", str(run), *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=run)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def updates(run: Path) -> int:
    """Updates that were trained and recorded."""
    with Store.open_read_only(run) as store:
        return len(store.update_records())


def checkpointed(run: Path) -> int:
    """The newest update in a checkpoint; -1 if there is none."""
    newest = latest_checkpoint(run / "checkpoints")
    return -1 if newest is None else int(newest.name)


def turns(run: Path) -> list[Turn]:
    """All that was put, with its log probabilities."""
    with Store.open_read_only(run) as store:
        return list(store.turns())


class Impatient(Wishes):
    """Wants the run to stop when it is asked for the n-th time."""

    def __init__(self, patience: int) -> None:
        super().__init__()
        self.patience = patience

    def check(self) -> None:
        self.patience -= 1
        self.to_stop = self.patience < 0
        super().check()


def stop_often(folder: Path, settings: Config) -> set[tuple[int, int]]:
    """Train with many stops, each after one turn more; where they were: versions of the learner and of explorers."""
    begin_run(settings, folder)
    seen = set()
    for patience in count(3):
        try:
            train_small(folder, settings, wishes=Impatient(patience))
            break
        except Stopped:
            assert checkpointed(folder) == updates(folder) - 1
            seen.add(versions(folder))
    return seen


def versions(folder: Path) -> tuple[int, int]:
    """Of the learner and of explorers, as the newest checkpoint has them."""
    newest = latest_checkpoint(folder / "checkpoints")
    if newest is None:
        return 0, 0
    state = json.loads((newest / "state.json").read_text(encoding="utf-8"))
    assert state["version"] == state["world"]["version"]
    return state["version"], state["world"]["acting_version"]


@pytest.mark.parametrize(
    "changes",
    [pytest.param({}, marks=pytest.mark.slow), SELDOM, pytest.param({"method": "turnopd"}, marks=pytest.mark.slow)],
    ids=["plain", "seldom sync", "turnopd"],
)
def test_a_run_stopped_anywhere_goes_on_as_if_it_never_had(models: Path, tmp_path: Path, changes: dict) -> None:
    """Stops between any two turns of exploring and evaluating: the same ledger, success rates and log probabilities."""
    settings = config(models, learner={"updates": 6, "checkpoint_every": 50}, **changes)
    train_small(tmp_path / "whole", settings)
    seen = stop_often(tmp_path / "stopped", settings)
    assert outcome(tmp_path / "stopped") == outcome(tmp_path / "whole")
    assert turns(tmp_path / "stopped") == turns(tmp_path / "whole")
    assert len(seen) >= 4
    assert (changes == SELDOM) == any(acting < version for version, acting in seen)


def test_sigusr1_checkpoints_and_sigterm_stops(models: Path, tmp_path: Path) -> None:
    """On the simulated clock: SIGUSR1 makes a checkpoint and the run goes on; SIGTERM says so, saves the newest update
    and exits with 143. How a run goes on that was asked to stop is above."""
    settings = config(models, learner={"updates": 60, "checkpoint_every": 1000}, evaluation={"every": 60, "tasks": 1})
    run = tmp_path / "run"
    begin_run(settings, run)
    with training(run) as process:
        assert process.stderr is not None
        wait_for(lambda: updates(run) >= 2, while_=process)
        process.send_signal(signal.SIGUSR1)
        assert process.stderr.readline() == "divopd: SIGUSR1: makes a checkpoint and goes on\n"
        wait_for(lambda: checkpointed(run) >= 1, while_=process)
        middle = checkpointed(run)
        wait_for(lambda: updates(run) > middle + 2, while_=process)
        process.send_signal(signal.SIGTERM)
        said = process.stderr.read()
        assert process.wait() == 143
    assert said == (
        "divopd: SIGTERM: makes a checkpoint and ends within 25 s, a second SIGTERM ends it at once; "
        f"go on with: divopd train --resume {run}\n"
    )
    assert middle + 2 < updates(run) < 60
    assert checkpointed(run) == updates(run) - 1


@pytest.mark.slow
def test_a_second_sigterm_ends_a_run_at_once(models: Path, tmp_path: Path) -> None:
    """An environment that does not answer keeps the first SIGTERM waiting; the second one ends the process."""
    room = Path(__file__).parents[1] / "fragile_room.py"
    begin_run(config(models, environment={"name": f"{room}:StuckRoom", "workers": 0}), tmp_path / "run")
    with training(tmp_path / "run", "--grace", "900") as process:
        assert process.stderr is not None
        wait_for(lambda: (tmp_path / "run" / "stuck").exists(), while_=process)
        process.send_signal(signal.SIGTERM)
        assert "ends within 900 s" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.stderr.read() == (
            "divopd: a second SIGTERM: ended without a checkpoint; --resume goes on from the last one\n"
        )
        assert process.wait() == 143


@pytest.mark.slow
def test_a_second_sigterm_ends_all_roles(models: Path, tmp_path: Path) -> None:
    """On the live clock: the explorer hangs in an environment; the second SIGTERM leaves no role behind."""
    room = Path(__file__).parents[1] / "fragile_room.py"
    run = tmp_path / "run"
    begin_run(config(models, clock="live", environment={"name": f"{room}:StuckRoom", "workers": 0}), run)
    with training(run, "--grace", "900") as process:
        assert process.stderr is not None
        wait_for(lambda: (run / "stuck").exists(), while_=process)
        process.send_signal(signal.SIGTERM)
        assert "ends within 900 s" in process.stderr.readline()
        wait_for(lambda: roles(run) == {"explorer-0"}, while_=process)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 143
    deadline = time.monotonic() + 60
    while roles(run) and time.monotonic() < deadline:  # they are killed, which takes the system a moment
        time.sleep(0.05)
    assert roles(run) == set()


def roles(run: Path) -> set[str]:
    """The roles of a run that are at work."""
    return {line.split()[-2] for line in processes_of(f"pipeline.roles {run} ")}  # before the number of its parent


WAITING = """
import sys, time
from divopd.pipeline.wishes import wishes_by_signal
with wishes_by_signal(grace_s=float(sys.argv[1]), resume="divopd train --resume RUN") as wishes:
    wishes.end_roles = lambda: print("roles ended", flush=True)
    print("ready", flush=True)
    time.sleep(900)
"""


def test_what_cannot_end_in_time_is_ended() -> None:
    """Longer than the grace after SIGTERM: roles are ended, it is said what --resume does, and the code is 143."""
    with subprocess.Popen(
        [sys.executable, "-c", WAITING, "0.2"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        out, said = process.communicate()
    assert process.returncode == 143
    assert out == "roles ended\n"
    assert said.splitlines()[1:] == [
        "divopd: not done 0.2 s after SIGTERM: ended without a checkpoint; --resume goes on from the last one"
    ]


def test_a_second_sigterm_ends_at_once() -> None:
    """However long the grace is: roles are ended, and nothing is waited for."""
    with subprocess.Popen(
        [sys.executable, "-c", WAITING, "900"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert "ends within 900 s" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        out, said = process.communicate()
    assert (process.returncode, out) == (143, "roles ended\n")
    assert said == "divopd: a second SIGTERM: ended without a checkpoint; --resume goes on from the last one\n"


def test_signals_are_as_before_when_the_run_is_over(models: Path, tmp_path: Path) -> None:
    """A run that came to its end leaves no thread, no pipe and the handlers that it found."""
    from divopd.pipeline.wishes import wishes_by_signal

    def state() -> tuple[object, object, int, int]:
        handlers = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGUSR1)
        return *handlers, threading.active_count(), len(os.listdir("/proc/self/fd"))

    before = state()
    with wishes_by_signal(grace_s=1, resume="") as wishes:
        assert state() != before
        assert not wishes.take_checkpoint()
    assert state() == before
