"""One update: read the batch's rows once, follow the objective's gradient, clip it, take one AdamW step.

Under torchrun the same code runs on every rank with the same turns: FSDP2 shards the weights, each rank computes its
share of the micro-batches, and the update is that of one rank, to rounding.
"""

import resource
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from math import ceil, isfinite
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from divopd.errors import DivopdError, InputError
from divopd.learner import Weights
from divopd.learner.sums import Sums, Target, target_of
from divopd.learner.timing import Clock
from divopd.models.attention import Read
from divopd.models.compiled_layers import compile_layers
from divopd.models.logprobs import Scorer, at_least_float32
from divopd.models.objective import token_weights
from divopd.models.optimization import Optimization
from divopd.models.packing import merge_rows
from divopd.models.transformers_policy import TransformersPolicy
from divopd.models.trees import Node, passes, single_nodes
from divopd.models.weights import Kinds, copied_weights, gathered_weights, streamed_kinds, streamed_weights
from divopd.records import LogprobGap, UpdateFigures
from divopd.run.checkpoints import Writing, begin_checkpoint, load_checkpoint
from divopd.turns import Turn


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
        if settings.compile:
            compile_layers(policy.model)
            policy.scorer.fused = None
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
            # one pass, and no copy of what it steps
            fused=True if policy.device.type == "cuda" or (policy.device.type == "cpu" and self.ranks == 1) else None,
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
            torch.autograd.graph.increment_version(self.parameters)  # by which generation notices; fused steps do not
        self.updates += 1
        return replace(
            figures,
            clipped_norm=clipped,
            lr=lr,
            memory_bytes=most_memory(self.policy.device),
            seconds=figures.seconds | clock.seconds,
            processor_s=(figures.processor_s or {}) | clock.processor_s,
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
            targets = [target_of(turn) for turn in turns]
            valid = [len(target.row.scored) for target in targets]
            rows = [target.row for target in targets]
            sequences = merge_rows(rows)
            for sequence in sequences:  # here, on every rank: an error on one alone would leave the others waiting
                self.policy.refuse_foreign_ids(sequence.ids)
            # FSDP2 pairs each forward pass with the backward pass behind it; those of a tree lie inside one another
            trees = self.policy.trees(sequences, rows) if self.ranks == 1 else single_nodes(sequences, rows)
        token_weight = token_weights(valid, [1.0] * len(turns) if weights is None else weights)
        loss, kl, gap = self._accumulate(trees, targets, token_weight, clock)
        return UpdateFigures(
            rows=len(turns),
            dead_rows=valid.count(0),
            valid_tokens=sum(valid),
            tokens=sum(turn.tokens for turn in turns),
            computed_tokens=sum(tree.tokens_below for tree in trees),
            loss=loss,
            learner_kl_per_token=kl / max(sum(valid), 1),
            gradient_norm=self._norm(),
            logprob_gap=gap,
            seconds=clock.seconds,
            processor_s=clock.processor_s,
            masked_tokens=sum(len(t.teacher_mask) - sum(t.teacher_mask) for t in turns if t.teacher_mask is not None),
        )

    def _share(self, trees: list[Node], at_once: int) -> list[tuple[list[Node], float]]:
        """This rank's inputs, each with the factor of its loss.

        Ranks must take part equally often, so one without work repeats an input with factor 0. FSDP2 averages the
        gradients of the ranks where the objective wants their sum, hence the other factor.
        """
        if self.ranks == 1:
            return [(batch, 1.0) for batch in passes(trees, at_once)]
        total = sum(tree.tokens for tree in trees)
        rounds = ceil(total / (self.ranks * at_once))
        batches = passes(trees, ceil(total / (self.ranks * max(rounds, 1))))
        idle = -len(batches) % self.ranks
        shares = [(batch, float(self.ranks)) for batch in batches] + [(batches[-1], 0.0) for _ in range(idle)]
        return shares[self.rank :: self.ranks]

    def _accumulate(
        self, trees: list[Node], targets: Sequence[Target], token_weight: Sequence[float], clock: Clock
    ) -> tuple[float, float, LogprobGap | None]:
        """Leave the gradient in the parameters; the loss, the summed student-minus-teacher log probability, the gap."""
        at_once = self.policy.tokens_at_once(trees, self.optimization.max_tokens)
        sums = Sums(targets, token_weight, self.policy.device)
        self.optimizer.zero_grad()
        self.policy.scorer.train()
        for batch, factor in self._share(trees, at_once):
            self._descend(batch, factor, [], at_once, sums, clock)
        self.policy.scorer.eval()
        return sums.gathered(self.ranks)

    def _descend(
        self, batch: list[Node], factor: float, earlier: list[Read], at_once: int, sums: Sums, clock: Clock
    ) -> None:
        """Add the gradient of siblings and of all below them.

        What goes on from a node leaves the gradients of the node's keys and values, by which they go on into it: no
        more is held at a time than one sequence needs.
        """
        with clock.stage("forward"), self._autocast():
            logprobs, here = self.policy.logprobs(batch, earlier)
            loss = sums.loss(batch, logprobs, beta=self.optimization.beta, counts=bool(factor))
        leaves = {layer: (_leaf(keys), _leaf(values)) for layer, (keys, values) in here.items()}
        for node in batch:
            for below in passes(node.children, at_once):
                self._descend(below, factor, [*earlier, leaves], at_once, sums, clock)
        ends = [
            (tensor, leaf.grad.to(tensor.dtype))
            for layer, pair in here.items()
            for tensor, leaf in zip(pair, leaves[layer], strict=True)
            if leaf.grad is not None
        ]
        with clock.stage("backward"):
            torch.autograd.backward([factor * loss, *(t for t, _ in ends)], [None, *(g for _, g in ends)])

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


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, in which gradients gather in float32 at least."""
    return at_least_float32(tensor.detach()).requires_grad_()


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
    scorer.fused = None  # weights are gathered when a layer is called
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
