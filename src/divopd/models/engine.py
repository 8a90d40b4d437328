"""Engines: what loads a model, generates with it, scores with it and takes new weights; the table of those there are.

An engine is one module of this folder and one line of ENGINES. The pipeline knows the protocols only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from divopd.models.optimization import Lora
from divopd.models.policy import Batching, Policy, Response, Weights

EngineName = Literal["transformers", "vllm"]


class Engine(Policy, Protocol):
    """A model at work: a policy, and what a preflight must know of it."""

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer; None where it cannot be seen, as behind a server."""
        ...

    @property
    def context_length(self) -> int | None:
        """The longest sequence that the model reads; None if nobody says."""
        ...

    @property
    def exact(self) -> bool:
        """Whether generation and scoring give the same log probabilities to rounding, in full precision."""
        ...


class StudentEngine(Engine, Batching, Protocol):
    """An engine whose weights follow those of a learner."""

    def fill_weights(self, weights: Weights, *, source: str) -> None:
        """Take the weights of a published version; those of another model raise a CheckpointError."""
        ...


@dataclass(frozen=True)
class EngineWish:
    """What to load, and how much it will be asked for."""

    folder: Path
    dtype: str
    device: str
    context: int  # tokens of the longest prompt and response together
    sequences: int  # at once
    lora: Lora | None = None
    forbidden: Sequence[int] = ()  # ids that are never sampled
    seed: int = 0  # of the random start of adapters
    tensor_parallel: int = 1  # GPUs over which it spreads
    memory_share: float = 0.9  # of each of them that it may ask for
    transfer: str | None = None  # by which of its own backends it is sent weights


def cache_tokens(context: int, sequences: int) -> int:
    """The tokens whose keys and values an engine of its own keeps: one sequence more, of one token more, than asked."""
    return (sequences + 1) * (context + 1)


def _transformers(wish: EngineWish) -> StudentEngine:
    from divopd.models.transformers_policy import TransformersPolicy

    return TransformersPolicy.load(
        wish.folder,
        dtype=wish.dtype,
        device=wish.device,
        lora=wish.lora,
        seed=wish.seed,
        forbidden=wish.forbidden,
    )


def _vllm(wish: EngineWish) -> StudentEngine:
    from divopd.models.vllm_policy import VllmPolicy

    return VllmPolicy(
        wish.folder,
        dtype=wish.dtype,
        context=wish.context,
        sequences=wish.sequences,
        forbidden=wish.forbidden,
        tensor_parallel=wish.tensor_parallel,
        memory_share=wish.memory_share,
        transfer=wish.transfer,
        lora=wish.lora,
    )


@dataclass(frozen=True)
class EngineKind:
    """A line of the table: how an engine is loaded, and what it can do."""

    load: Callable[[EngineWish], StudentEngine]
    title: str
    extra: str  # that brings its package, and the package's name
    local: bool  # in torch, as the learner is: exact on the virtual clock, any device, the student's dtype


ENGINES: dict[EngineName, EngineKind] = {
    "transformers": EngineKind(_transformers, "transformers", extra="train", local=True),
    "vllm": EngineKind(_vllm, "vLLM", extra="vllm", local=False),
}


class Interruptible:
    """A policy whose user may stop before any turn: `check` raises then."""

    def __init__(self, policy: Policy, check: Callable[[], None]) -> None:
        self.policy, self.check, self.score = policy, check, policy.score

    def respond(
        self, prompts: Sequence[Sequence[int]], *, temperature: float, max_tokens: int, seeds: Sequence[int]
    ) -> list[Response]:
        self.check()
        return self.policy.respond(prompts, temperature=temperature, max_tokens=max_tokens, seeds=seeds)
