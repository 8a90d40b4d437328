"""From packed tokens to log probabilities, without ever holding the logits of more than one chunk of positions."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from divopd.models.attention import Branches, Layout, Packed
from divopd.models.fused import FusedDecoder
from divopd.models.logit_chunks import LogitChunks, logit_chunks


class Scorer(nn.Module):
    """The forward pass of log probabilities as one module, so that FSDP2 gathers the head's weights for it too.

    Without `chunks` they are those of the device on which the model is. `fused` is the model's short way, if it has
    one: set it to None if the layers themselves are to be called.
    """

    def __init__(self, model: Any, *, chunks: LogitChunks | None = None, fused: FusedDecoder | None = None) -> None:
        super().__init__()
        self.model = model
        self.chunks = chunks
        self.fused = fused

    def forward(
        self, ids: Tensor, positions: Tensor, layout: Packed | Branches, index: Tensor, targets: Tensor
    ) -> Tensor:
        """Log probabilities of `targets`, each predicted at the input position that `index` names."""
        hidden = self._hidden(ids, positions, layout, index)
        head = self.model.get_output_embeddings()
        chunks = self.chunks or logit_chunks(hidden.device.type)
        size = max(1, chunks.at_once // self.model.config.vocab_size)
        kept = chunks.kept // chunks.at_once if torch.is_grad_enabled() else len(hidden)
        parts = enumerate(zip(hidden.split(size), targets.split(size), strict=True))
        return torch.cat(
            [
                _token_logprobs(head, h, t)
                if n < kept
                else checkpoint(_token_logprobs, head, h, t, use_reentrant=False)
                for n, (h, t) in parts
            ]
        )

    def _hidden(self, ids: Tensor, positions: Tensor, layout: Packed | Branches, index: Tensor) -> Tensor:
        if self.fused is not None and self.fused.fits():
            return self.fused.at(index, ids, positions, layout)
        return hidden_states(self.model, ids, positions, layout)[index]


def hidden_states(model: Any, ids: Tensor, positions: Tensor, layout: Layout) -> Tensor:
    """What the decoder says at every token of one packed input, before the vocabulary projection."""
    output = model.get_decoder()(input_ids=ids[None], position_ids=positions[None], use_cache=False, layout=layout)
    return output.last_hidden_state[0]


def log_softmax(logits: Tensor) -> Tensor:
    """In float32 at least: differences of log probabilities are the training signal."""
    return torch.log_softmax(at_least_float32(logits), dim=-1)


def at_least_float32(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _token_logprobs(head: nn.Module, hidden: Tensor, targets: Tensor) -> Tensor:
    return _Picked.apply(at_least_float32(head(hidden)), targets)  # pyright: ignore[reportReturnType]


class _Picked(torch.autograd.Function):
    """The log probabilities of one token a row; the backward pass turns the logits into their gradient in place."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        total = logits.logsumexp(-1)
        ctx.save_for_backward(logits, targets, total)
        return logits.gather(-1, targets[:, None])[:, 0] - total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        logits, targets, total = ctx.saved_tensors  # torch refuses a second backward pass: they are changed here
        shares = logits.sub_(total[:, None]).exp_().mul_(-gradient[:, None])
        return shares.scatter_add_(-1, targets[:, None], gradient[:, None]), None
