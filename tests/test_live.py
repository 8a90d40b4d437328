"""The live clock: real processes that meet in the run's folder, killed at any moment."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from divopd.audits.ledger import audit_ledger
from divopd.errors import DivopdError
from divopd.methods import METHODS
from divopd.pipeline.begin import begin_run
from divopd.pipeline.live import LiveRun
from divopd.store import Store
from divopd.turns import Rollout
from small_runs import config, outcome
from strategies import turn


def test_rollouts_wait_for_the_teacher_in_the_store(tmp_path: Path) -> None:
    """An unscored rollout is kept until it is put; both may be repeated; numbers are never given twice."""
    with Store.create(tmp_path / "store.db") as store:
        assert [store.reserve_rollouts(3), store.reserve_rollouts(2)] == [range(3), range(3, 5)]
        rows = Rollout("a", (turn("a", 0, teacher_logprobs=None), turn("a", 1, teacher_logprobs=None)))
        for _ in range(2):
            store.put_unscored(rows, generated_tokens=6)
        assert store.unscored(9) == [rows]
        store.put(Rollout("a", (turn("a", 0), turn("a", 1))))
        assert store.unscored(9) == []
        store.put_unscored(rows, generated_tokens=6)  # an explorer that was restarted tells it again
        assert store.unscored(9) == []
        assert store.spent() == (1, 2, 6, 10)
        assert store.backlog() == 2


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=[] if name == "divopd-r" else pytest.mark.slow) for name in METHODS]
)
def test_every_method_trains_to_the_end(models: Path, tmp_path: Path, method: str) -> None:
    """Three updates by processes of all roles, the last one evaluated, and an account that adds up."""
    changes = {"learner": {"updates": 3, "max_wait_s": 20}, "recovery": {"patience": 1, "takeover": 2}}
    settings = config(models, clock="live", method=method, **changes)
    begin_run(settings, tmp_path / "run")
    LiveRun(settings, tmp_path / "run", report=lambda kind, figures: None).run()
    _, account, rates = outcome(tmp_path / "run")
    assert sorted(rates) == [0, 3]
    assert account[1] >= 3  # trained


@pytest.mark.slow
@pytest.mark.crash
def test_killed_roles_lose_nothing_and_train_nothing_twice(models: Path, tmp_path: Path) -> None:
    """SIGKILL of each role in turn, ten times at random: the run ends, the ledger holds, the account adds up."""
    settings = config(models, clock="live", learner={"updates": 25, "checkpoint_every": 3, "max_wait_s": 5})
    begin_run(settings, tmp_path / "run")
    run = LiveRun(settings, tmp_path / "run", report=lambda kind, figures: None)
    source, kills, last = random.Random(0), [*run.names, *run.names, *run.names][:10], time.monotonic()

    def kill_sometimes() -> None:
        nonlocal last
        if kills and time.monotonic() - last > source.uniform(4, 7):
            last = time.monotonic()
            run.workers[kills.pop(0)].send_signal(signal.SIGKILL)

    tell = run._tell
    run._tell = lambda store: (kill_sometimes(), tell(store))  # type: ignore[method-assign]
    run.run()
    _, account, rates = outcome(tmp_path / "run")
    assert 25 in rates
    with Store.open_read_only(tmp_path / "run") as store:
        audit_ledger(store)
        assert store.updates == 25
        trained = [key for update in range(25) for key in store.journal(update).selected]
        assert len(trained) == len(set(trained))
        assert account[0] == store.spent().turns


@pytest.mark.slow
def test_a_teacher_that_is_away_delays_and_loses_nothing(models: Path, tmp_path: Path) -> None:
    """The teacher stops for a while: rollouts wait in the store, are scored later, and the run ends."""
    settings = config(models, clock="live", learner={"updates": 8, "max_wait_s": 60})
    begin_run(settings, tmp_path / "run")
    run = LiveRun(settings, tmp_path / "run", report=lambda kind, figures: None)
    waiting: list[int] = []
    began = time.monotonic()
    paused = False
    tell = run._tell

    def pause(store: Store) -> None:
        nonlocal paused
        if not paused and store.updates >= 2:
            os.kill(run.workers["teacher"].pid, signal.SIGSTOP)
            time.sleep(60)
            waiting.append(len(store.unscored(1000)))
            os.kill(run.workers["teacher"].pid, signal.SIGCONT)
            paused = True
        tell(store)

    run._tell = pause  # type: ignore[method-assign]
    run.run()
    assert waiting[0] > 0
    assert time.monotonic() - began > 60
    with Store.open_read_only(tmp_path / "run") as store:
        assert store.updates == 8
        assert store.account().adds_up


def test_the_preflight_comes_first(models: Path, tmp_path: Path) -> None:
    """A run whose student is gone says so, and no role is started."""
    settings = config(models, clock="live", student={"model": str(tmp_path / "nothing")})
    begin_run(settings, tmp_path / "run")
    with pytest.raises(DivopdError, match=r"preflight refuses the run; its last words: .* no model there"):
        LiveRun(settings, tmp_path / "run", report=lambda kind, figures: None).run()
    assert not (tmp_path / "run" / "learner.log").exists()


@pytest.mark.slow
def test_a_role_that_cannot_run_ends_the_run_with_its_words(models: Path, tmp_path: Path) -> None:
    """A bug in a user's environment ends the run instead of being restarted for ever."""
    fragile = Path(__file__).parent / "fragile_room.py"
    settings = config(models, clock="live", environment={"name": f"{fragile}:BuggyRoom"})
    begin_run(settings, tmp_path / "run")
    with pytest.raises(DivopdError, match=r"(explorer-0|evaluator) died 6 times, to no avail; .* ZeroDivisionError"):
        LiveRun(settings, tmp_path / "run", report=lambda kind, figures: None).run()


@pytest.mark.slow
def test_ctrl_c_stops_cleanly_and_resume_goes_on(models: Path, tmp_path: Path) -> None:
    """Exit code 130, no role left behind, and --resume trains to the end."""
    settings = config(models, clock="live", learner={"updates": 12, "checkpoint_every": 50})
    begin_run(settings, tmp_path / "run")
    command = [sys.executable, "-m", "divopd", "train", "--resume", str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    with Store.open_read_only(tmp_path / "run") as store:
        while store.updates < 3:
            time.sleep(0.1)
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
    with Store.open_read_only(tmp_path / "run") as store:
        while store.updates < 2:
            time.sleep(0.1)
    process.kill()
    process.wait()
    roles = ["pgrep", "-f", f"pipeline.roles {tmp_path / 'run'}"]
    deadline = time.monotonic() + 60
    while subprocess.run(roles, capture_output=True, check=False).stdout and time.monotonic() < deadline:
        time.sleep(0.2)
    assert subprocess.run(roles, capture_output=True, check=False).stdout == b""
