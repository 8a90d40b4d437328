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
    """TurnOPD (specification §6.5): (1-α)·|V|/valid tokens + α/turns, both of the whole rollout, scaled to mean 1.

    α rises from 0 to 1 over half of training. A turn that does not say what its whole rollout has is weighed by its
    rollout's rows in this batch.
    """
    alpha = min(1.0, update / (settings.total_updates / 2))
    rows: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    for c in selected:
        rows[c.rollout] += 1
        tokens[c.rollout] += c.valid_tokens
    raw: list[float] = []
    for c in selected:
        valid = c.rollout_valid_tokens or tokens[c.rollout] or 1  # a rollout of dead rows has none
        raw.append((1 - alpha) * c.valid_tokens / valid + alpha / (c.rollout_turns or rows[c.rollout]))
    mean = sum(raw) / len(raw) if raw else 0.0
    return [weight / mean for weight in raw] if mean else [1.0] * len(raw)
