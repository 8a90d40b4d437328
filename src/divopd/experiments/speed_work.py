"""What benchmarks of models work on: models of two shapes, and rollouts of random tokens."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from divopd.models.packing import shared_prefix
from divopd.pool import Pool, Row
from divopd.turns import Turn

SMALL = "small"  # the proportions of a small Qwen3: a quarter of its weights are the vocabulary's
SMOLLM2 = "smollm2"  # SmolLM2-135M; its weights are random, on which no speed depends
VOCABULARY = 4096  # ids that rollouts are drawn from; both models have them
INSTRUCTIONS, TASK, OBSERVATION, RESPONSE = 60, 40, 36, 24  # tokens; all rollouts share the instructions


def make_model(shape: str) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    if shape == SMALL:
        config = Qwen3Config(
            vocab_size=VOCABULARY, hidden_size=128, intermediate_size=352, num_hidden_layers=8, num_attention_heads=4,
            num_key_value_heads=2, head_dim=32, max_position_embeddings=4096, tie_word_embeddings=True,
        )  # fmt: skip
        return Qwen3ForCausalLM(config)
    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=8192, tie_word_embeddings=True, rms_norm_eps=1e-5,
        bos_token_id=1, eos_token_id=2, initializer_range=0.04,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def compose(method: str, *, turns: int, batch: int) -> list[Turn]:
    """The batch that a method takes from a queue of rollouts with so many turns."""
    pool = Pool(method, batch_size=batch)
    queue = [turn for number in range(4 * batch // turns + 1) for turn in rollout(number, turns)]
    pool.put(map(Row.of, queue))
    return [row.payload for row in pool.compose(update=0, allow_short=True).rows]


def rollout(number: int, count: int) -> list[Turn]:
    """Instructions that all rollouts share, a task, then an observation and a response a turn."""
    rng = np.random.default_rng(number)
    context = [*range(100, 100 + INSTRUCTIONS), *rng.integers(4, VOCABULARY, TASK).tolist()]
    turns = []
    for index in range(count):
        context = [*context, *rng.integers(4, VOCABULARY, OBSERVATION).tolist()]
        response = rng.integers(4, VOCABULARY, RESPONSE).tolist()
        student, teacher = (-rng.exponential(1.0, RESPONSE) for _ in range(2))
        turns.append(
            Turn(
                f"r{number:03d}",
                index,
                task=f"t{number}",
                version=0,
                prompt_ids=context,
                response_ids=response,
                student_logprobs=student.tolist(),
                teacher_logprobs=teacher.tolist(),
                action_mask=[1] * RESPONSE,
            )
        )
        context = [*context, *response]
    return turns


def unique_tokens(turns: Sequence[Turn]) -> int:
    """Tokens in the batch when every shared beginning is counted once: no exact method computes fewer."""
    rows = sorted([*turn.prompt_ids, *turn.response_ids] for turn in turns)
    return sum(map(len, rows)) - sum(shared_prefix(np.array(a), np.array(b)) for a, b in pairwise(rows))
