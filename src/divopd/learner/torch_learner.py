"""One update: read the batch's rows once, follow the objective's gradient, clip it, take one AdamW step.

Under torchrun the same code runs on every rank with the same turns: FSDP2 shards the weights, each rank computes its
share of the micro-batches, and the update is that of one rank, to rounding.
"""

import resource
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from math import ceil, isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from divopd.errors import DivopdError, InputError
from divopd.learner import Weights
from divopd.learner.timing import Clock
from divopd.models.logprobs import Scorer
from divopd.models.objective import opd_loss, token_weights
from divopd.models.optimization import Optimization
from divopd.models.packing import Row, make_row, merge_rows, micro_batches
from divopd.models.packing import Sequence as TokenSequence
from divopd.models.transformers_policy import TransformersPolicy
from divopd.models.weights import Kinds, copied_weights, gathered_weights, streamed_kinds, streamed_weights
from divopd.records import LogprobGap, UpdateFigures
from divopd.run.checkpoints import Writing, begin_checkpoint, load_checkpoint
from divopd.turns import Turn
from divopd.validity import valid_mask, why_invalid


class TorchLearner:
    """Trains a Hugging Face model in place."""

    def __init__(self, policy: TransformersPolicy, optimization: Optimization | None = None, *, nodes: int = 1) -> None:
        """With several ranks on more than one machine (`nodes`), those of each machine share all weights."""
        self.policy = policy
        self.optimization = settings = optimization or Optimization()
        self.ranks = dist.get_world_size() if dist.is_initialized() else 1
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        if settings.activations == "recompute":
            policy.checkpoint_activations()
        if self.ranks > 1:
            shard(policy.scorer, compute=settings.compute, mesh=mesh_of(policy.device, self.ranks, nodes=nodes))
        self.parameters = [p for p in policy.model.parameters() if p.requires_grad]
        for parameter in self.parameters:
            if parameter.dtype not in (torch.float32, torch.float64):
                raise InputError(
                    f"the student's weights are {parameter.dtype}; load it in float32 and set compute to bfloat16, "
                    "so that small steps are not rounded away"
                )
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=settings.lr,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
            fused=True if policy.device.type == "cuda" else None,  # or it holds another copy of what it steps
        )
        self.updates = 0  # made so far, those before a resume included: the learning rate may depend on it

    def update(self, turns: Sequence[Turn], weights: Sequence[float] | None = None) -> UpdateFigures:
        """Train on one batch. An invalid turn is a dead row. If it raises, no weight has changed."""
        figures = self.gradient(turns, weights)
        norm = figures.gradient_norm
        if not isfinite(norm):
            raise DivopdError(f"the gradient's norm is {norm}, so no weight was changed; look at the batch's values")
        clock, lr = Clock(self.policy.device), self.optimization.lr_at(self.updates)
        with clock.stage("step"):
            torch.nn.utils.clip_grads_with_norm_(self.parameters, self.optimization.max_grad_norm, torch.tensor(norm))
            clipped = self._norm()
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            self.optimizer.step()
        self.updates += 1
        return replace(
            figures,
            clipped_norm=clipped,
            lr=lr,
            memory_bytes=most_memory(self.policy.device),
            seconds=figures.seconds | clock.seconds,
        )

    def weights(self) -> Weights:
        """The student's weights, gathered from all ranks; every rank calls it, the first has them whole."""
        return gathered_weights(self.policy.model)

    def snapshot(self, dtype: str | None) -> Weights:
        """A copy of them for explorers and files, made while nothing is trained."""
        return copied_weights(self.policy.model, dtype)

    def stream(self, dtype: str | None) -> Iterator[tuple[str, torch.Tensor]]:
        """See Learner: with several ranks every one goes through all of it."""
        return streamed_weights(self.policy.model, dtype)

    def kinds(self, dtype: str | None) -> Kinds:
        """Type and shape of what `stream` yields."""
        return streamed_kinds(self.policy.model, dtype)

    def save(self, folder: Path, *, update: int, state: Mapping[str, Any]) -> Writing:
        """See begin_checkpoint: every rank calls it, and writes its part beside the next updates."""
        return begin_checkpoint(folder, update=update, model=self.policy.model, optimizer=self.optimizer, state=state)

    def load(self, path: Path) -> dict[str, Any]:
        """Fill weights, optimizer and random state from a checkpoint; returns the state that was saved with them."""
        loaded = load_checkpoint(path, model=self.policy.model, optimizer=self.optimizer)
        self.updates = loaded.update + 1
        return loaded.state

    def gradient(self, turns: Sequence[Turn], weights: Sequence[float] | None = None) -> UpdateFigures:
        """Leave the gradient of a batch's loss in the parameters, and change none of them."""
        if not turns:
            raise InputError("a batch needs at least one row; got none")
        clock = Clock(self.policy.device)
        with clock.stage("pack"):
            targets = [_target(turn) for turn in turns]
            valid = [len(target.row.scored) for target in targets]
            sequences = merge_rows([target.row for target in targets])
            for sequence in sequences:  # here, on every rank: an error on one alone would leave the others waiting
                self.policy.refuse_foreign_ids(sequence.ids)
        token_weight = token_weights(valid, [1.0] * len(turns) if weights is None else weights)
        loss, kl, gap = self._accumulate(self._share(sequences), targets, token_weight, clock)
        return UpdateFigures(
            rows=len(turns),
            dead_rows=valid.count(0),
            valid_tokens=sum(valid),
            tokens=sum(turn.tokens for turn in turns),
            computed_tokens=sum(sequence.tokens for sequence in sequences),
            loss=loss,
            learner_kl_per_token=kl / max(sum(valid), 1),
            gradient_norm=self._norm(),
            logprob_gap=gap,
            seconds=clock.seconds,
            masked_tokens=sum(len(t.teacher_mask) - sum(t.teacher_mask) for t in turns if t.teacher_mask is not None),
        )

    def _share(self, sequences: list[TokenSequence]) -> list[tuple[list[TokenSequence], float]]:
        """This rank's micro-batches, each with the factor of its loss.

        Ranks must take part equally often, so one without work repeats a micro-batch with factor 0. FSDP2 averages the
        gradients of the ranks where the objective wants their sum, hence the other factor.
        """
        total = sum(sequence.tokens for sequence in sequences)
        rounds = ceil(total / (self.ranks * self.optimization.max_tokens))
        even = ceil(total / (self.ranks * max(rounds, 1)))
        batches = micro_batches(sequences, even if self.ranks > 1 else self.optimization.max_tokens)
        idle = -len(batches) % self.ranks
        shares = [(batch, float(self.ranks)) for batch in batches] + [(batches[-1], 0.0) for _ in range(idle)]
        return shares[self.rank :: self.ranks]

    def _accumulate(
        self,
        batches: list[tuple[list[TokenSequence], float]],
        targets: Sequence["Target"],
        token_weight: Sequence[float],
        clock: Clock,
    ) -> tuple[float, float, LogprobGap | None]:
        """Leave the gradient in the parameters; the loss, the summed student-minus-teacher log probability, the gap."""
        device = self.policy.device
        sums = torch.zeros(3, dtype=torch.float64, device=device)
        largest = torch.zeros((), dtype=torch.float64, device=device)
        newest = max((target.version for target in targets if len(target.row.scored)), default=0)
        self.optimizer.zero_grad()
        self.policy.scorer.train()
        for batch, factor in batches:
            spans = [span for sequence in batch for span in sequence.spans]
            sizes, rows = [len(span.scored) for span in spans], [targets[span.row] for span in spans]
            teacher = torch.from_numpy(np.concatenate([row.teacher for row in rows])).to(device)
            sampled = torch.from_numpy(np.concatenate([row.student for row in rows])).to(device)
            fresh = torch.from_numpy(np.repeat([row.version == newest for row in rows], sizes)).to(device)
            weight = np.repeat([token_weight[span.row] for span in spans], sizes)
            with clock.stage("forward"), self._autocast():
                logprobs = self.policy.logprobs(batch)
                teacher, weight = teacher.to(logprobs.dtype), torch.from_numpy(weight).to(logprobs)
                loss = opd_loss(logprobs, teacher=teacher, weights=weight, beta=self.optimization.beta)
            with clock.stage("backward"):
                (factor * loss).backward()
            if factor:
                gaps = (logprobs.detach() - sampled).abs() * fresh
                sums += torch.stack([loss.detach(), (logprobs.detach() - teacher).sum(), gaps.sum()])
                largest = torch.maximum(largest, gaps.max())
        self.policy.scorer.eval()
        if self.ranks > 1:
            dist.all_reduce(sums)
            dist.all_reduce(largest, dist.ReduceOp.MAX)
        loss_sum, kl_sum, gap_sum = sums.tolist()
        tokens = sum(len(target.row.scored) for target in targets if target.version == newest)
        gap = LogprobGap(newest, tokens, gap_sum / tokens, largest.item()) if tokens else None
        return loss_sum, kl_sum, gap

    def _norm(self) -> float:
        for parameter in self.parameters:
            if parameter.grad is None:  # a batch of dead rows has the gradient 0, and makes a step all the same
                parameter.grad = torch.zeros_like(parameter)
        norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in self.parameters])
        return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)

    def _autocast(self) -> AbstractContextManager[Any]:
        """The type of the products on one rank; several have it from FSDP2 (`shard`)."""
        if self.optimization.compute == "float32" or self.ranks > 1:
            return nullcontext()
        return torch.autocast(self.policy.device.type, torch.bfloat16)


@dataclass(frozen=True, eq=False)
class Target:
    """A turn as the loss sees it: its row, and the log probabilities that it came with at the scored positions."""

    row: Row
    version: int
    student: np.ndarray
    teacher: np.ndarray


def _target(turn: Turn) -> Target:
    if why_invalid(turn) is not None:
        return Target(make_row((), ()), turn.version, np.empty(0), np.empty(0))
    row = make_row(turn.prompt_ids, turn.response_ids, valid_mask(turn))
    both = np.asarray([turn.student_logprobs, turn.teacher_logprobs], dtype=np.float64)
    return Target(row, turn.version, *both[:, row.scored - len(turn.prompt_ids)])


def mesh_of(device: torch.device, ranks: int, *, nodes: int) -> DeviceMesh | None:
    """How ranks share weights: all of them (None), or those of one machine, of which each has all weights (HSDP).

    Layers are then gathered within a machine, and only gradients go between machines. Ranks that follow one another are
    on one machine.
    """
    if nodes == 1:
        return None
    return init_device_mesh(device.type, (nodes, ranks // nodes), mesh_dim_names=("machines", "ranks"))


def shard(scorer: Scorer, *, compute: str, mesh: DeviceMesh | None = None) -> None:
    """Split the weights over the ranks with FSDP2: one group per layer, one for the rest.

    bfloat16 products: layers are gathered in bfloat16 and gradients are summed in float32. Autocast would keep a
    bfloat16 copy of every gathered layer alive until the end of the forward pass.
    """
    rounded = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    settings: dict[str, Any] = {"mesh": mesh} | ({} if compute == "float32" else {"mp_policy": rounded})
    for layer in scorer.model.get_decoder().layers:
        fully_shard(layer, **settings)
    fully_shard(scorer, **settings)


def most_memory(device: torch.device) -> int:
    """The most bytes that were held at once so far: on the GPU, or by this whole process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024  # of what the system counts in
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
