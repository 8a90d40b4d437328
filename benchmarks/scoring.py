"""A teacher that reads a 15-turn rollout once, against the same teacher reading it turn by turn.

Seconds are processor seconds of one thread, so that other work on the machine does not count.
"""

import time
from typing import NamedTuple

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from divopd.models.transformers_policy import TransformersPolicy

SYSTEM, OBSERVATION, RESPONSE = 100, 36, 24  # tokens


class Sizes(NamedTuple):
    turns: int
    rounds: int


FULL = Sizes(turns=15, rounds=5)
QUICK = Sizes(turns=3, rounds=1)


def run(sizes: Sizes) -> dict:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=4096, hidden_size=128, intermediate_size=352, num_hidden_layers=8, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=4096, tie_word_embeddings=True,
    )  # fmt: skip
    teacher = TransformersPolicy(Qwen3ForCausalLM(config))
    ends = [SYSTEM + (n + 1) * (OBSERVATION + RESPONSE) for n in range(sizes.turns)]
    spans = [(end - RESPONSE, end) for end in ends]
    ids = np.random.default_rng(0).integers(4, 4096, ends[-1]).tolist()
    once, by_turn = float("inf"), float("inf")
    for _ in range(sizes.rounds):
        start = time.process_time()
        (together,) = teacher.score([ids], [spans])
        middle = time.process_time()
        single = [teacher.score([ids[:end]], [[span]])[0][0] for end, span in zip(ends, spans, strict=True)]
        once, by_turn = min(once, middle - start), min(by_turn, time.process_time() - middle)
    difference = max(float(np.abs(a - b).max()) for a, b in zip(together, single, strict=True))
    return {
        "bench": "scoring",
        "ratio": by_turn / once,
        "unit": "seconds for one rollout",
        "ours": once,
        "reference": by_turn,
        "detail": {
            "turns": sizes.turns,
            "limit_all_tokens_by_unique_tokens": sum(ends) / ends[-1],
            "largest_difference_of_log_probabilities": difference,
        },
    }
