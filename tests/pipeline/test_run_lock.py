"""One command at a time works on a run: the second one is refused and told who is at it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from divopd.cli import main
from divopd.errors import InputError, RunBusyError
from divopd.pipeline.begin import begin_run, go_on
from divopd.records import Observers
from divopd.run.folder import RunFolder
from divopd.run.lock import RunLock
from divopd.store import Store
from small_runs import config
from waiting import processes_of, wait_for

FORKS = """
import os, sys, time
from divopd.run.lock import RunLock
with RunLock(sys.argv[1]):
    if os.fork() == 0:
        print(os.getpid(), flush=True)  # by the child: what it does after a fork has been done
    time.sleep(900)
"""


@pytest.mark.parametrize("clock", ["simulated", pytest.param("live", marks=pytest.mark.slow)])
def test_a_second_resume_names_the_first(
    clock: str, models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`train --resume` on a run that goes on: one line with the other's process, nothing touched, the first goes on;
    when that one was killed, the run can be had at once."""
    run = tmp_path / "run"
    plan = {"updates": 10_000, "checkpoint_every": 5_000}
    begin_run(config(models, clock=clock, learner=plan, evaluation={"every": 10_000, "tasks": 1}), run)

    def updates() -> int:
        with Store.open_read_only(run) as store:
            return store.updates

    command = [sys.executable, "-m", "divopd", "train", "--resume", str(run)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True) as first:
        try:
            wait_for(lambda: updates() > 0, while_=first)
            epoch = epoch_of(run)
            assert main(["train", "--resume", str(run)]) == 2
            said = capsys.readouterr().err
            assert f"process {first.pid}" in said
            assert f"train --resume {run}" in said
            assert said.count("\n") == 1
            assert epoch_of(run) == epoch
            seen = updates()
            wait_for(lambda: updates() > seen, while_=first)
        finally:
            first.kill()
    with RunLock(run):
        deadline = time.monotonic() + 60
        while processes_of(f"pipeline.roles {run} ") and time.monotonic() < deadline:
            time.sleep(0.1)  # roles notice that their parent is gone
    assert not processes_of(f"pipeline.roles {run} ")


def epoch_of(run: Path) -> int:
    """How many learners have begun."""
    with Store.open_read_only(run) as store:
        return store._one("SELECT epoch FROM state")


@pytest.mark.parametrize("changes", [{}, {"clock": "live"}, {"clock": "live", "cluster": "ray"}], ids=str)
def test_every_clock_and_ray_ask_for_the_run_first(changes: dict, tmp_path: Path) -> None:
    """Also by the library: before a model is loaded, a role is started or a cluster is joined."""
    settings = config(tmp_path / "no-models", **changes)
    begin_run(config(tmp_path / "no-models"), tmp_path / "run")
    with RunLock(tmp_path / "run"), pytest.raises(RunBusyError, match=f"process {os.getpid()}"):
        go_on(settings, tmp_path / "run", observer=Observers())


def test_two_commands_cannot_begin_the_same_run(tmp_path: Path) -> None:
    """Who comes second changes no file, also where the first one has not made the store yet."""
    settings, run = config(tmp_path / "no-models"), RunFolder(tmp_path)
    with RunLock(tmp_path), pytest.raises(RunBusyError):
        begin_run(settings, tmp_path)
    assert not run.config.exists()
    assert not run.store.exists()


def test_a_child_of_a_dead_command_does_not_hold_its_run(tmp_path: Path) -> None:
    """A process that was forked while the run was held, as an environment's may be, and outlives the command."""
    command = [sys.executable, "-c", FORKS, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        try:
            with pytest.raises(RunBusyError, match=f"process {holder.pid}"):
                RunLock(tmp_path).__enter__()
            holder.kill()
            holder.wait()
            os.kill(child, 0)  # it is alive
            with RunLock(tmp_path):
                pass
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("line", ["", "{", "[]", '{"command": 1}', '{"pid": "x"}', "\x1b" * 10_000])
def test_a_holder_that_does_not_say_who_it_is(line: str, tmp_path: Path) -> None:
    """The lock counts, not the line: what cannot be read is not believed."""
    with RunLock(tmp_path):
        RunFolder(tmp_path).lock.write_text(line)
        with pytest.raises(RunBusyError, match="does not say who"):
            RunLock(tmp_path).__enter__()


def test_a_folder_that_cannot_be_locked_is_told_in_a_line(tmp_path: Path) -> None:
    """No folder, or a file in its place."""
    (tmp_path / "file").touch()
    for place in (tmp_path / "none", tmp_path / "file"):
        with pytest.raises(InputError, match="cannot be written"):
            RunLock(place).__enter__()
