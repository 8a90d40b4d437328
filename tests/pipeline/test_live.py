"""The live clock: real processes that meet in the run's folder, killed at any moment."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from divopd.audits.ledger import audit_ledger
from divopd.errors import DivopdError
from divopd.methods import METHODS
from divopd.pipeline.begin import begin_run
from divopd.pipeline.processes import LiveRun
from divopd.pipeline.wishes import Wishes
from divopd.records import Observers, UpdateRecord
from divopd.store import Store
from doubles.listener import Listener
from small_runs import config, outcome, train_small


def wait_for_updates(folder: Path, updates: int) -> None:
    with Store.open_read_only(folder) as store:
        while store.updates < updates:
            time.sleep(0.1)


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=[] if name == "divopd-r" else pytest.mark.slow) for name in METHODS]
)
def test_every_method_trains_to_the_end(models: Path, tmp_path: Path, method: str) -> None:
    """Three updates by processes of all roles, the last one evaluated, and an account that adds up."""
    changes = {"learner": {"updates": 3, "max_wait_s": 20}, "recovery": {"patience": 1, "takeover": 2}}
    settings = config(models, clock="live", method=method, **changes)
    train_small(tmp_path / "run", settings)
    _, account, rates = outcome(tmp_path / "run")
    assert sorted(rates) == [0, 3]
    assert account[1] >= 3  # trained


@pytest.mark.slow
@pytest.mark.crash
def test_killed_roles_lose_nothing_and_train_nothing_twice(models: Path, tmp_path: Path) -> None:
    """SIGKILL of each role in turn, ten times at random: the run ends, the ledger holds, the account adds up."""
    settings = config(models, clock="live", learner={"updates": 25, "checkpoint_every": 3, "max_wait_s": 5})
    begin_run(settings, tmp_path / "run")
    run = LiveRun(settings, tmp_path / "run", observer=Observers(), wishes=Wishes())
    source, over, kills = random.Random(0), threading.Event(), [*run.names, *run.names, *run.names][:10]

    def kill_sometimes() -> None:
        wait_for_updates(tmp_path / "run", 1)
        while kills and not over.wait(source.uniform(4, 7)):
            worker = run.workers[kills.pop(0)]
            assert isinstance(worker, subprocess.Popen)
            worker.send_signal(signal.SIGKILL)

    killing = threading.Thread(target=kill_sometimes, daemon=True)
    killing.start()
    run.run()
    over.set()
    killing.join()
    assert len(kills) < 5  # each role was killed at least once
    _, account, rates = outcome(tmp_path / "run")
    assert 25 in rates
    with Store.open(tmp_path / "run") as store:
        audit_ledger(store)
        assert store.updates == 25
        trained = [key for update in range(25) for key in store.journal(update).selected]
        assert len(trained) == len(set(trained))
        assert account[0] == store.arrived().turns


@pytest.mark.slow
def test_a_teacher_that_is_away_delays_and_loses_nothing(models: Path, tmp_path: Path) -> None:
    """The teacher stops for a minute: rollouts wait in the store, are scored later, and the run ends."""
    plan = {"updates": 40, "max_wait_s": 90}  # more than can be made of what was scored before
    settings = config(models, clock="live", learner=plan, evaluation={"every": 40})
    waiting: list[int] = []

    def pause(_record: UpdateRecord) -> None:
        if not waiting and len(listener.updates) >= 2:
            teacher = run.workers["teacher"]
            assert isinstance(teacher, subprocess.Popen)
            teacher.send_signal(signal.SIGSTOP)
            time.sleep(60)  # only who tells of the run sleeps; its roles go on
            with Store.open(tmp_path / "run") as store:
                waiting.append(len(store.unscored(1000)))
                assert store.updates < 40
            teacher.send_signal(signal.SIGCONT)

    listener = Listener(pause)
    begin_run(settings, tmp_path / "run")
    run = LiveRun(settings, tmp_path / "run", observer=listener, wishes=Wishes())
    run.run()
    assert waiting[0] > 0
    with Store.open_read_only(tmp_path / "run") as store:
        assert store.updates == 40
        assert store.account().adds_up


def test_the_preflight_comes_first(models: Path, tmp_path: Path) -> None:
    """A run whose student is gone says so, and no role is started."""
    settings = config(models, clock="live", student={"model": str(tmp_path / "nothing")})
    with pytest.raises(DivopdError, match=r"preflight refuses the run; its last words: .* no model there"):
        train_small(tmp_path / "run", settings)
    assert not (tmp_path / "run" / "learner.log").exists()


@pytest.mark.slow
def test_a_role_that_cannot_run_ends_the_run_with_its_words(models: Path, tmp_path: Path) -> None:
    """A bug in a user's environment ends the run instead of being restarted for ever."""
    fragile = Path(__file__).parents[1] / "fragile_room.py"
    settings = config(models, clock="live", environment={"name": f"{fragile}:BuggyRoom"})
    with pytest.raises(DivopdError, match=r"(explorer-0|evaluator) died 6 times, to no avail; .* ZeroDivisionError"):
        train_small(tmp_path / "run", settings)


@pytest.mark.slow
def test_ctrl_c_stops_cleanly_and_resume_goes_on(models: Path, tmp_path: Path) -> None:
    """Exit code 130, no role left behind, and --resume trains to the end."""
    settings = config(models, clock="live", learner={"updates": 12, "checkpoint_every": 50})
    begin_run(settings, tmp_path / "run")
    command = [sys.executable, "-m", "divopd", "train", "--resume", str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    wait_for_updates(tmp_path / "run", 3)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(60) == 130
    left = subprocess.run(["pgrep", "-f", str(tmp_path / "run")], capture_output=True, check=False)
    assert left.stdout == b""
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    with Store.open_read_only(tmp_path / "run") as store:
        assert store.updates == 12


@pytest.mark.slow
@pytest.mark.crash
def test_roles_do_not_outlive_the_process_that_started_them(models: Path, tmp_path: Path) -> None:
    """SIGKILL of `divopd train`: its roles stop by themselves, and --resume finds a run that nobody else works on."""
    settings = config(models, clock="live", learner={"updates": 1000})
    begin_run(settings, tmp_path / "run")
    process = subprocess.Popen(
        [sys.executable, "-m", "divopd", "train", "--resume", str(tmp_path / "run")], stdout=subprocess.DEVNULL
    )
    wait_for_updates(tmp_path / "run", 2)
    process.kill()
    process.wait()
    roles = ["pgrep", "-f", f"pipeline.roles {tmp_path / 'run'}"]
    deadline = time.monotonic() + 60
    while subprocess.run(roles, capture_output=True, check=False).stdout and time.monotonic() < deadline:
        time.sleep(0.2)
    assert subprocess.run(roles, capture_output=True, check=False).stdout == b""
