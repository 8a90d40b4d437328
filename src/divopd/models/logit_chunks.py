"""How many logits (scored positions × vocabulary) are held at a time: they would outgrow everything else.

On CUDA a chunk is larger: every chunk reads all weights of the head, and on an H100 that takes as long as the product
itself at 295 positions (989 TFLOP/s to 3,350 GB/s, two bytes and two operations a weight). 2**26 logits are 441
positions of Qwen's vocabulary. The dry run counts them (plan/learner_memory.py).
"""

from typing import NamedTuple


class LogitChunks(NamedTuple):
    """Numbers of logits; each is four bytes in float32."""

    at_once: int
    """In one product."""
    kept: int
    """Of one input, for the backward pass; those of further chunks are computed again there."""


ON_CPU = LogitChunks(at_once=2**23, kept=2**25)
ON_CUDA = LogitChunks(at_once=2**26, kept=2**28)


def logit_chunks(device: str) -> LogitChunks:
    """Of a device as configurations and torch name them: cpu, cuda, cuda:1."""
    return ON_CUDA if device.startswith("cuda") else ON_CPU
