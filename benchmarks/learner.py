"""One update against the best short way: processor seconds and peak memory, on the same batches.

The short way is what a good engineer writes: one whole rollout at a time with the model's own forward pass, the head at
scored positions only, torch's fused AdamW. Row per turn is what most systems do: rows padded into micro-batches of the
same token budget, the logits of all positions. All three have the same gradient, which is checked. Batches are composed
by `vanilla` and by `divopd` from 15-turn rollouts with full history; 60 of the tokens are instructions that all share.
With --peer trl: its IW-OPD with γ = 0, and its asynchronous trainer, whose objective is another one. One thread; rounds
alternate; memory is the growth of a fresh process during one update.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from divopd import Turn
from divopd.experiments.peers import Peer, PeerProcess, Times, interleaved, ratio, timed
from divopd.experiments.speed_work import SMALL, SMOLLM2, compose, make_model, unique_tokens
from divopd.learner.torch_learner import TorchLearner
from divopd.models.optimization import Optimization
from divopd.models.packing import make_row, merge_rows
from divopd.models.transformers_policy import TransformersPolicy
from divopd.models.trees import grow_trees

MAX_TOKENS = 4096


class Work(NamedTuple):
    shape: str  # of the model
    method: str
    turns: int  # of a rollout
    batch: int
    rounds: int
    sides: tuple[str, ...]


class Sizes(NamedTuple):
    works: tuple[Work, ...]


SIDES = ("ours", "short_way", "row_per_turn")
FULL = Sizes(
    (
        Work(SMALL, "vanilla", turns=15, batch=32, rounds=3, sides=SIDES),
        Work(SMALL, "divopd", turns=15, batch=32, rounds=3, sides=SIDES),
        Work(SMOLLM2, "divopd", turns=15, batch=6, rounds=3, sides=SIDES[:2]),
    )
)
QUICK = Sizes((Work(SMALL, "divopd", turns=3, batch=4, rounds=1, sides=SIDES),))


def run(sizes: Sizes) -> dict:
    torch.set_num_threads(1)
    works = {f"{work.shape}, {work.method}": _compare(work) for work in sizes.works}
    last = list(works.values())[-1]
    return {
        "bench": "learner",
        "ratio": min(figures["ratio"] for figures in works.values()),
        "unit": "processor seconds of an update, against one whole rollout at a time",
        "ours": last["ours"]["processor_s"],
        "reference": last["short_way"]["processor_s"],
        "detail": works,
    }


def run_beside(peer: Peer, process: PeerProcess, sizes: Sizes) -> dict:
    """Against the real package, with the same weights, one thread each: the better of its ways counts."""
    torch.set_num_threads(1)
    works = {
        f"{work.shape}, {work.method}, {way}": _beside(work, way, peer, process)
        for work in sizes.works
        if work.method == "divopd"
        for way in ("rollouts", "rows", "unpacked", "packed")
    }
    least = min(works.values(), key=lambda figures: figures["ratio"])
    return {
        "bench": "learner",
        "ratio": least["ratio"],
        "unit": "processor seconds of an update, the smallest ratio",
        "ours": least["ours"]["processor_s"],
        "reference": least[peer.name]["processor_s"],
        "detail": {"peer": peer.package, **process.ask("about"), **works},
    }


def _beside(work: Work, way: str, peer: Peer, process: PeerProcess) -> dict[str, Any]:
    turns, norms = compose(work.method, turns=work.turns, batch=work.batch), list[float]()
    asked = [
        {
            "rollout": turn.rollout,
            "ids": [*turn.prompt_ids, *turn.response_ids],
            "start": len(turn.prompt_ids),
            "teacher": turn.teacher_logprobs,
        }
        for turn in turns
    ]
    update = make_update("ours", work.shape)
    with tempfile.TemporaryDirectory() as folder:
        make_model(work.shape).save_pretrained(folder)
        begun = {"model": folder, "way": way, "max_tokens": MAX_TOKENS}
        process.ask("begin", **begun)
        with process.anew() as fresh:
            fresh.ask("begin", **begun)
            memory = {"ours": _memory_mb("ours", work), peer.name: fresh.ask("memory", turns=asked)}
    sides = {
        "ours": lambda: timed(lambda: norms.append(update(turns))),
        peer.name: lambda: process.times("update", turns=asked),
    }
    taken = interleaved(sides, rounds=work.rounds)
    told = process.ask("told")
    if way in ("rollouts", "rows"):  # the asynchronous trainer has another objective
        assert abs(told["norm"] / norms[-1] - 1) < 1e-3, f"the gradients differ: {told}, {norms}"
    assert told["tokens"] == sum(len(turn.response_ids) for turn in turns)
    return {
        "ratio": ratio(taken, ours="ours", theirs=peer.name),
        **taken,
        "memory_mb": memory,
        "memory_share": memory["ours"] / memory[peer.name],
        "norms": [norms[-1], told["norm"]],
    }


def _compare(work: Work) -> dict[str, Any]:
    turns = compose(work.method, turns=work.turns, batch=work.batch)
    updates = {side: make_update(side, work.shape) for side in work.sides}
    norms: dict[str, list[float]] = {side: [] for side in work.sides}

    def round_of(side: str) -> Callable[[], Times]:
        return lambda: timed(lambda: norms[side].append(updates[side](turns)))

    taken = interleaved({side: round_of(side) for side in work.sides}, rounds=work.rounds)
    for side in work.sides:
        assert abs(norms[side][0] / norms["ours"][0] - 1) < 1e-4, f"the gradients differ: {norms}"
    memory = {side: _memory_mb(side, work) for side in work.sides}
    rows = [make_row(turn.prompt_ids, turn.response_ids) for turn in turns]
    computed = sum(tree.tokens_below for tree in grow_trees(merge_rows(rows), rows))
    return {
        "ratio": ratio(taken, ours="ours", theirs="short_way"),
        **{f"{side}_by_ours": ratio(taken, ours="ours", theirs=side) for side in work.sides[2:]},
        **taken,
        "memory_mb": memory,
        "memory_share": memory["ours"] / memory["short_way"],
        "rows": len(turns),
        "rollouts": len({turn.rollout for turn in turns}),
        "gradient_norm": norms["ours"][0],
        "tokens": {
            "row_per_turn": sum(turn.tokens for turn in turns),
            "short_way": sum(sequence.tokens for sequence in merge_rows(rows)),
            "ours": computed,
            "least": unique_tokens(turns),
        },
    }


# ── the sides: each makes an update of a new model and returns the gradient's norm ────────────────────────────────


def make_update(side: str, shape: str) -> Callable[[list[Turn]], float]:
    model = make_model(shape)
    if side == "ours":
        learner = TorchLearner(TransformersPolicy(model), Optimization(max_tokens=MAX_TOKENS))
        return lambda turns: learner.update(turns).gradient_norm
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.01, fused=True)
    update = short_update if side == "short_way" else padded_update
    return lambda turns: update(model.train(), optimizer, turns)


def short_update(model: Any, optimizer: torch.optim.Optimizer, turns: list[Turn]) -> float:
    """One whole rollout at a time, the head at scored positions only."""
    for longest, members in whole_rollouts(turns):
        ids = torch.tensor([*longest.prompt_ids, *longest.response_ids])
        at = torch.cat([torch.arange(len(turn.prompt_ids), turn.tokens) for turn in members])
        teacher = torch.cat([torch.tensor(turn.teacher_logprobs) for turn in members])
        weight = torch.cat([torch.full((len(t.response_ids),), 1 / len(t.response_ids)) for t in members]) / len(turns)
        hidden = model.model(input_ids=ids[None, :-1], use_cache=False).last_hidden_state[0, at - 1]
        logprobs = model.lm_head(hidden).log_softmax(-1).gather(-1, ids[at, None])[:, 0]
        advantage = teacher - logprobs.detach()
        (-(weight * advantage * torch.exp(logprobs - logprobs.detach())).sum()).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return float(norm)


def whole_rollouts(turns: list[Turn]) -> list[tuple[Turn, list[Turn]]]:
    """Every rollout of the batch: its last turn here, which holds the others in its prompt, and all of its turns."""
    by_rollout: dict[str, list[Turn]] = {}
    for turn in turns:
        by_rollout.setdefault(turn.rollout, []).append(turn)
    return [(max(members, key=lambda turn: turn.turn), members) for members in by_rollout.values()]


def padded_update(model: Any, optimizer: torch.optim.Optimizer, turns: list[Turn]) -> float:
    """A row per turn: pad, take all logits, gather the response's."""
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
    optimizer.zero_grad()
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


def _memory_mb(side: str, work: Work) -> float:
    command = [sys.executable, __file__, side, work.shape, work.method, str(work.turns), str(work.batch)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def _growth_mb(side: str, shape: str, method: str, *, turns: int, batch: int) -> float:
    torch.set_num_threads(1)
    composed = compose(method, turns=turns, batch=batch)
    update = make_update(side, shape)
    before = _peak_mb()
    update(composed)
    return _peak_mb() - before


def _peak_mb() -> float:
    # not getrusage: its peak survives exec, so that a child starts with its parent's
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    _, side_, shape_, method_, turns_, batch_ = sys.argv
    print(json.dumps(_growth_mb(side_, shape_, method_, turns=int(turns_), batch=int(batch_))))
