"""What the paper proves about batch composition, on random pools with the real composers (specification §10).

Gradients are plain vectors here, since the identities hold for any; tests/models/test_objective.py has some with the
gradients of a model.
"""

from itertools import product
from math import ceil, exp, log, log1p
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divopd.audits.selection import effective_batch
from divopd.composers import Candidate
from divopd.composers.adaptive import offline_bound
from divopd.methods import METHODS, make_composer
from divopd.replay import recording_of, replay
from divopd.turns import Turn
from divopd.validity import disagreement
from strategies import recordings, turn

seeds = st.integers(0, 2**31)
CLOSE: dict[str, Any] = {"rtol": 0, "atol": 1e-9}


def candidate(rollout: str, number: int, *, score: float = 0.0, dead: bool = False) -> Candidate:
    reason = "prompt_truncated" if dead else None
    return Candidate(rollout, number, "t", 0, 0, reason, 0.0 if dead else score, 5, 0 if dead else 2)


def random_pool(turns: list[int], seed: int) -> tuple[list[Candidate], np.ndarray]:
    """Valid turns of rollouts of these lengths, and a vector for each that stands for its gradient."""
    random = np.random.default_rng(seed)
    pool = [candidate(f"r{r}", t, score=random.normal()) for r, size in enumerate(turns) for t in range(size)]
    return pool, random.normal(size=(len(pool), 3))


# ── the selection shift, coverage, focus ──────────────────────────────────────────────────────────────────────────


@given(st.lists(st.integers(1, 5), min_size=2, max_size=5), st.integers(1, 4), seeds)
def test_selection_shift(turns: list[int], cap: int, seed: int) -> None:
    """Lemma lem:bias: E[Ĝ] - G = (N/B) Cov(π, g), here over the draws of divopd-base with five seeds."""
    pool, gradients = random_pool(turns, seed)
    batch = ceil(len(pool) / 2)
    selections = []
    for draw in range(5):
        selected = make_composer("divopd-base", batch_size=batch, cap=cap, seed=draw).decide(pool, update=0).selected
        assert len(selected) == batch
        selections.append([float(c in selected) for c in pool])
    inclusion = np.mean(selections, axis=0)
    shift = inclusion @ gradients / batch - gradients.mean(0)
    covariance = (inclusion - inclusion.mean()) @ (gradients - gradients.mean(0)) / len(pool)
    np.testing.assert_allclose(shift, len(pool) / batch * covariance, **CLOSE)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(1, 4), seeds)
def test_focus_moves_the_gradient_by_kept_minus_dropped(turns: list[int], cap: int, seed: int) -> None:
    """Eq. 8, focus-estimand: Ĝ_focus - Σ n_r/B ḡ_r = 1/B Σ n_r (T_r - n_r)/T_r (ḡ_kept - ḡ_dropped)."""
    pool, gradients = random_pool(turns, seed)
    batch = ceil(2 * len(pool) / 3)
    kept = set(make_composer("divopd", batch_size=batch, cap=cap).decide(pool, update=0).selected)
    expected, shift = np.zeros(3), np.zeros(3)
    for name in {c.rollout for c in pool}:
        inside = [n for n, c in enumerate(pool) if c.rollout == name and c in kept]
        outside = [n for n, c in enumerate(pool) if c.rollout == name and c not in kept]
        length = len(inside) + len(outside)
        expected += len(inside) / batch * gradients[inside + outside].mean(0)
        if inside and outside:
            assert min(pool[n].disagreement for n in inside) >= max(pool[n].disagreement for n in outside)
            gap = gradients[inside].mean(0) - gradients[outside].mean(0)
            shift += len(inside) * len(outside) / length / batch * gap
    focus = gradients[[n for n, c in enumerate(pool) if c in kept]].sum(0) / batch
    np.testing.assert_allclose(focus - expected, shift, **CLOSE)


# ── the gate ──────────────────────────────────────────────────────────────────────────────────────────────────────


def covariance_of_batches(
    method: str, live: np.ndarray, dead_share: float, *, batch: int, rows: int
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of a composer's Ĝ over all pools of independent rows; pools short of a batch left out.

    A row is dead with this probability, otherwise one of the live gradients, all equally likely.
    """
    total, first, second = 0.0, np.zeros(live.shape[1]), np.zeros((live.shape[1],) * 2)
    for kinds in product(range(len(live) + 1), repeat=rows):  # the last kind is the dead one
        pool = [candidate(f"r{n}", 0, dead=kind == len(live)) for n, kind in enumerate(kinds)]
        decision = make_composer(method, batch_size=batch).decide(pool, update=0)
        if len(decision.selected) < batch:
            continue
        values = {c.key: live[kind] for c, kind in zip(pool, kinds, strict=True) if c.reason is None}
        gradient = sum((values[c.key] for c in decision.selected if c.reason is None), np.zeros(live.shape[1])) / batch
        dead = kinds.count(len(live))
        chance = dead_share**dead * ((1 - dead_share) / len(live)) ** (rows - dead)
        total, first, second = (
            total + chance,
            first + chance * gradient,
            second + chance * np.outer(gradient, gradient),
        )
    mean = first / total
    return mean, second / total - np.outer(mean, mean)


@given(st.floats(0.02, 0.8), st.integers(1, 3), seeds)
def test_the_variance_that_the_gate_saves(dead_share: float, batch: int, seed: int) -> None:
    """Eq. 6, gate-variance: Σ/B with the gate, (Σ + d μμᵀ)/(B(1-d)) without it, corrected for validity.

    Over all pools of independent rows: vanilla reads B of them, the gate takes the first B valid ones of B + 1.
    """
    live = np.random.default_rng(seed).normal(size=(2, 2))
    mu = live.mean(0)
    sigma = (live - mu).T @ (live - mu) / len(live)
    mean, gated = covariance_of_batches("gate-only", live, dead_share, batch=batch, rows=batch + 1)
    np.testing.assert_allclose(mean, mu, **CLOSE)
    np.testing.assert_allclose(gated, sigma / batch, **CLOSE)
    mean, ungated = covariance_of_batches("vanilla", live, dead_share, batch=batch, rows=batch)
    np.testing.assert_allclose(mean, (1 - dead_share) * mu, **CLOSE)  # the dilution of prop:gate-dilution
    corrected = ungated / (1 - dead_share) ** 2
    expected = (sigma + dead_share * np.outer(mu, mu)) / (batch * (1 - dead_share))
    np.testing.assert_allclose(corrected, expected, **CLOSE)
    assert np.linalg.eigvalsh(corrected - gated).min() > -1e-9  # a positive-semidefinite reduction


@given(st.floats(0.02, 0.8), st.integers(1, 3), seeds)
def test_without_a_mean_a_batch_with_dead_rows_is_worth_its_valid_ones(
    dead_share: float, batch: int, seed: int
) -> None:
    """B_eff = (1 - d) B: at μ = 0 the corrected variance is that of so many valid rows."""
    one = np.random.default_rng(seed).normal(size=2)
    live = np.stack([one, -one])
    _, ungated = covariance_of_batches("vanilla", live, dead_share, batch=batch, rows=batch)
    sigma = np.outer(one, one)
    np.testing.assert_allclose(ungated / (1 - dead_share) ** 2, sigma / effective_batch(batch, dead_share), **CLOSE)


def test_the_effective_batches_of_the_paper() -> None:
    """With B = 64 and 5 to 28 % of dead rows: 46 to 61 rows."""
    assert [round(effective_batch(64, share)) for share in (0.0, 0.05, 0.28)] == [64, 61, 46]


# ── score and loss ────────────────────────────────────────────────────────────────────────────────────────────────


@given(seeds)
def test_the_expected_disagreement_is_the_reverse_kl_of_sequences(seed: int) -> None:
    """After eq. 5, score-loss-equivalence: over all responses of two tokens, E[s] = KL(student || teacher)."""
    random = np.random.default_rng(seed)
    first, second = random.dirichlet(np.ones(3), 2), random.dirichlet(np.ones(3), (2, 3))
    mean, divergence = 0.0, 0.0
    for a, b in product(range(3), repeat=2):
        logs = [[log(first[who][a]), log(second[who][a][b])] for who in (0, 1)]
        chance = exp(sum(logs[0]))
        whole = turn(size=2, response_ids=[a, b], student_logprobs=logs[0], teacher_logprobs=logs[1])
        mean += chance * disagreement(whole)
        divergence += chance * (log(chance) - log(first[1][a] * second[1][a][b]))
    assert mean == pytest.approx(divergence, abs=1e-12)
    assert mean >= -log1p(1e-12)


# ── the bound of a group of rollouts ──────────────────────────────────────────────────────────────────────────────


@given(recordings(updates=8), st.integers(1, 6), st.integers(0, 3), st.sampled_from(sorted(METHODS)))
def test_a_group_gives_at_most_min_of_its_size_and_of_its_chances(
    turns: list[Turn], batch: int, staleness: int, method: str
) -> None:
    """R rollouts that stay eligible for L updates, of which each touches at most M rollouts: at most min(R, L·M)."""
    recording = recording_of(turns, updates=12)
    composer = make_composer(method, batch_size=batch, max_staleness=staleness, cap=2)
    touched = [{c.rollout for c in decision.selected} for decision in replay(recording, composer)]
    most = max(map(len, touched))
    groups: dict[tuple[int, int], set[str]] = {}
    for recorded in recording.turns:
        key = recorded.available_at, recorded.candidate.version
        groups.setdefault(key, set()).add(recorded.candidate.rollout)
    for (available_at, version), group in groups.items():
        eligible = max(0, version + staleness - available_at + 1)
        assert len(group & set().union(*touched)) <= min(len(group), eligible * most)


@given(st.integers(0, 40), st.integers(1, 6), st.integers(1, 8), st.integers(0, 5))
def test_the_offline_bound_of_one_group_is_that_minimum(size: int, updates: int, batch: int, since: int) -> None:
    """Of R rollouts that are there for L updates of B slots, exactly min(R, L·B) can have one."""
    windows = [(since, since + updates - 1)] * size
    assert offline_bound(windows, batch_size=batch, updates=50) == min(size, updates * batch)
