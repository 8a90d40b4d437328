"""examples/trinity: Trinity-RFT's own trainer makes optimizer steps on a CPU, with batches by the adapter."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("trinity") is None:
    pytest.skip("for want of Trinity-RFT", allow_module_level=True)

from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lone_ray import PATIENCE

SCRIPT = Path(__file__).parents[2] / "examples" / "trinity" / "train.py"
BATCH_SIZE = 32  # of its config.yaml


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch and tensorboard
def test_trinitys_own_loop_trains_on_composed_batches_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    """Every step's batch is whole and fresh, the student learns from it, and explorers get what it has learned."""
    told = [_run(tmp_path, steps) for steps in (3, 6)]
    assert "step  disagreement" in told[1]
    job = tmp_path / "divopd" / "trinity"
    saved = load_file(job / "engine.safetensors")
    state = json.loads((job / "trainer_meta.json").read_text())
    assert (int(saved["steps"]), state["latest_iteration"]) == (6, 6)
    assert state["sample_strategy_state"]["update"] == 5
    taken = [int(value) for name, value in saved.items() if name.startswith("optimizer/") and name.endswith("/step")]
    assert set(taken) == {6}, "the restarted optimizer went on with the moments that were saved"
    written = EventAccumulator(str(job / "monitor" / "tensorboard" / "trainer")).Reload()
    figures = {name: {e.step: e.value for e in written.Scalars(name)} for name in written.Tags()["scalars"]}
    assert figures["divopd/rows"] == dict.fromkeys(range(1, 7), BATCH_SIZE)
    assert all(rollouts > 1 for rollouts in figures["divopd/effective_rollouts"].values())
    assert all(step - 1 - oldest <= 2 for step, oldest in figures["sample/model_version/min"].items())
    assert max(figures["sample/model_version/max"].values()) > 0, "explorers get the trained weights"
    assert all(norm > 0 for norm in figures["actor/grad_norm"].values())


def _run(out: Path, steps: int) -> str:
    command = [sys.executable, str(SCRIPT), "--out", str(out), "--steps", str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **PATIENCE}, timeout=1800)
    assert done.returncode == 0, done.stderr
    return done.stdout
