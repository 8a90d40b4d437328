"""Rollouts of random tokens, a small model, and the objective written row by row as plainly as possible."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from divopd import Turn

VOCABULARY = 61
HISTORIES = ("full", "windowed", "rewritten")


def tiny_model(dtype: torch.dtype = torch.float64, *, seed: int = 0, **changes: Any) -> Qwen3ForCausalLM:
    """A Qwen3 of two layers whose weights are large enough for its distributions to be far from uniform."""
    settings = {
        "vocab_size": VOCABULARY,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 512,
        "initializer_range": 0.2,
        "tie_word_embeddings": False,
        "eos_token_id": 3,
        "pad_token_id": 0,
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(Qwen3Config(**{**settings, **changes}))
    torch.nn.Module.to(model, dtype)  # transformers' own wrapper of it has no types
    return _with_exact_norms(model) if dtype == torch.float64 else model


def _with_exact_norms(model: Any) -> Any:
    """transformers' own norms compute in float32 whatever the model's type, which would hide errors below 1e-7."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, Qwen3RMSNorm):
                norm = torch.nn.RMSNorm(child.weight.shape[0], child.variance_epsilon, dtype=child.weight.dtype)
                setattr(module, name, norm)
    return model


def rollout(name: str, *, history: str = "full", turns: int = 5, seed: int = 0) -> list[Turn]:
    """A rollout whose prompts hold all turns before, only the last two, or all of them with the answers shortened."""
    rng = np.random.default_rng(seed)
    system = rng.integers(4, VOCABULARY, 9).tolist()
    past: list[tuple[list[int], list[int]]] = []
    made = []
    for index in range(turns):
        seen = rng.integers(4, VOCABULARY, int(rng.integers(2, 7))).tolist()
        shown = past[-2:] if history == "windowed" else past
        cut = 1 if history == "rewritten" else 0
        prompt = [*system, *(t for saw, said in shown for t in (*saw, *said[cut:])), *seen]
        response = rng.integers(4, VOCABULARY, int(rng.integers(2, 6))).tolist()
        past.append((seen, response))
        made.append(_turn(name, index, prompt, response, rng))
    return made


def _turn(name: str, index: int, prompt: list[int], response: list[int], rng: np.random.Generator) -> Turn:
    size = len(response)
    teacher_mask = rng.integers(0, 2, size)
    teacher_mask[rng.integers(size)] = 1
    return Turn(
        name,
        index,
        task=name,
        version=0,
        prompt_ids=prompt,
        response_ids=response,
        student_logprobs=(-rng.exponential(2, size)).tolist(),
        teacher_logprobs=(-rng.exponential(2, size)).tolist(),
        action_mask=[1] * size,
        teacher_mask=teacher_mask.tolist(),
    )


def dead(turn: Turn) -> Turn:
    """The same turn as a dead row."""
    return replace(turn, prompt_truncated=True, teacher_mask=[0] * len(turn.response_ids))


def pool(seed: int = 0) -> list[Turn]:
    """Turns of six rollouts with all kinds of history, two dead rows among them."""
    turns = [
        turn
        for n, history in enumerate(HISTORIES * 2)
        for turn in rollout(f"r{n}", history=history, turns=3 + n % 3, seed=10 * seed + n)
    ]
    return [dead(turn) if n in (4, 11) else turn for n, turn in enumerate(turns)]


# ── the reference: one row at a time, the model's own forward pass, all logits, float64, two passes ────────────────


def own_copy(model: Any) -> Any:
    """The same weights in float64 with transformers' own attention."""
    other = copy.deepcopy(model).double()
    other.set_attn_implementation("sdpa")
    return other


def plain_logprobs(model: Any, turn: Turn) -> torch.Tensor:
    """Log probabilities of the response, read alone."""
    ids = torch.tensor([*turn.prompt_ids, *turn.response_ids])
    start = len(turn.prompt_ids)
    logits = model(ids[None]).logits[0].log_softmax(-1)
    return logits[torch.arange(start - 1, len(ids) - 1), ids[start:]]


def plain_row_loss(model: Any, turn: Turn) -> torch.Tensor:
    """ℓ_t of specification §5, or 0 for a dead row."""
    valid = torch.tensor(turn.action_mask) * torch.tensor(turn.teacher_mask or turn.action_mask)
    if turn.prompt_truncated or not valid.any():
        return torch.zeros(())
    with torch.no_grad():
        old = plain_logprobs(model, turn)
    advantage = torch.tensor(turn.teacher_logprobs, dtype=torch.float64) - old
    ratio = torch.exp(plain_logprobs(model, turn) - old)
    return -(ratio * advantage * valid).sum() / valid.sum()


def plain_gradient(model: Any, turns: Sequence[Turn], weights: Sequence[float] | None = None) -> torch.Tensor:
    """The gradient of the batch's loss by all parameters, as one vector."""
    model.zero_grad()
    weights = [1.0] * len(turns) if weights is None else weights
    losses = (w * plain_row_loss(model, turn) for w, turn in zip(weights, turns, strict=True))
    loss = sum(losses, start=torch.zeros(())) / len(turns)
    if loss.requires_grad:
        loss.backward()
    return gradient(model)


def gradient(model: Any) -> torch.Tensor:
    """The gradients in the parameters as one float64 vector."""
    return torch.cat(
        [(torch.zeros_like(p) if p.grad is None else p.grad).double().flatten() for p in model.parameters()]
    )
