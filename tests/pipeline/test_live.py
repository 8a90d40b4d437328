"""The live clock: real processes that meet in the run's folder, killed at any moment."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from divopd.audits.ledger import audit_ledger
from divopd.audits.timing import audit_time
from divopd.errors import DivopdError
from divopd.methods import METHODS
from divopd.pipeline.access import Access, WeightsFolder
from divopd.pipeline.begin import begin_run
from divopd.pipeline.live import LiveWorld
from divopd.pipeline.processes import LiveRun
from divopd.pipeline.wishes import Wishes
from divopd.records import Observers, UpdateRecord, decode_evaluation, decode_update
from divopd.run.folder import RunFolder
from divopd.store import Store
from doubles.hashing_learner import HashingLearner
from doubles.listener import Listener
from small_runs import config, outcome, train_small
from waiting import processes_of, wait_for


def wait_for_updates(folder: Path, updates: int) -> None:
    with Store.open_read_only(folder) as store:
        while store.updates < updates:
            time.sleep(0.1)


@pytest.mark.slow
def test_a_role_whose_parent_died_while_it_was_starting_ends(models: Path, tmp_path: Path) -> None:
    """It knows by number who started it: when it looks, that process is not its parent any more."""
    begin_run(config(models, clock="live"), tmp_path / "run")
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    command = [sys.executable, "-m", "divopd.pipeline.roles", str(tmp_path / "run"), "explorer-0", str(gone.pid)]
    assert subprocess.run(command, capture_output=True, check=False, timeout=120).returncode == 0


class OneTensor(HashingLearner):
    """Weights that can be written as a file."""

    def weights(self) -> dict[str, torch.Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return {"weight": torch.zeros(1)}


@pytest.mark.parametrize(
    ("keep_last", "kept"),
    [
        (0, [0, 3, 6, 8, 9, 10, 12]),  # evaluated, or among the newest three that explorers may be reading
        (1, [0, 3, 6, 8, 9, 10, 12, 13]),
        (4, [0, 3, 6, 8, 9, 10, 11, 12, 13]),  # the last four updates started from 9 to 12, the next one starts from 13
    ],
)
def test_explorers_take_synced_versions_and_old_ones_go(
    keep_last: int, kept: list[int], models: Path, tmp_path: Path
) -> None:
    """With a sync every second update, explorers never see what only the evaluator or an audit wants."""
    settings = config(
        models,
        clock="live",
        explorer={"sync_interval": 2},
        evaluation={"every": 3},
        learner={"updates": 14},
        audits={"keep_last": keep_last},
    )
    begin_run(settings, tmp_path)
    run = RunFolder(tmp_path)
    with Store.open(tmp_path) as store:
        access = Access(settings, store, WeightsFolder(run), is_over=lambda: False, folder=run)
        world, seen = LiveWorld(access, run), []
        for version in range(14):
            world.publish(version, OneTensor())
            world.publishing.settle()
            seen.append(access.newest_version())
    assert seen == [0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12]
    assert run.versions() == kept


@pytest.mark.slow  # tests/wiring has live runs among the default tests
@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_to_the_end(models: Path, tmp_path: Path, method: str) -> None:
    """Three updates by processes of all roles, the last one evaluated, and an account that adds up."""
    changes = {"learner": {"updates": 3, "max_wait_s": 20}, "recovery": {"patience": 1, "takeover": 2}}
    settings = config(models, clock="live", method=method, **changes)
    train_small(tmp_path / "run", settings)
    _, account, rates = outcome(tmp_path / "run")
    assert sorted(rates) == [0, 3]
    assert account[1] >= 3  # trained
    time = audit_time(tmp_path / "run")
    assert 0 < time.estimate_s <= time.elapsed_s  # what is neither an update nor a wait is missing in the estimate
    assert min(time.step_s) > 0


class WithoutTeacher(LiveRun):
    """When explorers are started, the teachers have their weights, and the file with them goes."""

    def start(self, name: str) -> subprocess.Popen[bytes]:
        if name.startswith("explorer"):
            deadline = time.monotonic() + 120
            while not all((self.folder.now / f"{one}.json").exists() for one in ("teacher", "teacher-1")):
                assert time.monotonic() < deadline
                time.sleep(0.1)
            (Path(self.config.teacher.model) / "model.safetensors").unlink(missing_ok=True)
        worker = super().start(name)
        assert isinstance(worker, subprocess.Popen)
        return worker


@pytest.mark.slow
def test_two_teachers_share_the_work_and_explorers_load_none(models: Path, tmp_path: Path) -> None:
    """Where the teacher acts, too: explorers ask, and a teacher's process answers."""
    shutil.copytree(models / "teacher", tmp_path / "teacher")
    changes = {"learner": {"updates": 6, "max_wait_s": 20}, "recovery": {"patience": 1, "takeover": 2}}
    teacher = {"model": str(tmp_path / "teacher"), "count": 2}
    settings = config(models, clock="live", method="divopd-r", teacher=teacher, **changes)
    begin_run(settings, tmp_path / "run")
    run = WithoutTeacher(settings, tmp_path / "run", observer=Observers(), wishes=Wishes())
    run.run()
    assert run.names == ["learner", "teacher", "teacher-1", "explorer-0"]
    with Store.open(tmp_path / "run") as store:
        audit_ledger(store)
        assert store.updates == 6
        assert any(store.teacher_turns(stored.rollout) for stored in store.stored_turns())
        kinds = {kind for (kind,) in store._db.execute("SELECT DISTINCT kind FROM records")}
        assert kinds <= {"update", "evaluation", "teacher_turns", "lease", "config"}  # no question, no answer


@pytest.mark.slow
@pytest.mark.crash
def test_killed_roles_lose_nothing_and_train_nothing_twice(models: Path, tmp_path: Path) -> None:
    """SIGKILL of each role in turn, ten times at random: the run ends, the ledger holds, the account adds up."""
    settings = config(models, clock="live", learner={"updates": 25, "checkpoint_every": 3, "max_wait_s": 5})
    begin_run(settings, tmp_path / "run")
    run = LiveRun(settings, tmp_path / "run", observer=Observers(), wishes=Wishes())
    source, over, kills = random.Random(0), threading.Event(), [*run.names, *run.names, *run.names][:10]

    def kill_sometimes() -> None:
        for update in range(1, 21, 2):  # by what was done, not by the clock: a fast machine ends early
            while not over.wait(source.uniform(0.1, 0.8)):
                with Store.open_read_only(tmp_path / "run") as store:
                    if store.updates >= update:
                        break
            if over.is_set():
                return
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
    """A bug in a user's environment costs rollouts, and then the run; no role is started again for it."""
    fragile = Path(__file__).parents[1] / "fragile_room.py"
    settings = config(models, clock="live", environment={"name": f"{fragile}:BuggyRoom"})
    with pytest.raises(DivopdError, match=r"explorer-0 cannot go on; .* ZeroDivisionError"):
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
    assert processes_of(str(tmp_path / "run")) == []
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    with Store.open_read_only(tmp_path / "run") as store:
        assert store.updates == 12


@pytest.mark.slow
@pytest.mark.crash
def test_a_run_killed_five_times_has_one_record_for_each_update(models: Path, tmp_path: Path) -> None:
    """SIGKILL of `divopd train` and all its roles: batches are served again, records stay as they first were.

    At last metrics.jsonl says of each update and each evaluation what the store says, once.
    """
    run, source = RunFolder(tmp_path / "run"), random.Random(0)
    plan = {"updates": 40, "checkpoint_every": 50, "max_wait_s": 20}  # no checkpoint: each life serves all again
    begin_run(config(models, clock="live", learner=plan, evaluation={"every": 20, "tasks": 2}), run.path)
    command = [sys.executable, "-m", "divopd", "train", "--resume", str(run.path)]
    with Store.open_read_only(run.path) as store:
        for _ in range(5):
            known = store.update_records()
            process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
            )
            with process:
                try:
                    wait_for(lambda known=known: store.update_records().keys() > known.keys(), while_=process)
                    time.sleep(source.uniform(0, 0.3))
                finally:
                    os.killpg(process.pid, signal.SIGKILL)
            assert len(known) < len(store.update_records()) < 40
            assert {update: store.update_records()[update] for update in known} == known
        known = store.update_records()
        subprocess.run(command, check=True, capture_output=True, timeout=300)
        updates, evaluations = store.update_records(), store.evaluations()
        audit_ledger(store)
        assert store.account().adds_up
        assert {update: updates[update] for update in known} == known
    lines = [json.loads(line) for line in run.metrics.read_text(encoding="utf-8").splitlines()]
    told = [decode_update(line) for line in lines if line["kind"] == "update"]
    assert told == list(updates.values())
    assert [record.update for record in told] == list(range(40))
    evaluated = [decode_evaluation(line) for line in lines if line["kind"] == "evaluation"]
    assert sorted(record.version for record in evaluated) == [0, 20, 40]
    assert {record.version: record for record in evaluated} == evaluations


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
    deadline = time.monotonic() + 60
    while processes_of(str(tmp_path / "run")) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert processes_of(str(tmp_path / "run")) == []
