"""Supervised fine-tuning on whole rollouts: one sequence, many scored spans, packed without padding.

It makes a teacher of random weights (labels of an expert along rollouts with slips), and it makes a weak student of a
capable model (labels of a policy that slips). demonstrations.py says how the rollouts come about.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from divopd.demonstrations import Example, Labels, Slips, demonstrate, encode, texts
from divopd.environments import find_entry, tasks
from divopd.errors import InputError
from divopd.evaluation import Evaluation, Setting, success_rate
from divopd.packing import Sequence, micro_batches
from divopd.prompts import Codec, PromptStyle

if TYPE_CHECKING:
    from divopd.models.tiny import TinySize
    from divopd.models.transformers_policy import TransformersPolicy

ROLLOUTS_FOR_WORDS = 600  # rollouts that a new tokenizer is built from


@dataclass(frozen=True)
class SftSettings:
    """How long and how fast to train. The learning rate rises over `warmup` updates and then falls linearly to zero."""

    updates: int = 1000
    rollouts: int = 16  # per update
    learning_rate: float = 2e-3
    warmup: int = 30
    weight_decay: float = 0.01
    max_gradient_norm: float = 1.0

    def __post_init__(self) -> None:
        if self.updates < 1 or self.rollouts < 1 or self.learning_rate <= 0:
            raise InputError(
                f"got {self.updates} updates of {self.rollouts} rollouts at learning rate {self.learning_rate}; "
                "expected positive numbers"
            )

    def rate(self, update: int) -> float:
        """The learning rate of an update, from 0."""
        rising, falling = (update + 1) / max(1, self.warmup), 1 - update / self.updates
        return self.learning_rate * min(1.0, rising, falling)


@dataclass(frozen=True)
class Lessons:
    """What is taught: the environment, how prompts look, whose actions are the labels, and how often slips happen."""

    environment: str
    style: PromptStyle
    labels: Labels = "expert"
    slips: Slips = field(default_factory=Slips)
    seed: int = 0


@dataclass(frozen=True)
class Evaluations:
    """How often to evaluate, in updates, and on how many tasks; None is the environment's own number."""

    every: int = 100
    tasks: int | None = None

    def __post_init__(self) -> None:
        if self.every < 1 or (self.tasks is not None and self.tasks < 1):
            raise InputError(f"got an evaluation of {self.tasks} tasks every {self.every} updates; expected 1 or more")


@dataclass(frozen=True)
class SftUpdate:
    """Figures of one update; `evaluation` when one was due."""

    update: int
    loss: float
    tokens: int
    evaluation: Evaluation | None = None


def new_policy(lessons: Lessons, *, seed: int, size: "TinySize | None" = None) -> "TransformersPolicy":
    """A tiny model with random weights and a tokenizer with the words of the environment.

    The tokenizer depends on environment and style alone: models with other seeds, sizes or labels share it.
    """
    from divopd.models.tiny import build_model, build_tokenizer
    from divopd.models.transformers_policy import TransformersPolicy

    played = demonstrate(lessons.environment, "expert", slips=Slips(), seed=0)
    tokenizer = build_tokenizer(texts(islice(played, ROLLOUTS_FOR_WORDS), lessons.style))
    # micro-batches that fit into a core's cache are the fastest for a model this small
    return TransformersPolicy(build_model(tokenizer, seed=seed, size=size), tokenizer, max_tokens=2048)


def teach(
    policy: "TransformersPolicy",
    lessons: Lessons,
    settings: SftSettings,
    *,
    evaluations: Evaluations,
    wanted: Callable[[float], bool] = lambda percent: False,
    report: Callable[[SftUpdate], None] = lambda figures: None,
) -> Evaluation:
    """Fine-tune the policy and evaluate it on the environment's fixed tasks now and then, and at the end.

    It stops early as soon as the success rate in percent is `wanted`. Returns the last evaluation.
    """
    codec = Codec(policy.tokenizer)
    entry = find_entry(lessons.environment)
    evaluated = tasks(lessons.environment, entry.evaluation_split)[: evaluations.tasks or entry.evaluation_tasks]
    setting = Setting(lessons.environment, lessons.style, codec, in_flight=len(evaluated))
    played = demonstrate(lessons.environment, lessons.labels, slips=lessons.slips, seed=lessons.seed)
    examples = (encode(demonstration, lessons.style, codec) for demonstration in played)
    last = Evaluation(())

    def after(figures: SftUpdate) -> bool:
        nonlocal last
        made = figures.update + 1
        if made % evaluations.every and made != settings.updates:
            report(figures)
            return False
        last = success_rate(policy, evaluated, setting)
        report(replace(figures, evaluation=last))
        return wanted(last.percent)

    fine_tune(policy, (example for example in examples if len(example.targets)), settings, after=after)
    return last


def fine_tune(
    policy: "TransformersPolicy",
    examples: Iterator[Example],
    settings: SftSettings,
    *,
    after: Callable[[SftUpdate], bool] = lambda figures: False,
) -> int:
    """Train on the next rollouts of `examples`, update after update, until `after` says True; returns the updates made.

    The loss is the mean negative log probability over all targets of the update's rollouts.
    """
    import torch

    parameters = [parameter for parameter in policy.model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(
        parameters, lr=settings.learning_rate, betas=(0.9, 0.98), weight_decay=settings.weight_decay
    )
    for update in range(settings.updates):
        batch = list(islice(examples, settings.rollouts))
        if not batch:
            raise InputError(f"the demonstrations ended before update {update}; give more tasks or fewer updates")
        for group in optimizer.param_groups:
            group["lr"] = settings.rate(update)
        optimizer.zero_grad()
        loss = accumulate_gradients(policy, batch)
        torch.nn.utils.clip_grad_norm_(parameters, settings.max_gradient_norm)
        optimizer.step()
        if after(SftUpdate(update, loss, sum(len(example.ids) for example in batch))):
            return update + 1
    return settings.updates


def accumulate_gradients(policy: "TransformersPolicy", batch: list[Example]) -> float:
    """Add the gradients of the mean loss over all targets to the parameters, and return the loss."""
    targets = sum(len(example.targets) for example in batch)
    sequences = [Sequence(example.ids, ()) for example in batch]
    by_sequence = {id(sequence): example for sequence, example in zip(sequences, batch, strict=True)}
    total = 0.0
    for micro_batch in micro_batches(sequences, policy.max_tokens):
        loss = -_target_logprobs(policy, [by_sequence[id(sequence)] for sequence in micro_batch]).sum() / targets
        loss.backward()
        total += float(loss.detach())
    return total


def _target_logprobs(policy: "TransformersPolicy", examples: list[Example]) -> Any:
    """Log probabilities of all targets. They need not be the tokens that follow: see demonstrations.encode."""
    import torch

    from divopd.models.attention import Packed

    lengths = [len(example.ids) - 1 for example in examples]  # the last token is only predicted
    starts = np.cumsum([0, *lengths[:-1]])
    parts = (
        np.concatenate([example.ids[:-1] for example in examples]),
        np.concatenate([np.arange(length) for length in lengths]),
        np.concatenate([start + example.positions - 1 for start, example in zip(starts, examples, strict=True)]),
        np.concatenate([example.targets for example in examples]),
    )
    ids, positions, index, targets = (torch.from_numpy(part).to(policy.device) for part in parts)
    return policy.scorer(ids, positions, Packed(lengths), index, targets)
