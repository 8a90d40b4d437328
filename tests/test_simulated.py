"""The simulated clock: the same config gives the same ledger, killed or not, with every method."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from divopd import METHODS
from divopd.metrics import GAP_LIMIT
from divopd.pipeline.begin import begin_run
from small_runs import config, outcome, start


def test_the_same_config_gives_the_same_ledger(models: Path, tmp_path: Path) -> None:
    """Twice the same run: the same batches, to the bit; another seed gives others."""
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        start(tmp_path / name, config(models, seed=seed)).run()
    assert outcome(tmp_path / "a") == outcome(tmp_path / "b")
    assert outcome(tmp_path / "a")[0] != outcome(tmp_path / "c")[0]


def test_an_explorer_with_other_weights_is_noticed(models: Path, tmp_path: Path) -> None:
    """The learner finds the explorer's log probabilities again, to rounding; a warning if its weights are others."""
    run = start(tmp_path / "run", config(models))
    run.advance()
    fresh = run.store.figures("update")[0]["learner"]["logprob_gap"]
    assert fresh["version"] == 0 < fresh["tokens"]
    assert fresh["mean"] <= fresh["largest"] < 1e-5
    assert run.store.events() == []
    while not run.store.events() and run.version < 6:
        with torch.no_grad():
            for parameter in run.actor.model.parameters():
                parameter.mul_(2.0)
        run.advance()
    [(kind, event), *_] = run.store.events()
    gap = run.store.figures("update")[event["update"]]["learner"]["logprob_gap"]
    assert kind == "logprob_gap"
    assert gap["mean"] > GAP_LIMIT
    assert f"differ from those at generation by {gap['mean']:.3g} nats" in event["warning"]


@pytest.mark.parametrize(
    "changes",
    [{}, {"explorer": {"max_backlog": 10}}, {"explorer": {"sync_interval": 2}}, {"learner": {"max_wait_s": 0.2}}],
    ids=["plain", "admission control", "seldom sync", "short batches"],
)
def test_a_resumed_run_makes_the_same_batches(models: Path, tmp_path: Path, changes: dict) -> None:
    """Stopped after every update and resumed from its checkpoints, a run ends as one that was never stopped."""
    settings = config(models, **changes)
    start(tmp_path / "whole", settings).run()
    for _ in range(40):
        run = start(tmp_path / "stopped", settings)
        done = run.version
        for _ in range(3):
            if run.version < settings.learner.updates:
                run.advance()
        run.store.close()
        if done == settings.learner.updates:
            break
    whole, stopped = outcome(tmp_path / "whole"), outcome(tmp_path / "stopped")
    assert whole[:2] == stopped[:2]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_to_the_end(models: Path, tmp_path: Path, method: str) -> None:
    """Six updates, evaluations at 0, 3 and 6, and an account that adds up."""
    start(tmp_path / "run", config(models, method=method, recovery={"patience": 1, "takeover": 2})).run()
    _, account, rates = outcome(tmp_path / "run")
    assert sorted(rates) == [0, 3, 6]
    assert account[1] >= 6  # trained


CHILD = """
import sys
from pathlib import Path
from divopd.config import load_config
from divopd.pipeline.simulated import SimulatedRun
folder = Path(sys.argv[1])
SimulatedRun(load_config(folder / "config.yaml"), folder, report=lambda kind, figures: None).run()
"""


@pytest.mark.crash
@pytest.mark.slow
def test_a_run_killed_ten_times_ends_with_the_same_ledger(models: Path, tmp_path: Path) -> None:
    """SIGKILL at ten moments, then to the end: the ledger of a run that was never killed."""
    settings = config(models, learner={"updates": 12, "checkpoint_every": 3})
    start(tmp_path / "whole", settings).run()
    begin_run(settings, tmp_path / "killed")
    command = [sys.executable, "-c", CHILD, str(tmp_path / "killed")]
    for kill in range(10):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(4 + 0.37 * kill)
        process.send_signal(signal.SIGKILL)
        process.wait()
    subprocess.run(command, check=True, capture_output=True)
    assert outcome(tmp_path / "whole")[:2] == outcome(tmp_path / "killed")[:2]
