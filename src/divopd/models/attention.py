"""Attention for rows that lie one after the other in one long input, without padding and without a large mask.

A transformers model that is loaded with `attn_implementation=NAME` hands every layer's queries, keys and values to the
layout that was given to its forward pass: `Packed` and `Branches` for log probabilities, `KeyValues`
(key_values.py) for generation.
"""

from collections.abc import Callable, Iterator, Sequence
from inspect import signature
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from divopd.models.causal import attend_in_blocks, in_blocks

NAME = "divopd"


Masks = dict[tuple[int, int, int | None], Tensor]  # by new tokens, all tokens and window


class Layout(Protocol):
    """Says which tokens of the input see which. Tensors are (heads, tokens, width)."""

    def attend(self, layer: int, qkv: tuple[Tensor, Tensor, Tensor], *, scale: float, window: int | None) -> Tensor: ...


AtOnce = Callable[..., Any]  # a tensor; called as torch's varlen_attn


class Packed:
    """Rows of the given lengths, each of which sees only itself, causally.

    Exact: every row is attended on its own. On a GPU, in half precision, one call of torch's flash attention does it
    for all; `at_once` is another function that is called in its place, on any device.
    """

    def __init__(self, lengths: Sequence[int], *, at_once: AtOnce | None = None) -> None:
        self.lengths, self._at_once = list(lengths), at_once
        self._ends: Tensor | None = None  # where rows begin and end, the same in all layers

    def attend(self, layer: int, qkv: tuple[Tensor, Tensor, Tensor], *, scale: float, window: int | None) -> Tensor:
        at_once = self._at_once or flash_attention(qkv[0])
        if at_once is not None:
            return self._attend_at_once(at_once, qkv, scale=scale, window=window)
        rows = zip(*(tensor.split(self.lengths, dim=1) for tensor in qkv), strict=True)
        return torch.cat([attend_row(q, k, v, scale=scale, window=window) for q, k, v in rows], dim=1)

    def attend_at(
        self, layer: int, qkv: tuple[Tensor, Tensor, Tensor], at: np.ndarray, *, scale: float, window: int | None
    ) -> Tensor:
        """As `attend`, for the queries of some tokens only: `at` are their places in the input, in order."""
        return Branches(self.lengths, []).attend_at(layer, qkv, at, scale=scale, window=window)

    def _attend_at_once(
        self, at_once: AtOnce, qkv: tuple[Tensor, Tensor, Tensor], *, scale: float, window: int | None
    ) -> Tensor:
        if self._ends is None:
            ends = [0, *accumulate(self.lengths)]
            self._ends = torch.tensor(ends, dtype=torch.int32, device=qkv[0].device)
        query, key, value = (tensor.transpose(0, 1) for tensor in qkv)  # tokens come first
        longest = max(self.lengths)
        seen = (-1 if window is None else window - 1, 0)  # tokens before it and after it
        output = at_once(
            query, key, value, self._ends, self._ends, longest, longest,
            scale=scale, window_size=seen, enable_gqa=True,
        )  # fmt: skip
        return output.transpose(0, 1)


def flash_attention(query: Tensor) -> AtOnce | None:
    """Torch's attention for rows of all lengths in one call, where it has it: on a GPU, in half precision."""
    if query.device.type != "cuda" or query.dtype not in (torch.bfloat16, torch.float16):
        return None
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:  # before torch 2.10
        return None
    return varlen_attn if "enable_gqa" in signature(varlen_attn).parameters else None


Read = dict[int, tuple[Tensor, Tensor]]  # keys and values of tokens that were read, by layer


class Branches:
    """Rows of the given lengths, each of which goes on, alone and causally, after the same earlier tokens.

    `read` takes the keys and values of this pass, for what goes on from here.
    """

    def __init__(self, lengths: Sequence[int], earlier: Sequence[Read]) -> None:
        self.lengths = list(lengths)
        self.earlier = earlier
        self.read: Read = {}
        self._masks: Masks = {}

    def attend(self, layer: int, qkv: tuple[Tensor, Tensor, Tensor], *, scale: float, window: int | None) -> Tensor:
        outputs = []
        for q, (keys, values) in zip(qkv[0].split(self.lengths, dim=1), self._seen(layer, *qkv[1:]), strict=True):
            new, end = q.shape[1], keys.shape[1]
            if 2 * new > end and not in_blocks(q, end) and (window is None or end <= window):
                # without a mask the half that nobody sees is not computed: that pays for queries that nobody wants
                whole = torch.cat([q.new_zeros(q.shape[0], end - new, q.shape[2]), q], dim=1)
                outputs.append(attend_row(whole, keys, values, scale=scale, window=window)[:, end - new :])
            else:
                outputs.append(attend_row(q, keys, values, scale=scale, window=window, masks=self._masks))
        return torch.cat(outputs, dim=1)

    def attend_at(
        self, layer: int, qkv: tuple[Tensor, Tensor, Tensor], at: np.ndarray, *, scale: float, window: int | None
    ) -> Tensor:
        """As `attend`, for the queries of some tokens only: `at` are their places in the input, in order."""
        starts = np.cumsum([0, *self.lengths])
        cuts, outputs = np.searchsorted(at, starts), list[Tensor]()
        for row, (keys, values) in enumerate(self._seen(layer, *qkv[1:])):
            asked = slice(cuts[row], cuts[row + 1])
            if asked.start < asked.stop:
                places = at[asked] - starts[row] + keys.shape[1] - self.lengths[row]
                outputs.append(attend_some(qkv[0][:, asked], keys, values, places, scale=scale, window=window))
        return torch.cat(outputs, dim=1) if outputs else qkv[0]

    def _seen(self, layer: int, key: Tensor, value: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The keys and values of each row, those of the earlier tokens first."""
        self.read.setdefault(layer, (key, value))  # the first: activations may be computed again
        before = [[part[layer][which].to(key.dtype) for part in self.earlier] for which in (0, 1)]
        for new in zip(*(tensor.split(self.lengths, dim=1) for tensor in (key, value)), strict=True):
            keys, values = (torch.cat([*past, one], dim=1) for past, one in zip(before, new, strict=True))
            yield keys, values


def attend_row(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float, window: int | None, masks: Masks | None = None
) -> Tensor:
    """Causal attention of the last tokens of one row, the queries, over the whole row; masks come from `masks`."""
    new, end = query.shape[1], key.shape[1]
    if (window is None or end <= window) and in_blocks(query, end):
        return attend_in_blocks(query, key, value, scale=scale)
    qkv = (query[None], key[None], value[None])
    if new == end and (window is None or end <= window):
        return scaled_dot_product_attention(*qkv, is_causal=True, scale=scale, enable_gqa=True)[0]
    if new == 1 and (window is None or end <= window):
        return scaled_dot_product_attention(*qkv, scale=scale, enable_gqa=True)[0]
    masks = {} if masks is None else masks
    if (new, end, window) not in masks:
        seen = torch.ones(new, end, dtype=torch.bool, device=query.device).tril(end - new)
        seen = seen if window is None else seen.triu(end - new - window + 1)
        masks[new, end, window] = query.new_zeros(new, end).masked_fill_(~seen, -torch.inf)  # as torch wants it
    hidden = masks[new, end, window]
    return scaled_dot_product_attention(*qkv, attn_mask=hidden, scale=scale, enable_gqa=True)[0]


def attend_some(
    query: Tensor, key: Tensor, value: Tensor, places: np.ndarray, *, scale: float, window: int | None
) -> Tensor:
    """Causal attention of some tokens of one row, whose places among the keys are these."""
    end = int(places[-1]) + 1
    last, positions = torch.from_numpy(places)[:, None], torch.arange(end)
    hidden = positions > last if window is None else (positions > last) | (positions <= last - window)
    mask = query.new_zeros(len(places), end).masked_fill_(hidden.to(query.device), -torch.inf)
    qkv = (query[None], key[None, :, :end], value[None, :, :end])
    return scaled_dot_product_attention(*qkv, attn_mask=mask, scale=scale, enable_gqa=True)[0]


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, _mask: Any, *, scaling: float, layout: Layout, **rest: Any
) -> tuple[Tensor, None]:
    """As transformers calls it: tensors come as (1, heads, tokens, width), the output goes tokens first."""
    output = layout.attend(
        module.layer_idx, (query[0], key[0], value[0]), scale=scaling, window=rest.get("sliding_window")
    )
    return output.transpose(0, 1)[None], None


def register() -> str:
    """Make the attention known to transformers, and return its name."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, _attention)
    return NAME


def keep_out_of_graphs() -> None:
    """Let torch.compile stop before attention and go on behind it, in this process: here Python says who sees whom."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, torch.compiler.disable(_attention))
