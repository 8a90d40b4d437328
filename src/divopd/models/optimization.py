"""How an update is made and which weights it changes, as settings: light, so that a configuration is read at once."""

from dataclasses import dataclass
from math import cos, pi
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True)
class Optimization:
    """How an update is made; the defaults are the paper's.

    `max_tokens` bounds the tokens that one rank computes at a time. `activations` are kept for the backward pass, or
    computed again there: time for memory. `compute` is the type of the products; the weights that are trained stay in
    float32, because a step of 1e-6 would be lost in bfloat16 ones.

    The learning rate rises to `lr` in equal steps over the first `warmup` updates. Then it stays (`constant`, the
    paper's), or falls along a line or half a cosine, so that it would be 0 at update `updates`.
    """

    lr: float = 1e-6
    warmup: int = 0  # updates
    schedule: Schedule = "constant"
    updates: int = 250  # of the whole run
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    beta: float = 1.0
    max_tokens: int = 8192
    activations: Literal["keep", "recompute"] = "keep"
    compute: Literal["float32", "bfloat16"] = "float32"

    def lr_at(self, update: int) -> float:
        """The learning rate of an update, counted from 0."""
        if update < self.warmup:
            return self.lr * (update + 1) / self.warmup
        if self.schedule == "constant":
            return self.lr
        progress = min(1.0, (update - self.warmup) / max(1, self.updates - self.warmup))
        return self.lr * (1 - progress if self.schedule == "linear" else (1 + cos(pi * progress)) / 2)


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters on all linear layers but the head; only they are trained."""

    rank: int = 16
    alpha: int = 32
