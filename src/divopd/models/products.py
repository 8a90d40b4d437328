"""Products of linear layers by oneDNN, on a CPU.

Torch multiplies float32 matrices by MKL there, which leaves half of an AMD processor unused, and on any processor is
slow where a few rows meet a large matrix, as in every step of generation. The results are the same to rounding. In
bfloat16 torch uses oneDNN itself, but puts the weights in order anew at every call.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

SMALL_PRODUCT = 2**22  # multiplications below which a call of oneDNN costs more than it saves
FEW_ROWS = 64  # up to so many, reading the weights is what costs: then they are kept in oneDNN's own order


def speed_up(model: nn.Module) -> None:
    """Let the linear layers of a model multiply by oneDNN wherever that is faster; elsewhere nothing changes."""
    if not product_is_there():
        return
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = Linear


@cache
def product_is_there() -> bool:
    """Whether this build of torch has oneDNN's product of dense tensors."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


class Linear(nn.Linear):
    """torch's linear layer. What generation keeps of the weights is made again when they change."""

    _packed: Tensor | None = None
    _packed_from: tuple[int, int] | None = None

    def forward(self, input: Tensor) -> Tensor:
        outputs, inputs, learns = self.out_features, self.in_features, torch.is_grad_enabled()
        large = input.numel() * outputs >= SMALL_PRODUCT
        few = not learns and outputs * inputs >= SMALL_PRODUCT // FEW_ROWS and input.numel() <= FEW_ROWS * inputs
        if not (large or few) or not _fits(input, self.weight):  # sizes first: small models are in a hurry
            return linear(input, self.weight, self.bias)
        if learns:
            return _Product.apply(input, self.weight, self.bias)  # pyright: ignore[reportReturnType]
        return product(input, self._pack() if few else self.weight, self.bias)

    def _pack(self) -> Tensor:
        """The weights in oneDNN's order; torch counts their changes in place."""
        now = (id(self.weight), self.weight._version)
        if self._packed is not None and self._packed_from == now:
            return self._packed
        self._packed, self._packed_from = in_onednn_order(self.weight.detach()), now
        return self._packed

    def __getstate__(self) -> dict[str, Any]:
        """For a copy, which packs its own: oneDNN's tensors cannot be copied."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_packed")}


def _fits(tensor: Tensor, weight: Tensor) -> bool:
    """Whether both are tensors that oneDNN multiplies: autocast, shards and compilers have ways of their own."""
    return (
        has_product(tensor)
        and has_product(weight)
        and tensor.dtype is weight.dtype
        and type(weight) in (Tensor, nn.Parameter)
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


def has_product(tensor: Tensor) -> bool:
    """Whether oneDNN multiplies tensors of this kind here: float32 and, without gradients, bfloat16 on a CPU."""
    return (
        tensor.device.type == "cpu"
        and product_is_there()
        and (
            tensor.dtype is torch.float32
            or (tensor.dtype is torch.bfloat16 and not torch.is_grad_enabled() and _rounds())
        )
    )


@cache
def _rounds() -> bool:
    return torch.ops.mkldnn._is_mkldnn_bf16_supported()


def in_onednn_order(weight: Tensor) -> Tensor:
    """A copy of a matrix of weights as oneDNN likes to read it, for a few rows above all."""
    return torch.ops.mkldnn._reorder_linear_weight(weight, FEW_ROWS)


def product(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`rows` times the transposed weight, as torch.nn.functional.linear."""
    return torch.ops.mkldnn._linear_pointwise(_dense(rows), _dense(weight), bias, "none", [], "")


def _dense(tensor: Tensor) -> Tensor:
    """Without gaps between rows or columns, in a copy if need be: with gaps oneDNN is 100 times slower."""
    packed = tensor.layout is not torch.strided  # in oneDNN's own order
    columns = not packed and tensor.dim() == 2 and tensor.t().is_contiguous()
    return tensor if packed or columns else tensor.contiguous()


class _Product(torch.autograd.Function):
    """The product and its two gradients, which are products, too."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return product(rows, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        rows, weight = ctx.saved_tensors
        gradient, rows = gradients[0].flatten(0, -2), rows.flatten(0, -2)
        of_rows, of_weight, of_bias = ctx.needs_input_grad
        return (
            product(gradient, weight.t()).view(*gradients[0].shape[:-1], -1) if of_rows else None,
            product(gradient.t(), rows.t()) if of_weight else None,
            gradient.sum(0) if of_bias else None,
        )
