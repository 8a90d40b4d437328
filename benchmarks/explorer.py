"""Turns per second of an explorer against the model library's batched `generate`, all environments at once.

That is the best short way: prompts padded on the left, the whole history read again each turn.
Both sides play the same tasks of alfworld-small to the same depth with one random model of the embedded size, sample at
temperature 1 and keep the log probabilities. Ours keeps what it has read of a rollout between its turns. Seconds are
processor seconds of one thread, so that other work on the machine does not count.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch

from divopd.bootstrap.demonstrations import Slips, demonstrate, texts
from divopd.environments import make_environment, tasks
from divopd.explorer import Acting, Played, Start, play
from divopd.models.policy import Response
from divopd.models.tiny import build_model, build_tokenizer
from divopd.models.transformers_policy import TransformersPolicy
from divopd.prompts import Codec, style_for

ENVIRONMENT = "alfworld-small"
PADDING = 0
RESPONSE = 8  # an answer of the embedded models has about 6 tokens


class Sizes(NamedTuple):
    rollouts: int
    turns: int
    rounds: int
    demonstrations: int  # that the tokenizer learns its words from


FULL = Sizes(rollouts=16, turns=20, rounds=2, demonstrations=40)
QUICK = Sizes(rollouts=2, turns=2, rounds=1, demonstrations=2)


class Short:
    """The model library's own generation, all prompts at once."""

    def __init__(self, model: Any) -> None:
        self.model = model

    @torch.inference_mode()
    def respond(
        self, prompts: Sequence[Sequence[int]], *, temperature: float, max_tokens: int, seeds: Sequence[int]
    ) -> list[Response]:
        torch.manual_seed(seeds[0])
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
        there = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        made = self.model.generate(
            ids, attention_mask=there, do_sample=True, temperature=temperature, top_k=0, top_p=1.0,
            max_new_tokens=max_tokens, return_dict_in_generate=True, output_logits=True, pad_token_id=PADDING,
        )  # fmt: skip
        chosen = made.sequences[:, longest:]
        logprobs = torch.stack(made.logits, 1).log_softmax(-1).gather(-1, chosen[..., None])[..., 0].double().numpy()
        return [
            _written(*row, stop=self.model.generation_config.eos_token_id)
            for row in zip(chosen.tolist(), logprobs, strict=True)
        ]

    def score(self, sequences: object, spans: object) -> list[list[np.ndarray]]:
        raise AssertionError("a student that only plays needs no scores")


def run(sizes: Sizes) -> dict:
    torch.set_num_threads(1)
    style = style_for(ENVIRONMENT, answer="terse", actions="unlisted")
    shown = islice(demonstrate(ENVIRONMENT, "expert", slips=Slips(), seed=0), sizes.demonstrations)
    tokenizer = build_tokenizer(texts(shown, style))
    acting = Acting(style, Codec(tokenizer), temperature=1.0, max_response_tokens=RESPONSE, seed=0)
    starts = [Start(n, task, sizes.turns) for n, task in enumerate(tasks(ENVIRONMENT, "train")[: sizes.rollouts])]
    environments = [make_environment(ENVIRONMENT) for _ in starts]
    ours, short = TransformersPolicy(build_model(tokenizer, seed=0)), Short(build_model(tokenizer, seed=0))

    sides = (partial(play, starts, acting, student=side, environments=environments) for side in (ours, short))
    (fast, played), (slow, played_shortly) = (_best(side, rounds=sizes.rounds) for side in sides)
    return {
        "bench": "explorer",
        "ratio": fast / slow,
        "unit": "turns/s",
        "ours": fast,
        "reference": slow,
        "detail": {
            "rollouts_at_once": sizes.rollouts,
            "ours": _sizes(played),
            "reference": _sizes(played_shortly),
        },
    }


def _written(ids: list[int], logprobs: np.ndarray, *, stop: int) -> Response:
    """A response without what pads it to the longest of its batch."""
    end = ids.index(stop) + 1 if stop in ids else len(ids)
    return Response(ids[:end], logprobs[:end])


def _best(side: Callable[[], list[Played]], *, rounds: int) -> tuple[float, list[Played]]:
    rates = []
    for _ in range(rounds):
        start = time.process_time()
        played = side()
        rates.append(sum(len(rollout.turns) for rollout in played) / (time.process_time() - start))
    return max(rates), played


def _sizes(played: list[Played]) -> dict[str, float]:
    turns = [turn for rollout in played for turn in rollout.turns]
    return {
        "turns": len(turns),
        "mean_prompt_tokens": float(np.mean([len(turn.prompt.ids) for turn in turns])),
        "mean_response_tokens": float(np.mean([len(turn.response.ids) for turn in turns])),
    }
