"""The Kronecker sketch against exact per-turn gradients: unbiased, and as wrong as theory says."""

import random
from math import sqrt

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="for want of the extra train")
pytest.importorskip("transformers", reason="for want of the extra train")

from divopd.audits.sketch import KroneckerSketch, _projection  # noqa: E402
from divopd.learner.torch_learner import TorchLearner  # noqa: E402
from divopd.models.transformers_policy import TransformersPolicy  # noqa: E402
from divopd.turns import Turn  # noqa: E402

WORDS = 40


@pytest.fixture(scope="module")
def policy() -> TransformersPolicy:
    """A model of one layer with tied embeddings, as the embedded ones have."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.set_num_threads(1)  # of so small a model, threads only wait for each other
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=WORDS,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=64,
        tie_word_embeddings=True,
    )
    return TransformersPolicy(Qwen3ForCausalLM(config).double())


@pytest.fixture(scope="module")
def turns() -> list[Turn]:
    rng = random.Random(0)
    return [make_turn(rng, number) for number in range(4)]


def make_turn(rng: random.Random, number: int) -> Turn:
    size = rng.randint(2, 5)
    return Turn(
        "r",
        number,
        "task",
        0,
        prompt_ids=[rng.randrange(WORDS) for _ in range(rng.randint(3, 9))],
        response_ids=[rng.randrange(WORDS) for _ in range(size)],
        student_logprobs=[-1.0] * size,
        teacher_logprobs=[-6 * rng.random() for _ in range(size)],
        action_mask=[1] * (size - 1) + [number % 2],
    )


def exact(policy: TransformersPolicy, turns: list[Turn]) -> np.ndarray:
    """Gradients of single rows by the learner itself, the matrices only: norms' gains are not sketched."""
    learner = TorchLearner(policy)
    rows = []
    for turn in turns:
        learner.gradient([turn])
        matrices = [p.grad.flatten() for p in policy.model.parameters() if p.ndim == 2]
        rows.append(torch.cat(matrices).clone())
    policy.model.zero_grad(set_to_none=True)
    return torch.stack(rows).numpy()


def inner_products(policy: TransformersPolicy, turns: list[Turn], *, size: int, seed: int) -> np.ndarray:
    sketched = KroneckerSketch(policy, size=size, seed=seed).gradients(turns).double()
    return (sketched @ sketched.T).numpy()


def test_inner_products_are_unbiased(policy: TransformersPolicy, turns: list[Turn]) -> None:
    """Averaged over projections, the sketch's inner products are those of the learner's own per-turn gradients."""
    gradients = exact(policy, turns)
    truth = gradients @ gradients.T
    draws = np.stack([inner_products(policy, turns, size=8, seed=seed) for seed in range(150)])
    error = draws.std(axis=0) / sqrt(len(draws))
    assert np.all(np.abs(draws.mean(axis=0) - truth) < 4.5 * error)
    scale = sqrt(truth[0, 0] * truth[1, 1])
    assert np.all(error < 0.1 * np.abs(scale))  # so that the line before says something


def test_the_error_falls_with_the_root_of_the_size(policy: TransformersPolicy, turns: list[Turn]) -> None:
    """Four times the size halves the error of inner products."""
    gradients = exact(policy, turns)
    truth = gradients @ gradients.T
    norms = np.sqrt(np.outer(truth.diagonal(), truth.diagonal()))
    sizes = (8, 32, 128)
    errors = []
    for size in sizes:
        draws = np.stack([inner_products(policy, turns, size=size, seed=seed) for seed in range(40)])
        errors.append(np.sqrt((((draws - truth) / norms) ** 2).mean()))
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert -0.62 < slope < -0.42  # theory: -1/2, a little steeper where 4/size² still counts


@pytest.mark.parametrize("size", [4, 16])
def test_the_variance_of_one_outer_product_is_that_of_theory(size: int) -> None:
    """For δ xᵀ the sketched squared norm has relative variance (1 + 2/m)² - 1: two independent χ² factors."""
    delta, x = torch.randn(30), torch.randn(20)
    weight = torch.empty(30, 20)
    norms = []
    for draw in range(2000):
        projection = _projection(weight, size, str(draw))
        sketch = torch.outer(delta @ projection.outputs, x @ projection.inputs)
        norms.append(float(sketch.square().sum() / (delta.square().sum() * x.square().sum())))
    assert np.mean(norms) == pytest.approx(1, abs=4 * float(np.std(norms)) / sqrt(len(norms)))
    assert np.var(norms) == pytest.approx((1 + 2 / size) ** 2 - 1, rel=0.25)


def test_rows_of_one_pass_do_not_mix(policy: TransformersPolicy, turns: list[Turn]) -> None:
    """A turn's sketch is the same alone and among others, and linear: the batch's is the mean of its rows'."""
    together = KroneckerSketch(policy, size=8).gradients(turns)
    alone = torch.cat([KroneckerSketch(policy, size=8).gradients([turn]) for turn in turns])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-7)


def test_the_policy_is_left_as_it_was(policy: TransformersPolicy, turns: list[Turn]) -> None:
    """No gradient and no hook stays behind."""
    KroneckerSketch(policy, size=4).gradients(turns)
    assert all(parameter.grad is None for parameter in policy.model.parameters())
    assert not any(module._forward_hooks for module in policy.model.modules())
