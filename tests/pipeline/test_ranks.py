"""The learner on two ranks inside a run: processes on one machine that train as one."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from divopd.audits.ledger import audit_ledger
from divopd.pipeline.begin import begin_run
from divopd.pipeline.models import load_student
from divopd.pipeline.processes import LiveRun
from divopd.pipeline.wishes import Wishes
from divopd.records import UpdateRecord
from divopd.run.checkpoints import load_checkpoint, load_weights
from divopd.run.durable_folder import numbered_folders
from divopd.store import Store
from doubles.listener import Listener
from small_runs import config, outcome
from waiting import processes_of, wait_for


def checkpoints(run: Path) -> list[int]:
    return [int(folder.name) for folder in numbered_folders(run / "checkpoints")]


@pytest.mark.slow
def test_two_ranks_train_and_heed_signals(models: Path, tmp_path: Path) -> None:
    """`divopd train` on the live clock: SIGUSR1 makes a checkpoint of both ranks and the run goes on; SIGTERM says so,
    saves the newest update, leaves no process and exits with 143."""
    learner = {"updates": 1000, "checkpoint_every": 1000, "max_wait_s": 5, "ranks": 2, "max_tokens": 400}
    run = tmp_path / "run"
    begin_run(config(models, clock="live", learner=learner, evaluation={"every": 1000, "tasks": 1}), run)
    command = [sys.executable, "-m", "divopd", "train", "--resume", str(run), "--grace", "200"]
    with (
        Store.open_read_only(run) as store,
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process,
    ):
        try:
            assert process.stderr is not None
            wait_for(lambda: len(store.update_records()) >= 1, while_=process)
            process.send_signal(signal.SIGUSR1)
            wait_for(lambda: checkpoints(run), while_=process)
            [middle] = checkpoints(run)
            wait_for(lambda: len(store.update_records()) >= middle + 3, while_=process)
            process.send_signal(signal.SIGTERM)
            said = process.stderr.read().splitlines()
            assert process.wait() == 143
        finally:
            process.kill()
        assert [line.split()[1] for line in said] == ["SIGUSR1:", "SIGTERM:"]
        assert processes_of(str(run)) == []
        assert checkpoints(run) == [middle, store.updates - 1]
        assert set(store.update_records()) == set(range(store.updates))
        audit_ledger(store)
    assert not (run / "checkpoint-wanted").exists()


@pytest.mark.slow
@pytest.mark.crash
def test_two_ranks_train_to_the_end_though_one_is_killed(models: Path, tmp_path: Path) -> None:
    """The second rank dies after a checkpoint: both start again, the ledger holds, one process reads the weights."""
    learner = {"updates": 6, "checkpoint_every": 2, "max_wait_s": 30, "ranks": 2, "max_tokens": 400}
    settings = config(models, clock="live", learner=learner)
    begin_run(settings, tmp_path / "run")

    def kill(record: UpdateRecord) -> None:
        if record.update == 2:
            second = run.workers["learner-1"]
            assert isinstance(second, subprocess.Popen)
            second.send_signal(signal.SIGKILL)

    listener = Listener(kill)
    run = LiveRun(settings, tmp_path / "run", observer=listener, wishes=Wishes())
    run.run()
    restarts = [sentence.split()[1] for sentence in listener.sentences if "is started again" in sentence]
    assert set(restarts) <= {"learner", "learner-1"}
    assert restarts
    assert [record.update for record in listener.updates] == list(range(6))
    _, account, rates = outcome(tmp_path / "run")
    assert sorted(rates) == [0, 3, 6]
    with Store.open_read_only(tmp_path / "run") as store:
        audit_ledger(store)
        trained = [key for update in range(6) for key in store.journal(update).selected]
    assert len(trained) == len(set(trained)) == account[1]
    last = tmp_path / "run" / "weights" / "000006"
    student = load_student(settings)
    before = {name: tensor.clone() for name, tensor in student.model.named_parameters()}
    load_weights(last, student.model)
    assert any((before[name] != tensor).any() for name, tensor in student.model.named_parameters())
    folder = tmp_path / "run" / "checkpoints" / "000005"
    parts = [load_file(folder / f"optimizer-{number}-of-2.safetensors") for number in (1, 2)]
    for name, tensor in student.model.named_parameters():
        saved = torch.cat([part[f"exp_avg_sq/{name}"] for part in parts])
        assert saved.shape == tensor.shape
    optimizer = torch.optim.AdamW(student.model.parameters())
    assert load_checkpoint(folder, model=student.model, optimizer=optimizer).update == 5  # one rank goes on from two


@pytest.mark.slow
@pytest.mark.crash
def test_a_rank_that_hangs_is_named_and_the_run_goes_on(models: Path, tmp_path: Path) -> None:
    """SIGSTOP of the second rank, and later of the first: each is found by its silence, and all updates are made."""
    learner = {"updates": 5, "checkpoint_every": 1, "max_wait_s": 60, "ranks": 2, "max_tokens": 400, "hung_after_s": 20}
    settings = config(models, clock="live", learner=learner)
    begin_run(settings, tmp_path / "run")
    victims = ["learner-1", "learner"]

    def stop(record: UpdateRecord) -> None:
        if victims and record.update in (1, 3):
            worker = run.workers[victims.pop(0)]
            assert isinstance(worker, subprocess.Popen)
            worker.send_signal(signal.SIGSTOP)

    listener = Listener(stop)
    run = LiveRun(settings, tmp_path / "run", observer=listener, wishes=Wishes())
    run.run()
    hung = [sentence.partition(": it was not heard for ")[0] for sentence in listener.sentences if "hangs" in sentence]
    assert hung == ["the learner-1 hangs (rank 1 of the learner's 2)", "the learner hangs (rank 0 of the learner's 2)"]
    assert [record.update for record in listener.updates] == list(range(5))
    with Store.open_read_only(tmp_path / "run") as store:
        audit_ledger(store)
        trained = [key for update in range(5) for key in store.journal(update).selected]
    assert len(trained) == len(set(trained))
    assert processes_of(str(tmp_path / "run")) == []
