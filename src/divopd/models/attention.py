"""Attention for rows that lie one after the other in one long input, without padding and without a large mask.

A transformers model that is loaded with `attn_implementation=NAME` hands every layer's queries, keys and values to the
layout that was given to its forward pass: `Packed` for log probabilities, `KeyValues` for generation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from itertools import accumulate
from math import ceil
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from divopd.models.causal import attend_in_blocks, in_blocks

NAME = "divopd"
ROOM = 128  # tokens: rows get room in steps of this


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
        return torch.cat([_causal(q, k, v, scale=scale, window=window) for q, k, v in rows], dim=1)

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
        query, key, value = qkv
        self.read.setdefault(layer, (key, value))  # the first: activations may be computed again
        before = [[part[layer][which].to(query.dtype) for part in self.earlier] for which in (0, 1)]
        outputs = []
        for q, k, v in zip(*(tensor.split(self.lengths, dim=1) for tensor in qkv), strict=True):
            keys, values = (torch.cat([*past, new], dim=1) for past, new in zip(before, (k, v), strict=True))
            new, end = q.shape[1], keys.shape[1]
            if 2 * new > end and not in_blocks(q, end) and (window is None or end <= window):
                # without a mask the half that nobody sees is not computed: that pays for queries that nobody wants
                whole = torch.cat([q.new_zeros(q.shape[0], end - new, q.shape[2]), q], dim=1)
                outputs.append(_causal(whole, keys, values, scale=scale, window=window)[:, end - new :])
            else:
                outputs.append(_causal(q, keys, values, scale=scale, window=window, masks=self._masks))
        return torch.cat(outputs, dim=1)


class KeyValues:
    """The keys and values of rows that grow while they are read and generated; they stay there between turns.

    `lengths` says how many tokens of each row are there. `expect` announces the rows of the next forward pass and how
    many tokens it brings of each, first those that bring one token and are attended together; `grow` counts them in
    afterwards.
    """

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.rows: list[int] = []
        self.new: list[int] = []
        self.together = 0
        self._room = 0
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        self._one_each: dict[int | None, _OneEach] = {}  # of this forward pass, by window
        self._masks: Masks = {}  # of this forward pass: all layers need the same

    def make_room(self, rows: int, room: int) -> None:
        """Let there be so many rows at least, with room for so many tokens in each."""
        rows, room = max(rows, len(self.lengths)), max(room, self._room)
        self.lengths += [0] * (rows - len(self.lengths))
        self._room = ROOM * ceil(room / ROOM)
        self._layers = {n: (self._enlarged(k), self._enlarged(v)) for n, (k, v) in self._layers.items()}

    def _enlarged(self, buffer: Tensor) -> Tensor:
        if buffer.shape[0] == len(self.lengths) and buffer.shape[2] == self._room:
            return buffer
        larger = self._zeros(buffer)
        larger[: buffer.shape[0], :, : buffer.shape[2]] = buffer
        return larger

    def _zeros(self, like: Tensor) -> Tensor:
        """For rows × heads × tokens × width; zeros, because 0 · NaN, a masked position of empty memory, is NaN."""
        return like.new_zeros(len(self.lengths), like.shape[-3], self._room, like.shape[-1])

    def copy(self, source: int, row: int, tokens: int) -> None:
        """Let a row begin with the first so many tokens of another, as if it had read them itself."""
        for buffers in self._layers.values():
            for buffer in buffers:
                buffer[row, :, :tokens] = buffer[source, :, :tokens]
        self.lengths[row] = tokens

    def expect(self, rows: Sequence[int], new: Sequence[int], *, together: int) -> None:
        few = 2 * together <= len(self.lengths)  # copying them out costs more than attending them one by one
        self.rows, self.new, self.together = list(rows), list(new), 0 if few and together < len(rows) else together
        self._one_each, self._masks = {}, {}

    def grow(self) -> None:
        for row, new in zip(self.rows, self.new, strict=True):
            self.lengths[row] += new

    def attend(self, layer: int, qkv: tuple[Tensor, Tensor, Tensor], *, scale: float, window: int | None) -> Tensor:
        query, key, value = qkv
        if layer not in self._layers:
            self._layers[layer] = (self._zeros(key), self._zeros(value))
        buffers, outputs, at = self._layers[layer], list[Tensor](), self.together
        if at:
            ones = (query[:, :at], key[:, :at], value[:, :at])
            outputs.append(self._attend_one_each(buffers, ones, scale=scale, window=window))
        for row, new in zip(self.rows[at:], self.new[at:], strict=True):
            if not new:
                continue
            here, start, end = slice(at, at + new), self.lengths[row], self.lengths[row] + new
            for buffer, fresh in zip(buffers, (key, value), strict=True):
                buffer[row, :, start:end] = fresh[:, here]
            keys, values = (buffer[row, :, :end] for buffer in buffers)
            outputs.append(_causal(query[:, here], keys, values, scale=scale, window=window, masks=self._masks))
            at += new
        return torch.cat(outputs, dim=1) if len(outputs) > 1 else outputs[0]

    def _attend_one_each(
        self, buffers: tuple[Tensor, Tensor], qkv: tuple[Tensor, Tensor, Tensor], *, scale: float, window: int | None
    ) -> Tensor:
        """One new token in each of the first rows that are expected: one product for all of them, over the longest."""
        query, key, value = qkv
        rows = self.together
        if window not in self._one_each:
            self._one_each[window] = _OneEach.of(self, query.device, window)
        at = self._one_each[window]
        for buffer, fresh in zip(buffers, (key, value), strict=True):
            buffer[at.rows, :, at.last] = fresh.transpose(0, 1)
        keys, values = (buffer[:, :, : at.seen.shape[-1]] for buffer in buffers)
        # the query heads that share a key head stand where a prompt's tokens would: nothing is repeated
        grouped = query.transpose(0, 1).reshape(rows, key.shape[0], -1, query.shape[2])
        if at.in_place:
            grouped = grouped.new_zeros(len(self.lengths), *grouped.shape[1:]).index_copy_(0, at.rows, grouped)
        else:
            keys, values = keys[at.rows], values[at.rows]
        output = scaled_dot_product_attention(grouped, keys, values, attn_mask=at.seen, scale=scale)
        output = output[at.rows] if at.in_place else output
        return output.reshape(rows, query.shape[0], -1).transpose(0, 1)


@dataclass(frozen=True)
class _OneEach:
    """Where one new token of each row goes and what it sees, the same for all layers.

    `in_place`: most rows take part, so all are computed where they are; else those that do are copied out.
    """

    rows: Tensor
    last: Tensor
    seen: Tensor
    in_place: bool

    @classmethod
    def of(cls, batch: KeyValues, device: torch.device, window: int | None) -> "_OneEach":
        together = batch.rows[: batch.together]
        in_place = 2 * len(together) > len(batch.lengths)
        last = [batch.lengths[row] for row in together]
        ends = torch.zeros(len(batch.lengths), dtype=torch.long)
        ends[together] = torch.tensor(last)
        ends = (ends if in_place else torch.tensor(last)).to(device)[:, None]
        positions = torch.arange(max(last) + 1, device=device)
        seen = positions <= ends
        if window is not None:
            seen &= positions > ends - window
        rows = torch.tensor(together, device=device)
        return cls(rows, torch.tensor(last, device=device), seen[:, None, None], in_place)


def _causal(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float, window: int | None, masks: Masks | None = None
) -> Tensor:
    """Attention of the last tokens of one row, the queries, over the whole row; masks are taken from `masks`."""
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
        masks[new, end, window] = seen if window is None else seen.triu(end - new - window + 1)
    seen = masks[new, end, window]
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


def keep_out_of_graphs() -> None:
    """Let torch.compile stop before attention and go on behind it, in this process: here Python says who sees whom."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, torch.compiler.disable(_attention))
