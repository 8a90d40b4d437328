"""Supervised fine-tuning on whole rollouts: one sequence, many scored spans, packed without padding.

It makes a teacher of random weights (labels of an expert along rollouts with slips), and it makes a weak student of a
capable model (labels of a policy that slips). demonstrations.py says how the rollouts come about.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from divopd.bootstrap.demonstrations import Example, Labels, Slips, demonstrate, encode, texts
from divopd.environments import find_entry, tasks
from divopd.errors import InputError
from divopd.evaluation import Evaluation, Exam
from divopd.explorer import Acting
from divopd.models.packing import micro_batches
from divopd.prompts import Codec, PromptStyle

if TYPE_CHECKING:
    from divopd.models.tiny import TinySize
    from divopd.models.transformers_policy import TransformersPolicy

ANSWER_TOKENS = 32  # of a response in an evaluation
ROLLOUTS_FOR_WORDS = 600  # rollouts that a new tokenizer is built from


@dataclass(frozen=True)
class SftSettings:
    """How long and how fast to train. The learning rate rises over `warmup` updates and then falls linearly to zero.

    `reading` is the weight of predicting also what the agent reads: 1 helps a new model to learn the words, 0 is for a
    model that knows them.
    """

    updates: int = 1600
    rollouts: int = 8  # per update
    learning_rate: float = 3e-3
    warmup: int = 30
    reading: float = 0.0
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
    from divopd.models.tiny import build_tokenizer

    played = demonstrate(lessons.environment, "expert", slips=Slips(), seed=0)
    return random_policy(
        build_tokenizer(texts(islice(played, ROLLOUTS_FOR_WORDS), lessons.style)), seed=seed, size=size
    )


def random_policy(tokenizer: Any, *, seed: int, size: "TinySize | None" = None) -> "TransformersPolicy":
    """A tiny model with random weights for a tokenizer."""
    from divopd.models.tiny import build_model
    from divopd.models.transformers_policy import TransformersPolicy

    # micro-batches that fit into a core's cache are the fastest for a model this small
    return TransformersPolicy(build_model(tokenizer, seed=seed, size=size), tokenizer, max_tokens=2048)


def save_taught_model(folder: Path, policy: "TransformersPolicy", lessons: Lessons) -> None:
    """Save a model in the ordinary format, and beside it the form in which it was taught."""
    from divopd.models.taught import Taught, write_taught
    from divopd.models.tiny import save_model

    save_model(folder, policy.model, policy.tokenizer)
    write_taught(folder, Taught(lessons.environment, lessons.style.answer, lessons.style.actions))


def teach(
    policy: "TransformersPolicy",
    lessons: Lessons,
    settings: SftSettings,
    *,
    evaluations: Evaluations,
    wanted: Callable[[float], bool] = lambda percent: False,
    report: Callable[[SftUpdate], None] = lambda figures: None,
) -> Evaluation:
    """Fine-tune the policy on demonstrations of the environment's expert; see `learn`."""
    codec = Codec(policy.tokenizer, template=lessons.style.template)
    played = demonstrate(lessons.environment, lessons.labels, slips=lessons.slips, seed=lessons.seed)
    examples = (encode(demonstration, lessons.style, codec) for demonstration in played)
    exam = exam_for(lessons, codec, tasks_wanted=evaluations.tasks)
    return learn(policy, examples, settings, exam=exam, every=evaluations.every, wanted=wanted, report=report)


def exam_for(lessons: Lessons, codec: Codec, *, tasks_wanted: int | None, answer_tokens: int = ANSWER_TOKENS) -> Exam:
    """The environment's fixed tasks, played as the lessons teach it."""
    entry = find_entry(lessons.environment)
    evaluated = tasks(lessons.environment, entry.evaluation_split)[: tasks_wanted or entry.evaluation_tasks]
    return Exam(
        environment=lessons.environment,
        tasks=tuple(evaluated),
        acting=Acting(lessons.style, codec, temperature=0.4, max_response_tokens=answer_tokens, seed=0),
        horizon=entry.horizon,
        in_flight=len(evaluated),
    )


def learn(
    policy: "TransformersPolicy",
    examples: Iterable[Example],
    settings: SftSettings,
    *,
    exam: Exam,
    every: int,
    wanted: Callable[[float], bool] = lambda percent: False,
    report: Callable[[SftUpdate], None] = lambda figures: None,
) -> Evaluation:
    """Fine-tune the policy on examples and evaluate it every so many updates, and at the end.

    It stops early as soon as the success rate in percent is `wanted`. Returns the last evaluation.
    """
    last = Evaluation(())

    def after(figures: SftUpdate) -> bool:
        nonlocal last
        made = figures.update + 1
        if made % every and made != settings.updates:
            report(figures)
            return False
        last = exam.play(policy)
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
    """Train on the next rollouts of `examples`, update after update, until `after` says True; returns how many."""
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
        loss = accumulate_gradients(policy, batch, reading=settings.reading)
        torch.nn.utils.clip_grad_norm_(parameters, settings.max_gradient_norm)
        optimizer.step()
        if after(SftUpdate(update, loss, sum(len(example.ids) for example in batch))):
            return update + 1
    return settings.updates


def accumulate_gradients(policy: "TransformersPolicy", batch: list[Example], *, reading: float = 0.0) -> float:
    """Add the gradients of the loss to the parameters, and return the mean negative log probability of the targets.

    The loss is that mean, plus `reading` times the same mean over everything that was read.
    """
    targets, read = (sum(len(getattr(example, part)) for example in batch) for part in ("targets", "read"))
    total = 0.0
    packed = micro_batches(cast(Any, batch), policy.max_tokens)  # it asks only how many tokens each has
    for examples in cast(list[list[Example]], packed):
        learned = [(example.positions, example.targets) for example in examples]
        known = [(example.read, example.ids[example.read]) for example in examples] if reading else []
        logprobs = _logprobs(policy, examples, learned + known)
        count = sum(len(example.targets) for example in examples)
        loss = -logprobs[:count].sum() / targets
        total += float(loss.detach())
        (loss - reading * logprobs[count:].sum() / max(1, read)).backward()
    return total


def _logprobs(
    policy: "TransformersPolicy", examples: list[Example], wanted: list[tuple[np.ndarray, np.ndarray]]
) -> Any:
    """Log probabilities of tokens at positions of the examples, which come in their order, once or several times.

    The tokens need not be those that follow: see demonstrations.encode.
    """
    import torch

    from divopd.models.attention import Packed

    lengths = [example.tokens for example in examples]
    starts = np.tile(np.cumsum([0, *lengths[:-1]]), len(wanted) // len(examples))
    parts = (
        np.concatenate([example.ids[:-1] for example in examples]),
        np.concatenate([np.arange(length) for length in lengths]),
        np.concatenate([start + positions - 1 for start, (positions, _) in zip(starts, wanted, strict=True)]),
        np.concatenate([tokens for _, tokens in wanted]),
    )
    ids, positions, index, targets = (torch.from_numpy(part).to(policy.device) for part in parts)
    return policy.scorer(ids, positions, Packed(lengths), index, targets)
