"""The learner on two ranks inside a run: processes on one machine that train as one."""

import signal
import subprocess
from pathlib import Path

import pytest
from safetensors.torch import load_file

from divopd.audits.ledger import audit_ledger
from divopd.pipeline.begin import begin_run
from divopd.pipeline.models import load_student
from divopd.pipeline.processes import LiveRun
from divopd.pipeline.wishes import Wishes
from divopd.records import UpdateRecord
from divopd.run.checkpoints import load_weights
from divopd.store import Store
from doubles.listener import Listener
from small_runs import config, outcome


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
    saved = load_file(tmp_path / "run" / "checkpoints" / "000005" / "optimizer.safetensors")
    for name, tensor in student.model.named_parameters():
        assert saved[f"exp_avg_sq/{name}"].shape == tensor.shape
