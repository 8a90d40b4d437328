"""From packed tokens to log probabilities, without ever holding the logits of more than one chunk of positions."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from divopd.models.attention import Layout

LOGITS_AT_ONCE = 2**23  # scored positions × vocabulary in one chunk: 32 MB in float32


class Scorer(nn.Module):
    """The forward pass of log probabilities as one module, so that FSDP2 gathers the head's weights for it too."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, positions: Tensor, layout: Layout, index: Tensor, targets: Tensor) -> Tensor:
        """Log probabilities of `targets`, each predicted at the input position that `index` names."""
        hidden = hidden_states(self.model, ids, positions, layout)[index]
        head = self.model.get_output_embeddings()
        size = max(1, LOGITS_AT_ONCE // self.model.config.vocab_size)
        parts = zip(hidden.split(size), targets.split(size), strict=True)
        # the logits of a chunk are computed again in the backward pass: those of all chunks never live at once
        return torch.cat([checkpoint(_token_logprobs, head, h, t, use_reentrant=False) for h, t in parts])


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
    logits = at_least_float32(head(hidden))
    return logits.gather(-1, targets[:, None])[:, 0] - logits.logsumexp(-1)
