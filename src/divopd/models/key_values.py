"""The memory of generation: keys and values of rows of all lengths, and attention of a few new tokens over them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, inf

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from divopd.models.attention import Masks, attend_row

ROOM = 128  # tokens: rows get room in steps of this
CALL = 2**17  # bytes of keys and values that a CPU reads in the time that a call of attention costs
CALL_ON_A_GPU = 2**23  # at a terabyte a second; nobody has measured it


class KeyValues:
    """The keys and values of rows that grow while they are read and generated; they stay there between turns.

    `lengths` says how many tokens of each row are there. `expect` announces the rows of the next forward pass and how
    many tokens it brings of each, first those that bring one token and are attended together, in the order in which
    they lie; `grow` counts them in afterwards.
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
        assert all(one < next_ for one, next_ in pairwise(rows[:together])), "rows attended together come in order"
        self.rows, self.new, self.together = list(rows), list(new), together
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
            outputs.append(attend_row(query[:, here], keys, values, scale=scale, window=window, masks=self._masks))
            at += new
        return torch.cat(outputs, dim=1) if len(outputs) > 1 else outputs[0]

    def _attend_one_each(
        self, buffers: tuple[Tensor, Tensor], qkv: tuple[Tensor, Tensor, Tensor], *, scale: float, window: int | None
    ) -> Tensor:
        """One new token in each of the first rows that are expected; a product for each stretch of them."""
        query, key, value = qkv
        if window not in self._one_each:
            self._one_each[window] = _OneEach.of(self, key, window)
        at = self._one_each[window]
        for buffer, fresh in zip(buffers, (key, value), strict=True):
            buffer[at.rows, :, at.last] = fresh.transpose(0, 1)
        # the query heads that share a key head stand where a prompt's tokens would: nothing is repeated
        grouped = query.transpose(0, 1).reshape(self.together, key.shape[0], -1, query.shape[2])
        outputs = []
        for stretch in at.stretches:
            keys, values = (buffer[stretch.rows, :, : stretch.tokens] for buffer in buffers)
            asked = grouped[stretch.members]
            if stretch.places is not None:
                asked = asked.new_zeros(len(keys), *asked.shape[1:]).index_copy_(0, stretch.places, asked)
            if at.rounded:  # torch's attention of a few queries is slower in bfloat16 than a copy in float32
                asked, keys, values = asked.float(), keys.float(), values.float()
            output = scaled_dot_product_attention(asked, keys, values, attn_mask=stretch.hidden, scale=scale)
            outputs.append(output if stretch.places is None else output[stretch.places])
        output = torch.cat(outputs) if len(outputs) > 1 else outputs[0]
        return output.to(query.dtype).reshape(self.together, query.shape[0], -1).transpose(0, 1)


@dataclass(frozen=True)
class _Stretch:
    """Neighbouring rows of the memory that are attended in one call, over as many tokens as the longest of them has."""

    rows: slice  # of the memory
    members: slice  # of those rows that bring a token
    tokens: int
    places: Tensor | None  # of the members in the stretch, if it has other rows, too
    hidden: Tensor | None  # -inf where a token is not seen; None: all of them are


@dataclass(frozen=True)
class _OneEach:
    """Where one new token of each row goes and which rows are attended together, the same for all layers."""

    rows: Tensor
    last: Tensor
    stretches: list[_Stretch]
    rounded: bool  # to bfloat16, on a CPU

    @classmethod
    def of(cls, batch: KeyValues, key: Tensor, window: int | None) -> "_OneEach":
        """`key`: the keys that are about to come, for their kind and size."""
        rows = batch.rows[: batch.together]
        ends = [batch.lengths[row] + 1 for row in rows]
        on_cpu = key.device.type == "cpu"
        a_token = 2 * key.shape[0] * key.shape[2] * key.element_size()
        cuts = _cut(rows, ends, call=(CALL if on_cpu else CALL_ON_A_GPU) // a_token)
        rounded = on_cpu and key.dtype is torch.bfloat16
        hidden = torch.float32 if rounded else key.dtype
        stretches = [
            _stretch(rows, ends, slice(a, b), key.new_empty(0, dtype=hidden), window) for a, b in pairwise(cuts)
        ]
        last = torch.tensor(ends, device=key.device) - 1
        return cls(torch.tensor(rows, device=key.device), last, stretches, rounded)


def _cut(rows: Sequence[int], ends: Sequence[int], *, call: int) -> list[int]:
    """Where to cut rows, which are in order, into stretches so that the least is read.

    A stretch reads all rows of the memory between its first and its last, each as far as the longest goes, and costs
    `call` tokens more.
    """
    costs, begins = [0], [0]
    for last, row in enumerate(rows):
        best, begin, longest = inf, last, 0
        for first in range(last, -1, -1):
            longest = max(longest, ends[first])
            cost = (row - rows[first] + 1) * longest + call
            if cost > best:  # longer stretches cost more
                break
            if costs[first] + cost < best:
                best, begin = costs[first] + cost, first
        costs.append(int(best))
        begins.append(begin)
    cuts = [len(rows)]
    while cuts[-1]:
        cuts.append(begins[cuts[-1]])
    return cuts[::-1]


def _stretch(rows: Sequence[int], ends: Sequence[int], members: slice, like: Tensor, window: int | None) -> _Stretch:
    """`like`: a tensor of the kind that `hidden` is to be."""
    here, reach = rows[members], ends[members]
    span, tokens = slice(here[0], here[-1] + 1), max(reach)
    whole = len(here) == here[-1] - here[0] + 1
    places = None if whole else torch.tensor([row - here[0] for row in here], device=like.device)
    if min(reach) == tokens and whole and (window is None or tokens <= window):
        return _Stretch(span, members, tokens, places, None)
    known = [0] * (here[-1] - here[0] + 1)
    for row, end in zip(here, reach, strict=True):
        known[row - here[0]] = end
    ends_there = torch.tensor(known, device=like.device)[:, None, None, None]
    positions = torch.arange(tokens, device=like.device)
    hidden = positions >= ends_there
    if window is not None:
        hidden |= positions < ends_there - window
    return _Stretch(span, members, tokens, places, like.new_zeros(hidden.shape).masked_fill_(hidden, -torch.inf))
