"""What the loss wants of each turn of a batch, and what is told of all of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from divopd.models.objective import opd_loss
from divopd.models.packing import Row, make_row
from divopd.models.trees import Node
from divopd.records import LogprobGap
from divopd.turns import Turn
from divopd.validity import valid_mask, why_invalid


@dataclass(frozen=True, eq=False)
class Target:
    """A turn as the loss sees it: its row, and the log probabilities that it came with at the scored positions."""

    row: Row
    version: int
    student: np.ndarray
    teacher: np.ndarray


class Sums:
    """The loss of each input, and what is told of all of them."""

    def __init__(self, targets: Sequence[Target], token_weight: Sequence[float], device: torch.device) -> None:
        self.targets, self.token_weight = targets, token_weight
        self.newest = max((target.version for target in targets if len(target.row.scored)), default=0)
        self.sums = torch.zeros(3, dtype=torch.float64, device=device)
        self.largest = torch.zeros((), dtype=torch.float64, device=device)

    def loss(self, batch: Sequence[Node], logprobs: torch.Tensor, *, beta: float, counts: bool) -> torch.Tensor:
        """The loss of what these nodes predict; unless it `counts`, it is left out of the sums."""
        spans = [span for node in batch for span in node.spans]
        if not spans:  # a beginning whose tokens nobody wants
            return logprobs.sum()
        rows, sizes = [self.targets[span.row] for span in spans], [len(span.scored) for span in spans]
        here = [np.searchsorted(row.row.scored, span.scored) for row, span in zip(rows, spans, strict=True)]

        def given(name: str) -> torch.Tensor:
            values = [getattr(row, name)[at] for row, at in zip(rows, here, strict=True)]
            return torch.from_numpy(np.concatenate(values)).to(logprobs.device)

        teacher, sampled = given("teacher").to(logprobs.dtype), given("student")
        fresh = torch.from_numpy(np.repeat([row.version == self.newest for row in rows], sizes)).to(logprobs.device)
        weights = torch.from_numpy(np.repeat([self.token_weight[span.row] for span in spans], sizes)).to(logprobs)
        loss = opd_loss(logprobs, teacher=teacher, weights=weights, beta=beta)
        if counts:
            gaps = (logprobs.detach() - sampled).abs() * fresh
            self.sums += torch.stack([loss.detach(), (logprobs.detach() - teacher).sum(), gaps.sum()])
            self.largest = torch.maximum(self.largest, gaps.max())
        return loss

    def gathered(self, ranks: int) -> tuple[float, float, LogprobGap | None]:
        """Of all ranks: the loss, the summed student-minus-teacher log probability, the gap."""
        if ranks > 1:
            dist.all_reduce(self.sums)
            dist.all_reduce(self.largest, dist.ReduceOp.MAX)
        loss, kl, gap = self.sums.tolist()
        tokens = sum(len(target.row.scored) for target in self.targets if target.version == self.newest)
        return loss, kl, LogprobGap(self.newest, tokens, gap / tokens, self.largest.item()) if tokens else None


def target_of(turn: Turn) -> Target:
    if why_invalid(turn) is not None:
        return Target(make_row((), ()), turn.version, np.empty(0), np.empty(0))
    row = make_row(turn.prompt_ids, turn.response_ids, valid_mask(turn))
    both = np.asarray([turn.student_logprobs, turn.teacher_logprobs], dtype=np.float64)
    return Target(row, turn.version, *both[:, row.scored - len(turn.prompt_ids)])
