"""The paper's objective (specification §5): a token's advantage, and the loss whose gradient one update follows.

The advantage is eq. 1, opd-adv, the value of the loss eq. 3, opd-loss, and its gradient eq. 4, opd-gradient.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def token_weights(valid_tokens: Sequence[int], row_weights: Sequence[float]) -> list[float]:
    """What one valid token of each row weighs in the loss: w / (N |V|).

    N counts all rows of the batch; a dead row (no valid token) weighs 0 and still counts in N.
    """
    rows = len(valid_tokens)
    return [w / (rows * size) if size else 0.0 for w, size in zip(row_weights, valid_tokens, strict=True)]


def opd_loss(
    logprobs: Tensor, *, teacher: Tensor, weights: Tensor, beta: float = 1.0, old: Tensor | None = None
) -> Tensor:
    """Σ over tokens of -weight · ratio · advantage; `weights` are each token's from `token_weights`.

    Without `old` the values of `logprobs` themselves are the old log probabilities: as long as no weight has changed, a
    pass of its own for them would give the same numbers. The ratio is then 1 in value, not in gradient.
    """
    old = logprobs.detach() if old is None else old
    advantage = beta * (teacher - old)
    ratio = torch.exp(logprobs - old)
    return -(weights * ratio * advantage).sum()
