"""How an update is made and which weights it changes, as settings: light, so that a configuration is read at once."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Optimization:
    """How an update is made; the defaults are the paper's."""

    lr: float = 1e-6
    """The learning rate of AdamW."""
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


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters on all linear layers but the head; only they are trained."""

    rank: int = 16
    """Of the two small matrices of each layer."""
    alpha: int = 32
    """What adapters add is scaled by alpha / rank."""
