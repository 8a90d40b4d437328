"""Row weights: what each row of a batch weighs in the loss. Every rule gives a mean of 1 over the batch."""

from collections import Counter
from collections.abc import Sequence

from divopd.composers.composer import Candidate, Settings


def equal_rollouts(selected: Sequence[Candidate], *, update: int, settings: Settings) -> list[float]:
    """Every rollout in the batch has the same total weight, however many rows it has (divopd-focus)."""
    del update, settings
    rows = Counter(c.rollout for c in selected)
    return [len(selected) / (len(rows) * rows[c.rollout]) for c in selected]


def turn_aware(selected: Sequence[Candidate], *, update: int, settings: Settings) -> list[float]:
    """TurnOPD (specification §6.5): T·q with q = (1-α)·n_t/Σn + α/T; α rises from 0 to 1 over half of training.

    T and n are those of the rollout's turns in this batch: a composer does not know how long the whole rollout was.
    """
    alpha = min(1.0, update / (settings.total_updates / 2))
    turns: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    for c in selected:
        turns[c.rollout] += 1
        tokens[c.rollout] += c.valid_tokens
    raw = [
        turns[c.rollout] * (1 - alpha) * c.valid_tokens / tokens[c.rollout] + alpha if tokens[c.rollout] else 1.0
        for c in selected
    ]
    mean = sum(raw) / len(raw) if raw else 1.0
    return [weight / mean for weight in raw]
