"""Attention for rows that lie one after the other in one long input, without padding and without a large mask.

A transformers model that is loaded with `attn_implementation=NAME` hands every layer's queries, keys and values to the
layout that was given to its forward pass: `Packed` for log probabilities, `KeyValues` for generation.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

NAME = "divopd"


class Layout(Protocol):
    """Says which tokens of the input see which. Tensors are (heads, tokens, width)."""

    def attend(self, layer: int, qkv: tuple[Tensor, Tensor, Tensor], *, scale: float, window: int | None) -> Tensor: ...


class Packed:
    """Rows of the given lengths, each of which sees only itself, causally. Exact: every row is attended on its own."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = list(lengths)

    def attend(self, layer: int, qkv: tuple[Tensor, Tensor, Tensor], *, scale: float, window: int | None) -> Tensor:
        rows = zip(*(tensor.split(self.lengths, dim=1) for tensor in qkv), strict=True)
        return torch.cat([_causal(q, k, v, scale=scale, window=window) for q, k, v in rows], dim=1)


class KeyValues:
    """The keys and values of a batch of rows that grow while they are generated, room for `room` tokens in each row.

    `lengths` says how many tokens of each row are there. `expect` announces how many more of each the next forward pass
    brings; `grow` counts them in afterwards.
    """

    def __init__(self, rows: int, room: int) -> None:
        self.lengths = [0] * rows
        self.room = room
        self.new = [0] * rows
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    def expect(self, new: Sequence[int]) -> None:
        self.new = list(new)

    def grow(self) -> None:
        self.lengths = [length + new for length, new in zip(self.lengths, self.new, strict=True)]

    def keep(self, rows: Sequence[int]) -> None:
        """Forget all rows but these."""
        self.lengths = [self.lengths[row] for row in rows]
        index = torch.tensor(rows)
        self.layers = {n: (k[index.to(k.device)], v[index.to(v.device)]) for n, (k, v) in self.layers.items()}

    def row(self, row: int) -> dict[int, tuple[Tensor, Tensor]]:
        """A copy of one row's keys and values, per layer."""
        length = self.lengths[row]
        return {n: (k[row, :, :length].clone(), v[row, :, :length].clone()) for n, (k, v) in self.layers.items()}

    def fill(self, row: int, saved: dict[int, tuple[Tensor, Tensor]], length: int) -> None:
        """Put the first `length` tokens of what `row()` gave into a row."""
        for layer, (key, value) in saved.items():
            keys, values = self._buffers(layer, key, value)
            keys[row, :, :length], values[row, :, :length] = key[:, :length], value[:, :length]
        self.lengths[row] = length

    def _buffers(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        if layer not in self.layers:
            rows = len(self.lengths)
            # zeros, not empty: a masked position still enters the product, and 0 · NaN is NaN
            self.layers[layer] = (
                key.new_zeros(rows, key.shape[0], self.room, key.shape[2]),
                value.new_zeros(rows, value.shape[0], self.room, value.shape[2]),
            )
        return self.layers[layer]

    def attend(self, layer: int, qkv: tuple[Tensor, Tensor, Tensor], *, scale: float, window: int | None) -> Tensor:
        query, key, value = qkv
        buffers = self._buffers(layer, key, value)
        if all(new == 1 for new in self.new):
            return self._attend_one_each(buffers, qkv, scale=scale, window=window)
        outputs, at = [], 0
        for row, (start, new) in enumerate(zip(self.lengths, self.new, strict=True)):
            if not new:
                continue
            here, end = slice(at, at + new), start + new
            for buffer, fresh in zip(buffers, (key, value), strict=True):
                buffer[row, :, start:end] = fresh[:, here]
            keys, values = (buffer[row, :, :end] for buffer in buffers)
            outputs.append(_causal(query[:, here], keys, values, scale=scale, window=window))
            at += new
        return torch.cat(outputs, dim=1)

    def _attend_one_each(
        self, buffers: tuple[Tensor, Tensor], qkv: tuple[Tensor, Tensor, Tensor], *, scale: float, window: int | None
    ) -> Tensor:
        """One new token in every row: one product for the whole batch, over the longest row."""
        query, key, value = qkv
        rows = torch.arange(len(self.lengths), device=query.device)
        last = torch.tensor(self.lengths, device=query.device)
        for buffer, fresh in zip(buffers, (key, value), strict=True):
            buffer[rows, :, last] = fresh.transpose(0, 1)
        end = max(self.lengths) + 1
        keys, values = (buffer[:, :, :end] for buffer in buffers)
        positions = torch.arange(end, device=query.device)
        seen = positions <= last[:, None]
        if window is not None:
            seen &= positions > last[:, None] - window
        # the query heads that share a key head stand where a prompt's tokens would: nothing is repeated
        grouped = query.transpose(0, 1).reshape(len(rows), key.shape[0], -1, query.shape[2])
        output = scaled_dot_product_attention(grouped, keys, values, attn_mask=seen[:, None, None], scale=scale)
        return output.reshape(len(rows), query.shape[0], -1).transpose(0, 1)


def _causal(query: Tensor, key: Tensor, value: Tensor, *, scale: float, window: int | None) -> Tensor:
    """Attention of the last tokens of one row, the queries, over the whole row."""
    new, end = query.shape[1], key.shape[1]
    qkv = (query[None], key[None], value[None])
    if new == end and (window is None or end <= window):
        return scaled_dot_product_attention(*qkv, is_causal=True, scale=scale, enable_gqa=True)[0]
    seen = torch.ones(new, end, dtype=torch.bool, device=query.device).tril(end - new)
    if window is not None:
        seen = seen.triu(end - new - window + 1)
    return scaled_dot_product_attention(*qkv, attn_mask=seen, scale=scale, enable_gqa=True)[0]


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
