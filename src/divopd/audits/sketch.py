"""A Kronecker sketch of per-turn gradients: unbiased inner products in a fraction of the memory (specification §10).

The gradient of a linear layer is a sum over tokens of δ xᵀ, with its input x and the gradient δ of its output. Random
P and Q with E[PᵀP] = E[QᵀQ] = I make (P δ)(Q x)ᵀ a matrix of size × size whose inner products are, on average, those
of the whole gradients; their error falls with the square root of the size. An embedding is such a layer too, with a
one-hot x, and shares P and Q with the head where both share one weight. Gains of norms and biases are left out.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from divopd.models.attention import Packed
from divopd.models.logprobs import hidden_states, log_softmax
from divopd.models.objective import opd_loss
from divopd.models.packing import Sequence as TokenSequence
from divopd.models.packing import Span, make_row, micro_batches
from divopd.models.transformers_policy import TransformersPolicy
from divopd.turns import Turn
from divopd.validity import valid_mask

SIZE = 32
TOKENS_AT_ONCE = 4096


@dataclass(frozen=True, eq=False)
class Projection:
    """P and Q of one weight, transposed: (outputs, size) and (inputs, size)."""

    outputs: Tensor
    inputs: Tensor


class KroneckerSketch:
    """Sketches the gradients of a policy's turns; the same seed gives the same projections."""

    def __init__(self, policy: TransformersPolicy, *, size: int = SIZE, seed: int = 0) -> None:
        self.policy = policy
        self.size = size
        self.modules: dict[nn.Module, int] = {}  # the weight that each module uses
        self.projections: dict[int, Projection] = {}
        for name, module in policy.model.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding) and module.weight.requires_grad:
                self.modules[module] = id(module.weight)
                if id(module.weight) not in self.projections:
                    self.projections[id(module.weight)] = _projection(module.weight, size, f"{seed}/{name}")
        self._lengths: list[int] = []  # of the rows in what the modules read now
        self._sums: dict[int, Tensor] = {}

    def gradients(self, turns: Sequence[Turn], *, beta: float = 1.0) -> Tensor:
        """The sketched gradient of each valid turn's own loss at the policy's weights: (turns, sketch)."""
        sequences, teachers = _rows(turns)
        result = torch.zeros(len(turns), len(self.projections) * self.size**2)
        with self._hooks():
            for batch in micro_batches(sequences, TOKENS_AT_ONCE):
                numbers = [sequence.spans[0].row for sequence in batch]
                self._sums = {}
                self._backward(batch, [teachers[number] for number in numbers], beta)
                result[numbers] = (
                    torch.cat([self._sums[weight].flatten(1) for weight in self.projections], dim=1).float().cpu()
                )
        return result

    def _backward(self, batch: list[TokenSequence], teachers: list[np.ndarray], beta: float) -> None:
        """One pass over rows that do not see each other: what flows back at a row's tokens is its own gradient."""
        model, device = self.policy.model, self.policy.device
        self._lengths = lengths = [sequence.tokens for sequence in batch]
        scored = [sequence.spans[0].scored for sequence in batch]
        starts = np.cumsum([0, *lengths[:-1]])
        ids = torch.from_numpy(np.concatenate([sequence.ids[:-1] for sequence in batch])).to(device)
        positions = torch.cat([torch.arange(length, device=device) for length in lengths])
        hidden = hidden_states(model, ids, positions, Packed(lengths))
        at = np.concatenate([where + start - 1 for where, start in zip(scored, starts, strict=True)])
        targets = np.concatenate([s.ids[where] for s, where in zip(batch, scored, strict=True)])
        self._lengths = [len(where) for where in scored]
        logprobs = log_softmax(model.get_output_embeddings()(hidden[torch.from_numpy(at).to(device)]))
        chosen = logprobs.gather(-1, torch.from_numpy(targets).to(device)[:, None])[:, 0]
        weights = np.repeat([1 / len(where) for where in scored], [len(where) for where in scored])
        loss = opd_loss(
            chosen,
            teacher=torch.from_numpy(np.concatenate(teachers)).to(chosen),
            weights=torch.from_numpy(weights).to(chosen),
            beta=beta,
        )
        loss.backward()
        model.zero_grad(set_to_none=True)

    @contextmanager
    def _hooks(self) -> Iterator[None]:
        handles = [module.register_forward_hook(self._watch) for module in self.modules]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _watch(self, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Remember what a module read, and sketch when its output's gradient comes back."""
        weight, lengths, read = self.modules[module], self._lengths, inputs[0].detach()
        projection = self.projections[weight]

        def sketch(gradient: Tensor) -> None:
            back = gradient.reshape(-1, gradient.shape[-1])
            if isinstance(module, nn.Embedding):  # of a weight (words, width) the words are the outputs
                left, right = projection.outputs[read.flatten()], back @ projection.inputs
            else:
                left, right = back @ projection.outputs, read.reshape(-1, read.shape[-1]) @ projection.inputs
            rows = zip(left.split(lengths), right.split(lengths), strict=True)
            sums = torch.stack([a.T @ b for a, b in rows])
            self._sums[weight] = self._sums[weight] + sums if weight in self._sums else sums

        if output.requires_grad:
            output.register_hook(sketch)


def _projection(weight: Tensor, size: int, name: str) -> Projection:
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")
    random = torch.Generator().manual_seed(seed)
    outputs, inputs = (torch.randn(width, size, generator=random) / size**0.5 for width in weight.shape)
    return Projection(outputs.to(weight), inputs.to(weight))


def _rows(turns: Sequence[Turn]) -> tuple[list[TokenSequence], list[np.ndarray]]:
    """Each turn as a sequence of its own, and the teacher's log probabilities at its scored positions."""
    sequences: list[TokenSequence] = []
    teachers: list[np.ndarray] = []
    for number, turn in enumerate(turns):
        row = make_row(turn.prompt_ids, turn.response_ids, valid_mask(turn))
        sequences.append(TokenSequence(row.ids[: row.scored[-1] + 1], (Span(number, row.scored),)))
        teachers.append(np.asarray(turn.teacher_logprobs, dtype=np.float64)[row.scored - len(turn.prompt_ids)])
    return sequences, teachers
