"""A decoder's forward pass on a CPU in fewer calls than the model library's.

Norms and rotary positions are a call or two each, and of the last layer only what is asked for is computed. For
generation, which reads a few tokens at a time and so costs what its calls cost, projections that read the same rows are
one product, too. Only decoders of the Llama family are known; what this pass says of a few tokens is compared with the
model's own before it is used.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm, silu

from divopd.models.attention import Branches, Layout, Packed
from divopd.models.products import FEW_ROWS, has_product, in_onednn_order, product

FAMILY = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
LARGE = 2**16  # weights of a product from which on reading them costs more than calling it

Angles = tuple[Tensor, Tensor]  # of rotary positions: cosines, and sines with the sign of the half that they turn


class FusedDecoder:
    """The decoder of a model, read in few calls while `fits` says so. Weights may change in place between passes."""

    def __init__(self, model: Any, projections: "type[Separate] | type[Joined]") -> None:
        """`Separate` projections have gradients; `Joined` ones are for generation."""
        decoder = model.get_decoder()
        self._embedding, self._rotary, self._norm = decoder.embed_tokens, decoder.rotary_emb, decoder.norm
        self._layers = [_Layer(layer, projections) for layer in decoder.layers]

    @classmethod
    def of(cls, model: Any) -> "FusedDecoder | None":
        """The short way for this model; None if there is none."""
        if type(model).__name__ not in FAMILY or not all(map(_is_plain, model.get_decoder().layers)):
            return None
        fused = cls(model, Separate)
        return fused if fused.fits() and _agree(model, fused) else None

    def fits(self) -> bool:
        """Whether the weights are ordinary tensors on a CPU now: autocast and shards have ways of their own."""
        weight = self._embedding.weight
        return (
            type(weight) is nn.Parameter
            and weight.device.type == "cpu"
            and not torch.is_autocast_enabled("cpu")
            and not torch.compiler.is_compiling()
        )

    def __call__(self, ids: Tensor, positions: Tensor, layout: Layout) -> Tensor:
        """What the decoder says at every token of one packed input, before the vocabulary projection."""
        rows, angles = self._begin(ids, positions)
        for layer in self._layers:
            rows = layer(rows, angles, layout)
        return _normed(rows, self._norm)

    def at(self, index: Tensor, ids: Tensor, positions: Tensor, layout: "Packed | Branches") -> Tensor:
        """The same at some tokens only, in any order: the last layer is computed for no others."""
        asked, order = index.unique(return_inverse=True)
        if 2 * len(asked) > len(ids):  # a mask for each would cost more than it saves
            return self(ids, positions, layout)[index]
        rows, angles = self._begin(ids, positions)
        for layer in self._layers[:-1]:
            rows = layer(rows, angles, layout)
        return _normed(self._layers[-1].at(asked, rows, angles, layout), self._norm)[order]

    def _begin(self, ids: Tensor, positions: Tensor) -> "tuple[Tensor, Angles]":
        rows = self._embedding(ids)
        cos, sin = (turned[0, :, None] for turned in self._rotary(rows, positions[None]))
        half = sin.shape[-1] // 2
        return rows, (cos, torch.cat([-sin[..., :half], sin[..., half:]], -1))


class _Layer:
    def __init__(self, layer: Any, projections: "type[Separate] | type[Joined]") -> None:
        attention = layer.self_attn
        self._index, self._scale, self._width = attention.layer_idx, attention.scaling, attention.head_dim
        self._window = getattr(attention, "sliding_window", None)
        self._before, self._between = layer.input_layernorm, layer.post_attention_layernorm
        self._query_norm, self._key_norm = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
        self._qkv, *_ = parts = _projections(layer)
        self._read, self._out, self._gate_up, self._down = map(projections, parts)

    def __call__(self, rows: Tensor, angles: Angles, layout: Layout) -> Tensor:
        query, key, value = map(self._heads, self._read(_normed(rows, self._before)))
        qkv = (self._turned(query, self._query_norm, angles), self._turned(key, self._key_norm, angles), value)
        return self._onward(rows, layout.attend(self._index, qkv, scale=self._scale, window=self._window))

    def at(self, asked: Tensor, rows: Tensor, angles: Angles, layout: "Packed | Branches") -> Tensor:
        """Of some tokens only; keys and values are those of all."""
        normed, here = _normed(rows, self._before), (angles[0][asked], angles[1][asked])
        query, key, value = (
            self._heads(part(of)) for part, of in zip(self._qkv, (normed[asked], normed, normed), strict=True)
        )
        qkv = (self._turned(query, self._query_norm, here), self._turned(key, self._key_norm, angles), value)
        places = asked.cpu().numpy()
        seen = layout.attend_at(self._index, qkv, places, scale=self._scale, window=self._window)
        return self._onward(rows[asked], seen)

    def _heads(self, read: Tensor) -> Tensor:
        return read.view(len(read), read.shape[1] // self._width, self._width).transpose(0, 1)

    def _turned(self, heads: Tensor, norm: Any, angles: Angles) -> Tensor:
        """Rotary positions: the halves of a head are the two coordinates that are turned."""
        heads = _normed(heads.transpose(0, 1), norm)
        return torch.addcmul(heads * angles[0], heads.roll(heads.shape[-1] // 2, -1), angles[1]).transpose(0, 1)

    def _onward(self, rows: Tensor, seen: Tensor) -> Tensor:
        """What follows attention."""
        (out,) = self._out(seen.transpose(0, 1).flatten(1))
        rows = rows + out
        gate, up = self._gate_up(_normed(rows, self._between))
        (down,) = self._down(silu(gate) * up)
        return rows + down


def _projections(layer: Any) -> list[list[nn.Linear]]:
    """The linear layers of a layer; those that read the same rows together."""
    attention, feed_forward = layer.self_attn, layer.mlp
    return [
        [attention.q_proj, attention.k_proj, attention.v_proj],
        [attention.o_proj],
        [feed_forward.gate_proj, feed_forward.up_proj],
        [feed_forward.down_proj],
    ]


class Separate:
    """Linear layers that read the same rows, each by itself."""

    def __init__(self, parts: Sequence[nn.Linear]) -> None:
        self._parts = parts

    def __call__(self, rows: Tensor) -> Sequence[Tensor]:
        return [part(rows) for part in self._parts]


class Joined:
    """Linear layers that read the same rows, as one product of a copy in which their weights lie side by side.

    Many rows of a large model go through the layers themselves, where calls cost nothing; and all rows do where oneDNN
    has no order of its own for large weights.
    """

    def __init__(self, parts: Sequence[nn.Linear]) -> None:
        self._parts = parts
        self._sizes = [part.out_features for part in parts]
        self._large = sum(self._sizes) * parts[0].in_features >= LARGE
        self._biased = parts[0].bias is not None
        self._copied_from: tuple[bool, list[tuple[int, int]]] | None = None

    def __call__(self, rows: Tensor) -> Sequence[Tensor]:
        ordered = has_product(rows)
        if self._large and (len(rows) > FEW_ROWS or not ordered):
            return [part(rows) for part in self._parts]
        weights = [part.weight for part in self._parts] + ([part.bias for part in self._parts] if self._biased else [])
        now = ordered, [(id(weight), weight._version) for weight in weights]
        if now != self._copied_from:
            self._copy(ordered=ordered)
            self._copied_from = now
        return (product if ordered else linear)(rows, self._weight, self._bias).split(self._sizes, -1)

    def _copy(self, *, ordered: bool) -> None:
        weight = torch.cat([part.weight.detach() for part in self._parts])
        self._weight = in_onednn_order(weight) if ordered else weight
        self._bias = torch.cat([part.bias.detach() for part in self._parts]) if self._biased else None


def _normed(rows: Tensor, norm: Any) -> Tensor:
    """Root-mean-square norm, if there is one; transformers' own does the same in twice as many calls."""
    if norm is None:
        return rows
    if rows.dtype is torch.float64:
        return norm(rows)
    eps = norm.eps if isinstance(norm, nn.RMSNorm) else norm.variance_epsilon
    return rms_norm(rows, rows.shape[-1:], norm.weight, eps)


def _is_plain(layer: Any) -> bool:
    """Whether its projections are linear layers, not ones with adapters, and those of a group have biases or none."""
    return all(
        isinstance(part, nn.Linear) and (part.bias is None) == (group[0].bias is None)
        for group in _projections(layer)
        for part in group
    )


@torch.no_grad()
def _agree(model: Any, fused: FusedDecoder) -> bool:
    """Whether both ways say the same of two short rows."""
    lengths = [7, 5]
    ids = torch.cat([torch.arange(length) % model.config.vocab_size for length in lengths])
    positions = torch.cat([torch.arange(length) for length in lengths])
    layout = Packed(lengths)
    own = model.get_decoder()(input_ids=ids[None], position_ids=positions[None], use_cache=False, layout=layout)
    own = own.last_hidden_state[0]
    tolerance = max(1e-5, torch.finfo(own.dtype).eps ** 0.5)
    return torch.allclose(fused(ids, positions, layout), own, rtol=tolerance, atol=tolerance)
