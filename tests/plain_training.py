"""The objective of specification §5, written out row by row in plain torch: what any faster way must agree with."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from divopd.turns import Turn
from word_model import load_model, logprobs


class PlainLearner:
    """Trains the student of a config as its `learner` section says."""

    def __init__(self, config: Mapping[str, Any], weights: Path | None = None) -> None:
        self.model = load_model(Path(config["student"]["model"]), weights)
        self.beta, self.max_norm = config["learner"]["beta"], config["learner"]["max_grad_norm"]
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=config["learner"]["lr"],
            betas=tuple(config["learner"]["betas"]),
            weight_decay=config["learner"]["weight_decay"],
        )

    def update(self, batch: Sequence[Turn], weights: Sequence[float]) -> tuple[float, float]:
        """One update; the loss and the norm of the gradient before it is clipped."""
        self.optimizer.zero_grad()
        rows = [weight * self._row_loss(turn) for turn, weight in zip(batch, weights, strict=True)]
        loss = torch.stack(rows).sum() / len(batch)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        self.optimizer.step()
        return loss.item(), norm.item()

    def _row_loss(self, turn: Turn) -> torch.Tensor:
        if turn.prompt_truncated:
            return torch.zeros((), dtype=torch.float64)  # a dead row, which still counts in the denominator
        new = logprobs(self.model, turn.prompt_ids, turn.response_ids)
        advantage = self.beta * (torch.tensor(turn.teacher_logprobs, dtype=torch.float64) - new.detach())
        ratio = torch.exp(new - new.detach())
        return -(ratio * advantage).mean()


def valid_tokens(turn: Turn) -> int:
    return 0 if turn.prompt_truncated else len(turn.response_ids)


def turn_weights(batch: Sequence[Turn], rollouts: Mapping[str, Sequence[Turn]], *, alpha: float) -> list[float]:
    """TurnOPD's row weights (specification §6.5) from all rows of the rollouts, whatever of them is in the batch."""
    turns = {name: len(rows) for name, rows in rollouts.items()}
    tokens = {name: sum(map(valid_tokens, rows)) for name, rows in rollouts.items()}
    raw = [(1 - alpha) * valid_tokens(t) / tokens[t.rollout] + alpha / turns[t.rollout] for t in batch]
    return [weight * len(raw) / sum(raw) for weight in raw]


def rollout_weights(batch: Sequence[Turn]) -> list[float]:
    """DivOPD-focus: every rollout of the batch has the same total weight, mean weight 1 (specification §4.3)."""
    rows = Counter(turn.rollout for turn in batch)
    return [len(batch) / (len(rows) * rows[turn.rollout]) for turn in batch]
