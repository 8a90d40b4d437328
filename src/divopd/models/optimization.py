"""How an update is made and which weights it changes, as settings: light, so that a configuration is read at once."""

from dataclasses import dataclass
from math import cos, pi
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True)
class Optimization:
    """How an update is made; the defaults are the paper's."""

    lr: float = 1e-6
    """The learning rate of AdamW."""
    warmup: int = 0
    """Updates over which the learning rate rises to `lr` in equal steps."""
    schedule: Schedule = "constant"
    """After the warm-up it stays, or falls along a line or half a cosine, so that it would be 0 at update `updates`."""
    updates: int = 250
    """How many updates the run makes."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's decay of its two moments."""
    weight_decay: float = 0.01
    """AdamW's weight decay."""
    max_grad_norm: float = 1.0
    """A gradient with a larger norm is scaled down to it."""
    beta: float = 1.0
    """β: by which the loss multiplies the teacher's log probability minus the student's."""
    max_tokens: int = 8192
    """The most tokens that one rank computes at a time."""
    activations: Literal["keep", "recompute"] = "keep"
    """They are kept for the backward pass, or computed again there: time for memory."""
    compute: Literal["float32", "bfloat16"] = "float32"
    """The type of the products. Trained weights stay float32: a step of 1e-6 would be lost in bfloat16 ones."""
    compile: bool = False
    """The learner's layers, all but their attention, are compiled by torch: the first updates take longer."""

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
    """Of the two small matrices of each layer."""
    alpha: int = 32
    """What adapters add is scaled by alpha / rank."""
