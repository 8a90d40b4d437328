"""One update against padded training row by row: rows per second and peak memory, on the same batches.

The batches are composed by `vanilla` and by `divopd` from 15-turn rollouts with full history. The reference pads rows
into micro-batches of the same token budget and takes log probabilities from the model's own logits of all positions;
like ours it reads each row once per update. The model has the proportions of a small Qwen3 (a quarter of its weights
are the vocabulary's). Seconds are processor seconds of one thread, so that other work on the machine does not count;
memory is the growth of a fresh process during one update.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from divopd import Pool, Row, Turn
from divopd.learner.torch_learner import TorchLearner
from divopd.models.generation import shared_prefixes
from divopd.models.optimization import Optimization
from divopd.models.packing import make_row, merge_rows
from divopd.models.transformers_policy import TransformersPolicy

MAX_TOKENS, VOCABULARY = 4096, 4096
SIDES = ("ours", "padded")


class Sizes(NamedTuple):
    methods: tuple[str, ...]
    turns: int  # of a rollout
    batch: int
    rounds: int


FULL = Sizes(methods=("vanilla", "divopd"), turns=15, batch=32, rounds=2)
QUICK = Sizes(methods=("divopd",), turns=3, batch=4, rounds=1)


def run(sizes: Sizes) -> dict:
    torch.set_num_threads(1)
    methods = {
        method: _compare(compose(method, turns=sizes.turns, batch=sizes.batch), rounds=sizes.rounds)
        for method in sizes.methods
    }
    for method, figures in methods.items():
        figures["memory_mb"] = {side: _memory_mb(side, method, sizes) for side in SIDES}
        figures["memory_share"] = figures["memory_mb"]["ours"] / figures["memory_mb"]["padded"]
    return {
        "bench": "learner",
        "ratio": min(figures["ratio"] for figures in methods.values()),
        "unit": "rows/s",
        "ours": methods["divopd"]["rows_per_s"]["ours"],
        "reference": methods["divopd"]["rows_per_s"]["padded"],
        "detail": methods,
    }


def _compare(turns: list[Turn], *, rounds: int) -> dict:
    seconds = {side: [] for side in SIDES}
    norms = {}
    for _ in range(rounds):
        for side in SIDES:
            update = make_update(side)
            start = time.process_time()
            norms[side] = update(turns)
            seconds[side].append(time.process_time() - start)
    assert abs(norms["ours"] / norms["padded"] - 1) < 1e-4, f"the two gradients differ: {norms}"
    best = {side: min(times) for side, times in seconds.items()}
    tokens, unique = sum(turn.tokens for turn in turns), unique_tokens(turns)
    computed = sum(s.tokens for s in merge_rows([make_row(turn.prompt_ids, turn.response_ids) for turn in turns]))
    return {
        "ratio": best["padded"] / best["ours"],  # above the limit: padding, logits of prompts and attention count too
        "rows_per_s": {side: len(turns) / best[side] for side in SIDES},
        "rollouts": len({turn.rollout for turn in turns}),
        "limit_all_tokens_by_unique_tokens": tokens / unique,
        "all_tokens_by_computed_tokens": tokens / computed,
        "share_of_limit": unique / computed,
    }


# ── batches ───────────────────────────────────────────────────────────────────────────────────────────────────────


def compose(method: str, *, turns: int, batch: int) -> list[Turn]:
    """The batch that a method takes from a queue of rollouts with so many turns."""
    pool = Pool(method, batch_size=batch)
    queue = [turn for number in range(4 * batch // turns + 1) for turn in rollout(number, turns)]
    pool.put(map(Row.of, queue))
    return [row.payload for row in pool.compose(update=0, allow_short=True).rows]


def rollout(number: int, count: int) -> list[Turn]:
    """Instructions that all rollouts share, a task, then an observation and a response a turn."""
    rng = np.random.default_rng(number)
    context = [*range(100, 160), *rng.integers(4, VOCABULARY, 40).tolist()]
    turns = []
    for index in range(count):
        context = [*context, *rng.integers(4, VOCABULARY, 36).tolist()]
        response = rng.integers(4, VOCABULARY, 24).tolist()
        student, teacher = (-rng.exponential(1.0, 24) for _ in range(2))
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
                action_mask=[1] * 24,
            )
        )
        context = [*context, *response]
    return turns


def unique_tokens(turns: list[Turn]) -> int:
    """Tokens in the batch when every shared beginning is counted once: no exact method computes fewer."""
    rows = sorted([*turn.prompt_ids, *turn.response_ids] for turn in turns)
    shared = [int(shared_prefixes([np.array(a)], [np.array(b)])[0, 0]) for a, b in pairwise(rows)]
    return sum(map(len, rows)) - sum(shared)


# ── the two sides: each makes an update of a new model and returns the gradient's norm ────────────────────────────


def make_update(side: str) -> Callable[[list[Turn]], float]:
    model = make_model()
    if side == "padded":
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.01)
        return lambda turns: padded_update(model.train(), optimizer, turns)
    learner = TorchLearner(TransformersPolicy(model), Optimization(max_tokens=MAX_TOKENS))
    return lambda turns: learner.update(turns).gradient_norm


def make_model() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=352, num_hidden_layers=8, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=4096, tie_word_embeddings=True,
    )  # fmt: skip
    return Qwen3ForCausalLM(config)


def padded_update(model: Qwen3ForCausalLM, optimizer: torch.optim.Optimizer, turns: list[Turn]) -> float:
    """The plain way: pad, take all logits, gather the response's."""
    for rows in padded_micro_batches(turns):
        longest = max(turn.tokens for turn in rows)
        ids = torch.zeros(len(rows), longest, dtype=torch.long)
        there, valid, teacher = (torch.zeros(len(rows), longest) for _ in range(3))
        for n, turn in enumerate(rows):
            start, end = len(turn.prompt_ids), turn.tokens
            ids[n, :end] = torch.tensor([*turn.prompt_ids, *turn.response_ids])
            there[n, :end] = valid[n, start:end] = 1
            teacher[n, start:end] = torch.tensor(turn.teacher_logprobs)
        logits = model(input_ids=ids, attention_mask=there, use_cache=False).logits[:, :-1]
        logprobs = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        advantage = teacher[:, 1:] - logprobs.detach()
        ratio = torch.exp(logprobs - logprobs.detach())
        row_losses = -(valid[:, 1:] * ratio * advantage).sum(1) / valid.sum(1)
        (row_losses.sum() / len(turns)).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float(norm)


def padded_micro_batches(turns: list[Turn]) -> list[list[Turn]]:
    """Rows in batch order, as many as fit the budget when padded to the longest of them."""
    batches: list[list[Turn]] = [[]]
    for turn in turns:
        rows = [*batches[-1], turn]
        if batches[-1] and len(rows) * max(row.tokens for row in rows) > MAX_TOKENS:
            batches.append([turn])
        else:
            batches[-1] = rows
    return batches


# ── memory, in processes of their own ─────────────────────────────────────────────────────────────────────────────


def _memory_mb(side: str, method: str, sizes: Sizes) -> float:
    command = [sys.executable, __file__, side, method, str(sizes.turns), str(sizes.batch)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def _growth_mb(side: str, method: str, *, turns: int, batch: int) -> float:
    torch.set_num_threads(1)
    composed = compose(method, turns=turns, batch=batch)
    update = make_update(side)
    before = _peak_mb()
    update(composed)
    return _peak_mb() - before


def _peak_mb() -> float:
    # not getrusage: its peak survives exec, so that a child starts with its parent's
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    _, side_, method_, turns_, batch_ = sys.argv
    print(json.dumps(_growth_mb(side_, method_, turns=int(turns_), batch=int(batch_))))
