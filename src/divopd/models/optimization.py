"""How an update is made and which weights it changes, as settings: light, so that a configuration is read at once."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Optimization:
    """How an update is made; the defaults are the paper's.

    `max_tokens` bounds the tokens that one rank computes at a time. `activations` are kept for the backward pass, or
    computed again there: time for memory. `compute` is the type of the products; the weights that are trained stay in
    float32, because a step of 1e-6 would be lost in bfloat16 ones.
    """

    lr: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    beta: float = 1.0
    max_tokens: int = 8192
    activations: Literal["keep", "recompute"] = "keep"
    compute: Literal["float32", "bfloat16"] = "float32"


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters on all linear layers but the head; only they are trained."""

    rank: int = 16
    alpha: int = 32
