"""Causal attention on a CPU, in float32, block by block, with the products of oneDNN and without what nobody sees.

Torch's own attention multiplies small tiles by MKL, and is slower still in bfloat16. Here a block of queries meets all
keys that it sees in one product; the shares are computed again in the backward pass, so that memory grows with the
tokens, not with their square.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from divopd.models.products import product, product_is_there

BLOCK = 128  # queries: their shares stay in the cache of a core
NARROW = 64  # heads of fewer numbers gain nothing over torch's own attention


def in_blocks(query: Tensor, keys: int) -> bool:
    """Whether this is the fastest way to attend such queries over so many keys."""
    return (
        query.device.type == "cpu"
        and query.dtype in (torch.float32, torch.bfloat16)
        and query.shape[-1] >= NARROW
        and query.shape[1] > 1
        and keys >= BLOCK
        and product_is_there()
    )


def attend_in_blocks(query: Tensor, key: Tensor, value: Tensor, *, scale: float) -> Tensor:
    """The last tokens of a row, the queries, over the whole row; tensors are (heads, tokens, width)."""
    if query.dtype is not torch.float32:
        return attend_in_blocks(query.float(), key.float(), value.float(), scale=scale).to(query.dtype)
    key, value = key.contiguous(), value.contiguous()  # a head's own are then without gaps
    if torch.is_grad_enabled():
        return _Attention.apply(query, key, value, scale)  # pyright: ignore[reportReturnType]
    return _attend(_grouped(query, key, scale), key, value).view_as(query)


def _grouped(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """Scaled, and by the head of keys that they share."""
    return (query * scale).contiguous().view(key.shape[0], -1, *query.shape[1:])


def _blocks(query: Tensor, key: Tensor) -> Iterator[tuple[int, slice, int]]:
    """A head of keys, some of its queries, and how many keys the last of them sees: a multiple of BLOCK but at the end.

    Shapes that come again are products that oneDNN has prepared.
    """
    end = key.shape[1]
    before = end - query.shape[2]
    edges = [before, *range(BLOCK * (before // BLOCK + 1), end, BLOCK), end]
    for head in range(key.shape[0]):
        for first, last in pairwise(edges):
            yield head, slice(first - before, last - before), last


def _shares(rows: Tensor, keys: Tensor, queries: int) -> Tensor:
    """How the queries of a block, for several heads one after the other, share their attention among the keys."""
    scores = product(rows, keys).view(-1, queries, len(keys))
    hidden = torch.ones(queries, queries, dtype=torch.bool).triu(1)
    scores[:, :, -queries:].masked_fill_(hidden, -torch.inf)
    return torch.softmax(scores, -1).view(-1, len(keys))


def _attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    output = torch.empty_like(query)
    for head, block, seen in _blocks(query, key):
        rows = query[head, :, block]
        shares = _shares(rows.flatten(0, 1), key[head, :seen], rows.shape[1])
        output[head, :, block] = product(shares, value[head, :seen].t()).view_as(rows)
    return output


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        grouped = _grouped(query, key, scale)
        ctx.save_for_backward(grouped, key, value)
        ctx.scale = scale
        return _attend(grouped, key, value).view_as(query)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        query, key, value = ctx.saved_tensors
        outputs = gradients[0].reshape(query.shape)
        of_query, of_key, of_value = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
        for head, block, seen in _blocks(query, key):
            rows, output = (tensor[head, :, block].flatten(0, 1) for tensor in (query, outputs))
            shares = _shares(rows, key[head, :seen], block.stop - block.start)
            of_value[head, :seen] += product(shares.t(), output.t())
            of_shares = product(output, value[head, :seen])
            of_scores = torch.ops.aten._softmax_backward_data(of_shares, shares, -1, torch.float32)
            of_query[head, :, block] = product(of_scores, key[head, :seen].t()).view_as(of_query[head, :, block])
            of_key[head, :seen] += product(of_scores.t(), rows.t())
        return of_query.mul_(ctx.scale).view_as(gradients[0]), of_key, of_value, None
