"""A teacher that scores 15-turn rollouts, against one forward pass a rollout with the head at scored positions only.

That is the best short way: it knows where a rollout's responses are and projects nothing else. Beside it stands reading
turn by turn, as a teacher does that is asked for rows. With --peer vllm: its `prompt_logprobs`, in the same precision.
One thread; rounds alternate.
"""

import tempfile
from typing import Any, NamedTuple

import numpy as np
import torch

from divopd.experiments.peers import Peer, PeerProcess, interleaved, ratio, timed
from divopd.experiments.speed_work import SMALL, SMOLLM2, make_model, rollout
from divopd.models.transformers_policy import TransformersPolicy


class Sizes(NamedTuple):
    shapes: tuple[str, ...]
    rollouts: int
    turns: int
    rounds: int


FULL = Sizes(shapes=(SMALL, SMOLLM2), rollouts=2, turns=15, rounds=3)
DTYPES = ("float32", "bfloat16")  # beside a peer
QUICK = Sizes(shapes=(SMALL,), rollouts=2, turns=3, rounds=1)
Sequences = tuple[list[list[int]], list[list[tuple[int, int]]]]


def run(sizes: Sizes) -> dict:
    torch.set_num_threads(1)
    shapes = {shape: _compare(shape, sizes) for shape in sizes.shapes}
    last = shapes[sizes.shapes[-1]]
    return {
        "bench": "scoring",
        "ratio": min(figures["ratio"] for figures in shapes.values()),
        "unit": f"processor seconds for {sizes.rollouts} rollouts, against one forward pass a rollout",
        "ours": last["ours"]["processor_s"],
        "reference": last["short_way"]["processor_s"],
        "detail": shapes,
    }


def _work(sizes: Sizes) -> Sequences:
    """The rollouts' tokens, and where the responses are."""
    rollouts = [rollout(number, sizes.turns) for number in range(sizes.rollouts)]
    ids = [[*turns[-1].prompt_ids, *turns[-1].response_ids] for turns in rollouts]
    return ids, [[(len(turn.prompt_ids), turn.tokens) for turn in turns] for turns in rollouts]


def _compare(shape: str, sizes: Sizes) -> dict[str, Any]:
    ids, spans = _work(sizes)
    teacher, plain = TransformersPolicy(make_model(shape)), make_model(shape).eval()
    last: dict[str, Any] = {}
    sides = {
        "ours": lambda: timed(lambda: last.update(ours=teacher.score(ids, spans))),
        "short_way": lambda: timed(lambda: last.update(short_way=_short(plain, ids, spans))),
        "turn_by_turn": lambda: timed(lambda: _turn_by_turn(teacher, ids, spans)),
    }
    if shape == SMOLLM2:
        del sides["turn_by_turn"]  # it takes minutes
    taken = interleaved(sides, rounds=sizes.rounds)
    ours = [np.concatenate(one) for one in last["ours"]]
    return {
        "ratio": ratio(taken, ours="ours", theirs="short_way"),
        **taken,
        "largest_difference": max(float(np.abs(a - b).max()) for a, b in zip(ours, last["short_way"], strict=True)),
    }


@torch.inference_mode()
def _short(model: Any, ids: list[list[int]], spans: list[list[tuple[int, int]]]) -> list[np.ndarray]:
    scores = []
    for sequence, wanted in zip(ids, spans, strict=True):
        tokens = torch.tensor(sequence)
        at = torch.cat([torch.arange(start, end) for start, end in wanted])
        hidden = model.model(input_ids=tokens[None, :-1], use_cache=False).last_hidden_state[0, at - 1]
        scores.append(model.lm_head(hidden).log_softmax(-1).gather(-1, tokens[at, None])[:, 0].double().numpy())
    return scores


def _turn_by_turn(teacher: TransformersPolicy, ids: list[list[int]], spans: list[list[tuple[int, int]]]) -> None:
    for sequence, wanted in zip(ids, spans, strict=True):
        for start, end in wanted:
            teacher.score([sequence[:end]], [[(start, end)]])


def run_beside(peer: Peer, process: PeerProcess, sizes: Sizes) -> dict:
    """Against the real package, with the same weights and one thread each."""
    torch.set_num_threads(1)
    works = {dtype: _beside(peer, process, sizes, dtype) for dtype in DTYPES}
    least = min(works.values(), key=lambda figures: figures["ratio"])
    return {
        "bench": "scoring",
        "ratio": least["ratio"],
        "unit": f"processor seconds for {sizes.rollouts} rollouts of {sizes.turns} turns, the least ratio",
        "ours": least["ours"]["processor_s"],
        "reference": least[peer.name]["processor_s"],
        "detail": {"peer": peer.package, **process.ask("about"), **works},
    }


def _beside(peer: Peer, process: PeerProcess, sizes: Sizes, dtype: str) -> dict[str, Any]:
    ids, spans = _work(sizes)
    with tempfile.TemporaryDirectory() as folder, process.anew() as fresh:  # an engine a process
        model = make_model(SMOLLM2)
        model.save_pretrained(folder)
        teacher = TransformersPolicy(model.to(getattr(torch, dtype)))
        fresh.ask("begin", model=folder, longest=len(ids[0]) + 8, rows=len(ids), dtype=dtype)
        last: dict[str, Any] = {}
        taken = interleaved(
            {
                "ours": lambda: timed(lambda: last.update(ours=teacher.score(ids, spans))),
                peer.name: lambda: fresh.times("score", ids=ids),
            },
            rounds=sizes.rounds,
        )
        theirs = fresh.ask("scores")
    chosen = [
        np.concatenate([np.array(one)[a:b] for a, b in wanted]) for one, wanted in zip(theirs, spans, strict=True)
    ]
    gaps = [np.abs(np.concatenate(one) - other) for one, other in zip(last["ours"], chosen, strict=True)]
    return {
        "ratio": ratio(taken, ours="ours", theirs=peer.name),
        **taken,
        "largest_difference": max(float(gap.max()) for gap in gaps),
        "mean_difference": float(np.concatenate(gaps).mean()),
        "tokens_scored": sum(map(len, gaps)),
    }
