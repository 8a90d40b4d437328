"""What the learner is told (rows, their weights, its settings), and that what it publishes is the plain objective's."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from divopd.audits.timing import audit_time
from divopd.store import Store
from divopd.turns import Turn
from plain_training import PlainLearner, rollout_weights, turn_weights
from recorded_run import RecordedRun, resume, settings, train, write_config
from recording_rooms import DEADLY_RESET, RUN, published
from wired_runs import OPTIMIZATION, WiredRuns

BOTH_CLOCKS = pytest.mark.parametrize("clock", ["simulated", "live"])
HELPED_CLOCKS = pytest.mark.parametrize("clock", ["simulated", pytest.param("live", marks=pytest.mark.slow)])
CLOSE = 1e-5  # of weights; an update moves most of them by 1e-2


def distance(learner: PlainLearner, weights: Path) -> float:
    """The largest difference between a learner's weights and published ones."""
    [file] = weights.glob("*.safetensors")
    published = load_file(file)
    own = dict(learner.model.named_parameters())
    assert own.keys() == published.keys()
    return max((own[name] - tensor).abs().max().item() for name, tensor in published.items())


def follow(
    run: RecordedRun, config: Mapping[str, Any], batches: Sequence[Sequence[Turn]], weights: Sequence[Sequence[float]]
) -> list[float]:
    """Train on a run's batches in the plain way, check its figures, and say how far its weights are after each."""
    learner, gaps = PlainLearner(config), []
    assert distance(learner, run.weights(0)) == 0.0
    for update, (batch, row_weights) in enumerate(zip(batches, weights, strict=True)):
        loss, norm = learner.update(batch, row_weights)
        figures = run.metrics("update")[update]["learner"]
        assert figures["loss"] == pytest.approx(
            loss, rel=1e-3, abs=1e-8
        )  # near 0 its terms cancel to float32's rounding
        assert figures["gradient_norm"] == pytest.approx(norm, rel=1e-3)
        gaps.append(distance(learner, run.weights(update + 1)))
    return gaps


@BOTH_CLOCKS
def test_updates_follow_the_objective_with_the_weights_of_turnopd(wired: WiredRuns, clock: str) -> None:
    """lr, betas, weight decay, β, clipping and row weights as configured: the published weights are the plain ones.

    TurnOPD's α is 0 at the first update and 1 from half of training on (specification §6.5).
    """
    recorded = wired.get("adaptive", clock)
    batches, rollouts = recorded.run.batches(), recorded.run.rollouts()
    half = recorded.config["learner"]["updates"] / 2
    weights = [turn_weights(batch, rollouts, alpha=min(1.0, update / half)) for update, batch in enumerate(batches)]
    assert max(max(row_weights) for row_weights in weights) > 1.2
    with Store.open_read_only(recorded.run.folder) as store:
        for update, expected in enumerate(weights):
            assert store.journal(update).weights == pytest.approx(expected)
    # rounding grows from update to update, above all where gradients are this small
    assert max(follow(recorded.run, recorded.config, batches[:3], weights[:3])) < CLOSE


def test_updates_follow_the_objective_with_the_weights_of_divopd_focus(wired: WiredRuns) -> None:
    """Every rollout has the same total weight; dead rows count in the denominator."""
    recorded = wired.get("focused")
    batches = recorded.run.batches()
    assert any(row.prompt_truncated for batch in batches for row in batch)
    assert max(follow(recorded.run, recorded.config, batches, [rollout_weights(batch) for batch in batches])) < CLOSE


@pytest.mark.crash
def test_a_killed_run_goes_on_with_its_optimizer(wired: WiredRuns, tmp_path: Path) -> None:
    """Killed after its checkpoint and resumed: the weights are those of one optimizer that saw every update."""
    config = lasting(wired, "simulated")
    process = start(tmp_path / "run", config, {DEADLY_RESET: "5"})
    assert process.wait() == -signal.SIGKILL
    assert list(tmp_path.glob("run/checkpoints/[0-9]*"))
    assert published(tmp_path / "run") < config["learner"]["updates"]
    check_resumed(tmp_path / "run", config)


@pytest.mark.slow
@pytest.mark.crash
def test_a_stopped_live_run_goes_on_with_its_optimizer(wired: WiredRuns, tmp_path: Path) -> None:
    """The same on the live clock, stopped by Ctrl-C."""
    config = lasting(wired, "live")
    process = start(tmp_path / "run", config, {})
    while published(tmp_path / "run") < 2 and process.poll() is None:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    assert published(tmp_path / "run") < config["learner"]["updates"]
    check_resumed(tmp_path / "run", config)


def lasting(wired: WiredRuns, clock: str) -> dict[str, Any]:
    """A run with checkpoints that is stopped before its end."""
    learner = {**OPTIMIZATION, "updates": 5 if clock == "simulated" else 60, "checkpoint_every": 2}
    changes = {"composer": {"batch_size": 4}, "explorer": {"rollouts_in_flight": 1}, "learner": learner}
    return settings(wired.student, teacher=wired.teacher, room="DeadlyRoom", clock=clock, **changes)


def start(folder: Path, config: Mapping[str, Any], variables: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """`divopd train` as a process that may be killed."""
    command = [sys.executable, "-m", "divopd", "train", str(write_config(folder, config)), "--out", str(folder)]
    environment = {**os.environ, RUN: str(folder), **variables}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def check_resumed(folder: Path, config: Mapping[str, Any]) -> None:
    """Resume, and follow all updates, those before and after, with one optimizer."""
    run = resume(folder)
    assert run.code == 0
    batches = run.batches()
    assert len(batches) == config["learner"]["updates"]
    assert max(follow(run, config, batches, [[1.0] * len(batch) for batch in batches])) < CLOSE


@pytest.mark.parametrize("clock", ["simulated", pytest.param("live", marks=pytest.mark.slow)])
def test_a_batch_is_in_the_journal_before_it_is_trained(wired: WiredRuns, tmp_path: Path, clock: str) -> None:
    """An update that cannot be made (its gradient overflows) leaves its batch in the journal, and no weights."""
    config = settings(wired.student, teacher=wired.teacher, learner={"beta": 3e38}, clock=clock)
    run = train(tmp_path / "run", config)
    assert run.code == 2
    assert not run.weights(1).exists()
    with Store.open(run.folder) as store:
        assert store.updates == 1
        assert len(store.batch(0).turns) == 8


@HELPED_CLOCKS
def test_no_row_is_staler_than_allowed(wired: WiredRuns, clock: str) -> None:
    """With max_staleness 0 an update trains only what its own version made; older turns have the fate `stale`."""
    run = wired.get("helped", clock).run
    for update, batch in enumerate(run.batches()):
        assert {row.version for row in batch} == {update}
    assert run.fates()["stale"] == sum(figures["stale"] for figures in run.metrics("update").values())
    assert run.fates()["stale"] > 0 or clock == "live"


@BOTH_CLOCKS
def test_batches_have_the_size_and_the_number_that_were_asked_for(wired: WiredRuns, clock: str) -> None:
    """And what was trained is what the store says was trained."""
    recorded = wired.get("adaptive", clock)
    batches = recorded.run.batches()
    assert [len(batch) for batch in batches] == [4] * recorded.config["learner"]["updates"]
    assert recorded.run.fates()["trained"] == len({row.key for batch in batches for row in batch})


def test_the_time_of_a_live_run_is_estimated_from_its_parts(wired: WiredRuns) -> None:
    """`audit time`: what is neither an update nor a wait is missing in the estimate."""
    time = audit_time(wired.get("adaptive", "live").run.folder)
    assert 0 < time.estimate_s <= time.elapsed_s
    assert min(time.step_s) > 0
