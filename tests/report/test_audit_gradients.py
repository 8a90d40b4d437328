"""Stability and geometry: what the kept weights of a run say about turns that were selected or not."""

from pathlib import Path

import numpy as np
import pytest

from divopd.audits.stability import correlation, spearman, top_k_overlap
from divopd.audits.subject import load_subject
from divopd.errors import InputError
from divopd.methods import make_composer
from divopd.store import Store
from strategies import turn


def test_rank_statistics() -> None:
    """Spearman sees order only and shares ranks among equals; the overlap compares sets."""
    rising = np.array([1.0, 2.0, 3.0, 40.0])
    assert spearman(rising, np.exp(rising)) == pytest.approx(1)
    assert spearman(rising, -rising) == pytest.approx(-1)
    assert spearman(np.array([1.0, 1.0, 2.0]), np.array([5.0, 5.0, 9.0])) == pytest.approx(1)
    assert correlation(np.ones(3), rising[:3]) == 0
    assert top_k_overlap(np.array([3.0, 2.0, 1.0]), np.array([1.0, 2.0, 3.0]), 2) == 0.5


def test_nothing_has_changed_at_lag_zero(small_run: Path) -> None:
    """Recomputed with the weights that generated them, disagreements are the cached ones: same ranks, same turns."""
    from divopd.audits.stability import audit_stability

    zero, one = audit_stability(load_subject(small_run), lags=(0, 2)).lags
    assert zero.spearman == pytest.approx(1, abs=1e-3)
    assert zero.probability_gap < 1e-5
    assert one.probability_gap > 10 * zero.probability_gap


def test_the_oracle_projects_furthest(small_run: Path) -> None:
    """In its own sketch no selection of as many turns beats the oracle; base's expectation is a mean over draws."""
    from divopd.audits.geometry import EXPECTED_BASE, LINEUP, ORACLE, audit_geometry

    audit = audit_geometry(load_subject(small_run), updates=3)
    assert [one.update for one in audit.updates] == [5, 6, 7]
    for one in audit.updates:
        for against in (one.composers, one.rollout_mean):
            best = against[ORACLE].projection
            assert all(against[name].projection <= best + 1e-4 for name in (*LINEUP, EXPECTED_BASE))
            assert -1.001 <= min(a.cosine for a in against.values()) <= 1.001
        assert 0 <= one.dropped_turns < 1
    assert any(one.composers["divopd"] != one.rollout_mean["divopd"] for one in audit.updates)
    assert audit.oracle_ratio >= 1
    assert 0 <= audit.swapped_pairs <= 15


def test_geometry_is_that_of_the_last_eight_updates(small_run: Path, models: Path, tmp_path: Path) -> None:
    """Not of the evaluated versions; a run without the weights before its last updates is refused with what it has."""
    from divopd.audits.geometry import audit_geometry
    from small_runs import config, train_small

    assert [one.update for one in audit_geometry(load_subject(small_run), size=4).updates] == list(range(8))
    train_small(tmp_path / "run", config(models, learner={"updates": 3}, audits={"keep_last": 1}))
    assert [one.update for one in audit_geometry(load_subject(tmp_path / "run"), updates=2, size=4).updates] == [2]
    train_small(tmp_path / "none", config(models, learner={"updates": 3}, audits={"keep_last": 0}))
    with pytest.raises(InputError, match=r"last 2 updates .* versions 0, 3, .* audits\.keep_last"):
        audit_geometry(load_subject(tmp_path / "none"), updates=2, size=4)


def test_the_kept_weights_are_those_from_which_the_updates_started(small_run: Path) -> None:
    """The gradient of every journalled batch at the kept weights has the norm that the learner recorded."""
    from divopd.audits.run_policy import RunPolicy
    from divopd.learner.torch_learner import TorchLearner

    policy = RunPolicy(small_run)
    with Store.open_read_only(small_run) as store:
        for update, record in store.update_records().items():
            student, batch = policy.at(update), store.batch(update)
            figures = TorchLearner(student).gradient(batch.turns, batch.weights)
            assert record.learner is not None
            assert figures.gradient_norm == pytest.approx(record.learner.gradient_norm, rel=1e-4)


def test_the_expectation_of_base_is_the_mean_of_its_draws() -> None:
    """Over many seeds the mean gradient of divopd-base comes to Σ n_r/B ḡ_r (the paper's coverage identity)."""
    torch = pytest.importorskip("torch", reason="for want of the extra train")
    from divopd.audits.geometry import expected_base
    from divopd.composers import candidate_of

    sizes = {"a": 5, "b": 2, "c": 3}
    turns = [turn(name, index, gap=float(index)) for name, size in sizes.items() for index in range(size)]
    pool = [candidate_of(one, first_seen=0) for one in turns]
    gradients = torch.randn(len(pool), 6, generator=torch.Generator().manual_seed(0))
    row = {c.key: place for place, c in enumerate(pool)}
    means = []
    for seed in range(400):
        composer = make_composer("divopd-base", batch_size=6, cap=2, seed=seed)
        selected = composer.decide(pool, update=0).selected
        means.append(gradients[[row[c.key] for c in selected]].mean(0))
    draws = torch.stack(means)
    error = draws.std(0) / 400**0.5
    assert torch.all((draws.mean(0) - expected_base(pool, selected, gradients)).abs() < 4.5 * error)
