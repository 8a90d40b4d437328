"""The objective, and the identities about batch composition that follow from it (specification §5, §10)."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch

from divopd import Turn, make_composer
from divopd.composers import candidate_of
from divopd.learner.torch_learner import TorchLearner
from divopd.models.objective import opd_loss, token_weights
from divopd.models.optimization import Optimization
from divopd.models.transformers_policy import TransformersPolicy
from divopd.validity import disagreement, valid_mask, why_invalid
from token_rollouts import dead, gradient, own_copy, plain_gradient, plain_logprobs, pool, rollout, tiny_model

CLOSE = {"rtol": 0, "atol": 1e-12}


def test_loss_value_is_the_mean_of_row_means_with_dead_rows_in_the_denominator() -> None:
    """Eq. 3, opd-loss, on numbers done by hand: rows of two, no and one valid tokens."""
    logprobs = torch.tensor([-1.0, -2.0, -3.0], dtype=torch.float64)
    teacher = torch.tensor([-0.5, -4.0, -3.5], dtype=torch.float64)
    first, second, third = token_weights([2, 0, 1], [1.0, 1.0, 2.0])
    assert second == 0.0
    loss = opd_loss(logprobs, teacher=teacher, weights=torch.tensor([first, first, third], dtype=torch.float64))
    assert loss.item() == pytest.approx((-(0.5 - 2.0) / 2 + 0.0 + 2 * 0.5) / 3)


def test_one_forward_gives_the_gradient_of_two() -> None:
    """Old log probabilities from a pass of their own, or read off the gradient's pass: the same gradient."""
    torch.manual_seed(0)
    logits = torch.randn(7, 11, dtype=torch.float64, requires_grad=True)
    teacher, weights = -torch.rand(7, dtype=torch.float64), torch.rand(7, dtype=torch.float64)

    def chosen() -> torch.Tensor:
        return logits.log_softmax(-1)[:, 3]

    with torch.no_grad():
        old = chosen()
    once = opd_loss(chosen(), teacher=teacher, weights=weights, beta=0.7)
    twice = opd_loss(chosen(), teacher=teacher, weights=weights, beta=0.7, old=old)
    assert once.item() == twice.item()
    torch.testing.assert_close(torch.autograd.grad(once, logits), torch.autograd.grad(twice, logits), rtol=0, atol=0)


@pytest.mark.parametrize("beta", [0.5, 1.0, 3.0])
def test_disagreement_is_the_row_loss_times_its_tokens(beta: float) -> None:
    """Eq. 5, score-loss-equivalence: at one version s = -1/β Σ A = |V|/β ℓ, whatever the mask; later it is not."""
    model = tiny_model()
    learner = TorchLearner(TransformersPolicy(model), Optimization(lr=0.1, beta=beta))
    reference = own_copy(model)
    for old in [turn for turn in pool(seed=3) if why_invalid(turn) is None]:
        with torch.no_grad():
            logprobs = plain_logprobs(reference, old).tolist()
        turn = replace(old, student_logprobs=logprobs)  # as the policy of this version generated it
        valid, teacher = valid_mask(turn), turn.teacher_logprobs
        assert teacher is not None
        advantages = [beta * (t - s) for t, s, v in zip(teacher, logprobs, valid, strict=True) if v]
        assert disagreement(turn) == pytest.approx(-sum(advantages) / beta, abs=1e-9)
        loss = learner.gradient([turn]).loss
        assert disagreement(turn) == pytest.approx(sum(valid) / beta * loss, abs=1e-9)
    learner.update([turn], [1.0])
    assert disagreement(turn) != pytest.approx(sum(valid) / beta * learner.gradient([turn]).loss, abs=1e-3)


# ── identities on pools with real gradients ───────────────────────────────────────────────────────────────────────


class Pool:
    """A pool with the gradient g_t of every turn, and the gradient that the learner takes for any selection of it."""

    def __init__(self, turns: list[Turn]) -> None:
        model = tiny_model()
        reference = own_copy(model)
        self.turns = turns
        self.gradients = torch.stack([plain_gradient(reference, [turn]) for turn in turns])
        self.mean = self.gradients.mean(0)
        self.learner = TorchLearner(TransformersPolicy(model))

    def selected(self, rows: list[int]) -> torch.Tensor:
        """Ĝ of the rows, from the learner's merged and packed pass."""
        self.learner.gradient([self.turns[row] for row in rows])
        return gradient(self.learner.policy.model)


@pytest.fixture(scope="module")
def real_pool() -> Pool:
    return Pool(pool())


def test_selection_shift(real_pool: Pool) -> None:
    """E[Ĝ] - G = (N/B) Cov(π, g), for a random choice among four selections of eight rows."""
    rng = np.random.default_rng(1)
    size, batch = len(real_pool.turns), 8
    choices = [rng.permutation(size)[:batch].tolist() for _ in range(4)]
    expected = torch.stack([real_pool.selected(rows) for rows in choices]).mean(0)
    inclusion = torch.zeros(size, dtype=torch.float64)
    for rows in choices:
        inclusion[rows] += 1 / len(choices)
    centred = (inclusion - inclusion.mean())[:, None] * (real_pool.gradients - real_pool.mean)
    torch.testing.assert_close(expected - real_pool.mean, size / batch * centred.mean(0), **CLOSE)


def test_dead_slot_dilution(real_pool: Pool) -> None:
    """Over all live rows the gradient is the pool's times N / (N - D): the same direction, no shrinkage."""
    live = [n for n, turn in enumerate(real_pool.turns) if why_invalid(turn) is None]
    size = len(real_pool.turns)
    assert len(live) == size - 2
    torch.testing.assert_close(real_pool.selected(live), size / len(live) * real_pool.mean, **CLOSE)


def test_coverage() -> None:
    """E[Ĝ_base | allocation] = Σ n_r/B · ḡ_r: over all choices of two from every rollout, the mean of rollout means."""
    rollouts = [rollout(f"r{n}", turns=3, seed=n) for n in range(2)]
    made = Pool([turn for turns in rollouts for turn in turns])
    pairs = list(combinations(range(3), 2))
    batches = [[*a, *(3 + n for n in b)] for a in pairs for b in pairs]
    expected = torch.stack([made.selected(rows) for rows in batches]).mean(0)
    rollout_means = made.gradients.view(2, 3, -1).mean(1)
    torch.testing.assert_close(expected, (2 / 4 * rollout_means).sum(0), **CLOSE)


def test_focus() -> None:
    """Ĝ_focus - E[Ĝ_base] = 1/B Σ n(T-n)/T (ḡ_kept - ḡ_dropped), with the turns that the composer really keeps."""
    turns = [turn for n, length in enumerate((5, 3, 2)) for turn in rollout(f"r{n}", turns=length, seed=n)]
    made = Pool([*turns, dead(turns[0])])
    candidates = [candidate_of(turn, first_seen=0) for turn in turns]
    selected = make_composer("divopd", batch_size=6, cap=2).decide(candidates, update=0).selected
    kept = [candidates.index(candidate) for candidate in selected]
    shift, base = torch.zeros_like(made.mean), torch.zeros_like(made.mean)
    for name in ("r0", "r1", "r2"):
        members = [n for n, turn in enumerate(turns) if turn.rollout == name]
        inside, outside = [n for n in members if n in kept], [n for n in members if n not in kept]
        base += len(inside) / 6 * made.gradients[members].mean(0)
        if outside:
            assert min(disagreement(turns[n]) for n in inside) >= max(disagreement(turns[n]) for n in outside)
            gap = made.gradients[inside].mean(0) - made.gradients[outside].mean(0)
            shift += len(inside) * len(outside) / len(members) / 6 * gap
    assert float(shift.norm()) > 1e-3
    torch.testing.assert_close(made.selected(kept) - base, shift, **CLOSE)
