"""One update: exact gradients whatever is merged and packed, and figures that say what was done."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen3ForCausalLM

from divopd import Turn
from divopd.errors import AlignmentError, DivopdError, InputError
from divopd.learner.torch_learner import TorchLearner
from divopd.models.optimization import Optimization
from divopd.models.packing import make_row, merge_rows
from divopd.models.transformers_policy import Lora, TransformersPolicy, _with_lora
from divopd.validity import why_invalid
from token_rollouts import (
    HISTORIES,
    dead,
    gradient,
    own_copy,
    plain_gradient,
    plain_logprobs,
    pool,
    rollout,
    tiny_model,
)

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}


def batch_of(kind: str) -> tuple[list[Turn], list[float] | None]:
    """Two rollouts of one kind of history; or a mixed pool with dead rows; or that pool with weights."""
    if kind in HISTORIES:
        return [*rollout("a", history=kind, seed=1), *rollout("b", history=kind, seed=2)], None
    turns = pool()
    weights = np.random.default_rng(0).exponential(size=len(turns)).tolist()
    return (turns, None) if kind == "dead rows" else (turns, weights)


def relative_error(model: torch.nn.Module, turns: Sequence[Turn], weights: Sequence[float] | None) -> float:
    expected = plain_gradient(own_copy(model), turns, weights)
    learner = TorchLearner(TransformersPolicy(model), Optimization(max_tokens=60))
    learner.gradient(turns, weights)
    return float((gradient(model) - expected).norm() / expected.norm())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("kind", [*HISTORIES, "dead rows", "weights"])
def test_merged_and_packed_gradients_are_those_of_single_rows(kind: str, dtype: torch.dtype) -> None:
    """Against rows read one by one with the model's own forward pass, all logits and two passes, in float64."""
    turns, weights = batch_of(kind)
    assert relative_error(tiny_model(dtype), turns, weights) < TOLERANCE[dtype]


@pytest.mark.parametrize("changes", [{"tie_word_embeddings": True}, {"num_key_value_heads": 4}], ids=str)
def test_gradients_of_other_shapes(changes: dict[str, Any]) -> None:
    """A head that shares the embedding's weights, and attention without shared keys."""
    turns, weights = batch_of("weights")
    assert relative_error(tiny_model(**changes), turns, weights) < 1e-6


def test_checkpointed_activations_give_the_same_gradient() -> None:
    model = tiny_model()
    turns, _ = batch_of("full")
    TorchLearner(TransformersPolicy(model), Optimization(activations="recompute")).gradient(turns)
    expected = plain_gradient(own_copy(tiny_model()), turns)
    torch.testing.assert_close(gradient(model), expected, rtol=1e-9, atol=1e-12)


def test_a_teacher_that_equals_the_student_teaches_nothing() -> None:
    """Loss and every gradient are exactly zero when the teacher's log probabilities are the student's own."""
    model = tiny_model(torch.float32)
    policy = TransformersPolicy(model)
    turns = [*rollout("a", seed=1), *rollout("b", history="windowed", seed=2)]
    rows = [[*turn.prompt_ids, *turn.response_ids] for turn in turns]
    spans = [[(len(turn.prompt_ids), turn.tokens)] for turn in turns]
    scores = policy.score(rows, spans)
    scored = [replace(t, teacher_logprobs=s.tolist(), teacher_mask=None) for t, (s,) in zip(turns, scores, strict=True)]
    figures = TorchLearner(policy).gradient(scored)
    assert figures.loss == figures.learner_kl_per_token == figures.gradient_norm == 0.0
    assert not gradient(model).any()


def test_full_history_costs_one_pass_over_the_longest_row() -> None:
    """Figures count tokens as the paper does and as they were computed."""
    turns = rollout("a", turns=6)
    figures = TorchLearner(TransformersPolicy(tiny_model())).update([*turns, dead(turns[0])])
    assert figures.tokens == sum(turn.tokens for turn in turns) + turns[0].tokens
    last = make_row(turns[-1].prompt_ids, turns[-1].response_ids, turns[-1].teacher_mask)
    assert figures.computed_tokens == merge_rows([last])[0].tokens < turns[-1].tokens
    assert (figures.rows, figures.dead_rows) == (7, 1)
    assert figures.valid_tokens == sum(sum(turn.teacher_mask or ()) for turn in turns)
    assert set(figures.seconds) == {"pack", "forward", "backward", "step"}
    assert min(figures.seconds.values()) > 0


def test_the_gap_to_generation_is_that_of_the_newest_rows() -> None:
    """Mean and largest absolute difference over their valid tokens only, whatever older and dead rows say."""
    model = tiny_model()
    policy = TransformersPolicy(model)
    turns = [replace(turn, version=int(turn.rollout < "r4")) for turn in pool()]
    off = [np.random.default_rng(n).normal(size=len(turn.response_ids)) for n, turn in enumerate(turns)]
    own = [plain_logprobs(own_copy(model), turn).detach().numpy() for turn in turns]
    told = [replace(t, student_logprobs=(o - d).tolist()) for t, o, d in zip(turns, own, off, strict=True)]
    masks = [np.asarray(turn.teacher_mask, bool) for turn in turns]
    newest = np.abs(np.concatenate([d[m] for t, d, m in zip(told, off, masks, strict=True) if t.version]))
    gap = TorchLearner(policy, Optimization(max_tokens=60)).update(told).logprob_gap
    assert gap is not None
    assert (gap.version, gap.tokens) == (1, len(newest))
    np.testing.assert_allclose([gap.mean, gap.largest], [newest.mean(), newest.max()], rtol=1e-6)
    assert TorchLearner(policy).gradient([dead(turn) for turn in turns]).logprob_gap is None


def test_an_update_is_one_clipped_adamw_step() -> None:
    """The weights after two updates equal those that torch's own AdamW makes of the plain gradient."""
    model = tiny_model()
    reference = own_copy(model)
    learner = TorchLearner(TransformersPolicy(model), Optimization(lr=1e-2, max_grad_norm=0.5))
    optimizer = torch.optim.AdamW(reference.parameters(), lr=1e-2, betas=(0.9, 0.999), weight_decay=0.01)
    for seed in (0, 1):
        turns = pool(seed)
        figures = learner.update(turns)
        norm = plain_gradient(reference, turns).norm()
        torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
        optimizer.step()
        assert figures.gradient_norm == pytest.approx(float(norm))
        assert norm > 0.5
        assert figures.clipped_norm == pytest.approx(0.5, rel=1e-4)
        assert figures.lr == 1e-2
        assert figures.memory_bytes is not None
        assert 10**7 < figures.memory_bytes < 10**12
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-8)


def test_a_small_gradient_is_not_clipped() -> None:
    """Both norms are told, and they are the same."""
    figures = TorchLearner(TransformersPolicy(tiny_model()), Optimization(max_grad_norm=1e6)).update(pool(0))
    assert figures.clipped_norm == pytest.approx(figures.gradient_norm)


SCHEDULES = {
    "constant": [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
    "linear": [0.25, 0.5, 0.75, 1.0, 1.0, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6],
    "cosine": [0.25, 0.5, 0.75, 1.0, 1.0, 0.9330127, 0.75, 0.5, 0.25, 0.0669873],
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_learning_rate_follows_its_schedule(schedule: Any) -> None:
    """Up in equal steps, then constant, or down so that the next update after the last would have none."""
    settings = Optimization(lr=2e-3, warmup=4, schedule=schedule, updates=10)
    assert [settings.lr_at(update) for update in range(10)] == pytest.approx([2e-3 * f for f in SCHEDULES[schedule]])
    assert settings.lr_at(10) == (2e-3 if schedule == "constant" else pytest.approx(0.0, abs=1e-12))


def test_a_resumed_learner_goes_on_in_its_schedule(tmp_path: Path) -> None:
    """The learning rate is that of the update, not that of the process; weights and figures are as without a stop."""
    settings = Optimization(lr=1e-2, warmup=2, schedule="linear", updates=4)
    whole, first, second = (TorchLearner(TransformersPolicy(tiny_model()), settings) for _ in range(3))
    rates = [whole.update(pool(seed)).lr for seed in range(4)]
    assert rates == pytest.approx([5e-3, 1e-2, 1e-2, 5e-3])
    for seed in range(2):
        first.update(pool(seed))
    first.save(tmp_path, update=1, state={}).wait()
    second.load(tmp_path / "000001")
    assert [second.update(pool(seed)).lr for seed in (2, 3)] == rates[2:]
    for one, other in zip(whole.parameters, second.parameters, strict=True):
        assert torch.equal(one, other)


def test_updates_bring_the_student_to_the_teacher() -> None:
    """Thirty updates on its own responses take most of the student's disagreement away."""
    student, teacher = (TransformersPolicy(tiny_model(torch.float32, seed=seed)) for seed in (0, 7))
    prompts = [[5, 6, 7, 8 + n % 4] for n in range(64)]
    learner = TorchLearner(student, Optimization(lr=1e-2))
    history = []
    for update in range(30):
        said = student.respond(prompts, temperature=1.0, max_tokens=4, seeds=range(64 * update, 64 * update + 64))
        rows = [[*prompt, *response.ids] for prompt, response in zip(prompts, said, strict=True)]
        scores = teacher.score(rows, [[(4, len(row))] for row in rows])
        turns = [
            Turn(f"r{n}", 0, "t", 0, prompt_ids=row[:4], response_ids=row[4:], student_logprobs=r.logprobs.tolist(),
                 teacher_logprobs=s.tolist(), action_mask=[1] * len(r.ids))
            for n, (row, r, (s,)) in enumerate(zip(rows, said, scores, strict=True))
        ]  # fmt: skip
        history.append(learner.update(turns).learner_kl_per_token)
    assert np.mean(history[-5:]) < 0.4 * history[0]


def test_a_batch_of_dead_rows_is_a_step_with_gradient_zero() -> None:
    model = tiny_model()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    figures = TorchLearner(TransformersPolicy(model), Optimization(lr=0.1, weight_decay=0.5)).update(
        [dead(turn) for turn in rollout("a")]
    )
    assert (figures.gradient_norm, figures.loss, figures.computed_tokens) == (0.0, 0.0, 0)
    for old, new in zip(before, model.parameters(), strict=True):
        torch.testing.assert_close(new.detach(), old * (1 - 0.1 * 0.5))


INVALID: dict[str, dict[str, Any]] = {  # each with tokens that both masks allow
    "prompt_truncated": {"prompt_truncated": True},
    "no_student_logprobs": {"student_logprobs": None},
    "no_teacher_logprobs": {"teacher_logprobs": None},
    "misaligned": {"teacher_logprobs": [-1.0]},
    "not_finite: teacher": {"teacher_logprobs": [float("-inf")] * 5},
    "not_finite: student": {"student_logprobs": [float("nan")] * 5},
    "not_finite: above 0": {"teacher_logprobs": [0.5] * 5},
}


@pytest.mark.parametrize("reason", INVALID)
def test_an_invalid_turn_is_a_dead_row_whatever_its_masks_say(reason: str) -> None:
    """It adds 0 to the loss and counts in the denominator, and so does any weight that a method gives it."""
    turns = [turn for turn in rollout("a", seed=3) if len(turn.response_ids) == 5]
    [*others, last] = rollout("b", seed=1) + turns
    changes = {"teacher_mask": [1] * 5, "action_mask": [1] * 5} | INVALID[reason]
    invalid = replace(last, **changes)
    assert why_invalid(invalid) == reason.partition(":")[0]
    size = len(others) / (len(others) + 1)
    model = tiny_model()
    learner = TorchLearner(TransformersPolicy(model))
    alone = learner.gradient(others)
    expected = gradient(model) * size
    beside = learner.gradient([*others, invalid], [*([1.0] * len(others)), 7.0])
    torch.testing.assert_close(gradient(model), expected, rtol=1e-9, atol=1e-12)
    assert beside.loss == pytest.approx(alone.loss * size, rel=1e-9)
    assert (beside.rows, beside.dead_rows, beside.valid_tokens) == (len(others) + 1, 1, alone.valid_tokens)


def test_broken_batches_change_no_weight() -> None:
    """Ids outside the vocabulary, an empty batch, weights that overflow: an error each, and the model as before."""
    model = tiny_model(torch.float32)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    learner = TorchLearner(TransformersPolicy(model), Optimization(lr=0.1))
    first, *rest = rollout("a")
    with pytest.raises(AlignmentError, match="token id 61 is outside the model's vocabulary of 61"):
        learner.update([*rest, replace(first, prompt_ids=[5, 61])])
    with pytest.raises(AlignmentError, match="token id -1 "):
        learner.update([replace(first, response_ids=[-1] * len(first.response_ids))])
    with pytest.raises(InputError, match="at least one row"):
        learner.update([])
    with pytest.raises(DivopdError, match="no weight was changed"):
        learner.update([first], [float("inf")])
    for old, new in zip(before, model.parameters(), strict=True):
        assert torch.equal(old, new)


def test_bfloat16_products_with_float32_weights() -> None:
    """Computing in bfloat16 gives the gradient roughly; weights that are bfloat16 themselves are refused."""
    turns = pool()
    model = tiny_model(torch.float32)
    expected = plain_gradient(own_copy(model), turns)
    TorchLearner(TransformersPolicy(model), Optimization(compute="bfloat16")).gradient(turns)
    assert 1e-5 < float((gradient(model) - expected).norm() / expected.norm()) < 0.1
    with pytest.raises(InputError, match=r"load it in float32"):
        TorchLearner(TransformersPolicy(tiny_model(torch.bfloat16)))


def test_adapters_start_from_the_seed() -> None:
    """Whatever torch's own generator has drawn, and without a draw from it; another seed gives another start."""
    pytest.importorskip("peft", reason="for want of the extra lora")

    def adapters(seed: int) -> torch.Tensor:
        base = tiny_model(torch.float32)
        torch.rand(1)
        before = torch.get_rng_state()
        model = _with_lora(base, Lora(rank=2, alpha=4), seed=seed)
        assert torch.equal(torch.get_rng_state(), before)
        found = [value.flatten() for name, value in model.named_parameters() if "lora_A" in name]
        return torch.cat(found)

    first, again, other = adapters(3), adapters(3), adapters(4)
    assert torch.equal(first, again)
    assert not torch.isclose(first, other).any()


def test_lora_trains_the_adapters_only(tmp_path: Path) -> None:
    """The base model's weights stay, the adapters move, and a saved model has them merged while training can go on."""
    pytest.importorskip("peft", reason="for want of the extra lora")
    model = _with_lora(tiny_model(torch.float32), Lora(rank=2, alpha=4), seed=0)
    policy = TransformersPolicy(model)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    turns = pool()
    learner = TorchLearner(policy, Optimization(lr=1e-2))
    losses = [learner.update(turns).loss for _ in range(4)]
    moved = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    assert moved == {name for name in before if "lora_" in name}
    assert abs(losses[-1]) < abs(losses[0])
    policy.save(tmp_path)
    saved = TransformersPolicy(Qwen3ForCausalLM.from_pretrained(tmp_path))
    ids, spans = [[5, 6, 7, 8, 9]], [[(1, 5)]]
    np.testing.assert_allclose(saved.score(ids, spans)[0][0], policy.score(ids, spans)[0][0], atol=1e-5)
    assert learner.update(turns).gradient_norm > 0
