"""Agents that act for some turns, their responses sampled: against the model library's own batched `generate`.

That is the best short way: all agents at once, prompts padded on the left, the whole history read again each turn. With
--peer vllm: its engine with its prefix cache. All write the same number of tokens a turn; before a round nobody
remembers any prompt, as after an update. One thread; rounds alternate.
"""

import tempfile
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from divopd.experiments.peers import Peer, PeerProcess, Times, interleaved, ratio, timed
from divopd.experiments.speed_work import (
    INSTRUCTIONS,
    OBSERVATION,
    RESPONSE,
    SMALL,
    SMOLLM2,
    TASK,
    VOCABULARY,
    make_model,
)
from divopd.models.transformers_policy import TransformersPolicy


class Sizes(NamedTuple):
    shapes: tuple[str, ...]
    agents: int
    turns: int
    rounds: int


FULL = Sizes(shapes=(SMALL, SMOLLM2), agents=8, turns=4, rounds=3)
DTYPES = ("float32", "bfloat16")  # beside a peer
QUICK = Sizes(shapes=(SMALL,), agents=2, turns=2, rounds=1)


def run(sizes: Sizes) -> dict:
    torch.set_num_threads(1)
    shapes = {}
    for shape in sizes.shapes:
        players = {"ours": Ours(make_model(shape)), "short_way": Short(make_model(shape))}
        taken = interleaved({name: partial(one.play, sizes) for name, one in players.items()}, rounds=sizes.rounds)
        shapes[shape] = {"ratio": ratio(taken, ours="ours", theirs="short_way"), **taken}
    last = shapes[sizes.shapes[-1]]
    return {
        "bench": "generation",
        "ratio": min(figures["ratio"] for figures in shapes.values()),
        "unit": f"processor seconds for {sizes.agents} agents × {sizes.turns} turns, against batched generate",
        "ours": last["ours"]["processor_s"],
        "reference": last["short_way"]["processor_s"],
        "detail": shapes,
    }


def first_prompts(agents: int) -> list[list[int]]:
    """Instructions that all share, and a task of each."""
    rng = np.random.default_rng(0)
    shared = list(range(100, 100 + INSTRUCTIONS))
    return [[*shared, *rng.integers(4, VOCABULARY, TASK).tolist()] for _ in range(agents)]


def observations(agents: int, turns: int) -> list[list[list[int]]]:
    """What every agent sees in each turn."""
    return np.random.default_rng(1).integers(4, VOCABULARY, (turns, agents, OBSERVATION)).tolist()


class Ours:
    def __init__(self, model: Any) -> None:
        for config in (model.config, model.generation_config):
            config.eos_token_id = None  # every response has its full length
        self.policy = TransformersPolicy(model)

    def play(self, sizes: Sizes) -> Times:
        torch.autograd.graph.increment_version(list(self.policy.model.parameters()))  # new weights: nothing is known
        return timed(lambda: self._play(sizes))

    def _play(self, sizes: Sizes) -> None:
        contexts = first_prompts(sizes.agents)
        for turn, seen in enumerate(observations(sizes.agents, sizes.turns)):
            contexts = [[*context, *new] for context, new in zip(contexts, seen, strict=True)]
            seeds = range(turn * sizes.agents, (turn + 1) * sizes.agents)
            said = self.policy.respond(contexts, temperature=1.0, max_tokens=RESPONSE, seeds=seeds)
            assert all(len(one.ids) == RESPONSE for one in said)
            contexts = [[*context, *one.ids] for context, one in zip(contexts, said, strict=True)]


class Short:
    def __init__(self, model: Any) -> None:
        self.model = model.eval()

    def play(self, sizes: Sizes) -> Times:
        return timed(lambda: self._play(sizes))

    @torch.inference_mode()
    def _play(self, sizes: Sizes) -> None:
        torch.manual_seed(0)
        contexts = first_prompts(sizes.agents)
        for seen in observations(sizes.agents, sizes.turns):
            contexts = [[*context, *new] for context, new in zip(contexts, seen, strict=True)]
            ids = torch.tensor(contexts)  # all of one length here: nothing to pad
            made = self.model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
                max_new_tokens=RESPONSE, min_new_tokens=RESPONSE, pad_token_id=0, return_dict_in_generate=True,
                output_logits=True,
            )  # fmt: skip
            chosen = made.sequences[:, ids.shape[1] :]
            logprobs = torch.stack(made.logits, 1).log_softmax(-1).gather(-1, chosen[..., None])
            assert logprobs.shape[1] == RESPONSE
            contexts = made.sequences.tolist()


def run_beside(peer: Peer, process: PeerProcess, sizes: Sizes) -> dict:
    """Against the real package, with the same weights and one thread each."""
    torch.set_num_threads(1)
    works = {dtype: _beside(peer, process, sizes, dtype) for dtype in DTYPES}
    least = min(works.values(), key=lambda figures: figures["ratio"])
    return {
        "bench": "generation",
        "ratio": least["ratio"],
        "unit": f"processor seconds for {sizes.agents} agents × {sizes.turns} turns, the least ratio",
        "ours": least["ours"]["processor_s"],
        "reference": least[peer.name]["processor_s"],
        "detail": {"peer": peer.package, **process.ask("about"), **works},
    }


def _beside(peer: Peer, process: PeerProcess, sizes: Sizes, dtype: str) -> dict:
    longest = INSTRUCTIONS + TASK + sizes.turns * (OBSERVATION + RESPONSE)
    asked = {
        "prompts": first_prompts(sizes.agents),
        "observations": observations(sizes.agents, sizes.turns),
        "tokens": RESPONSE,
    }
    with tempfile.TemporaryDirectory() as folder, process.anew() as fresh:  # an engine a process
        model = make_model(SMOLLM2)
        model.save_pretrained(folder)
        ours = Ours(model.to(getattr(torch, dtype)))
        fresh.ask("begin", model=folder, longest=longest + 8, rows=sizes.agents, dtype=dtype)
        taken = interleaved(
            {"ours": lambda: ours.play(sizes), peer.name: lambda: fresh.times("play", **asked)}, rounds=sizes.rounds
        )
    return {"ratio": ratio(taken, ours="ours", theirs=peer.name), **taken}
