"""Linear layers and attention by oneDNN give what the plain ones give in float64, values and gradients, to rounding."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from divopd.models.causal import attend_in_blocks, in_blocks
from divopd.models.generation import Generator
from divopd.models.products import FEW_ROWS, SMALL_PRODUCT, Linear, product_is_there, speed_up
from divopd.models.transformers_policy import TransformersPolicy
from token_rollouts import tiny_model

pytestmark = pytest.mark.skipif(not product_is_there(), reason="this build of torch has no oneDNN")

WIDE = SMALL_PRODUCT // (64 * FEW_ROWS)  # outputs for which a few rows of 64 numbers are a large product


def layer(*, bias: bool) -> tuple[nn.Linear, nn.Linear]:
    """A layer that multiplies by oneDNN, and the same in float64."""
    torch.manual_seed(0)
    plain = nn.Linear(64, WIDE, bias=bias)
    exact = copy.deepcopy(plain).double()
    speed_up(plain)
    assert type(plain) is Linear
    return plain, exact


def near(ours: Tensor | None, exact: Tensor | None) -> bool:
    assert ours is not None
    assert exact is not None
    return bool((ours.double() - exact).abs().max() < 1e-5 * exact.abs().max())


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(101,), (1, 300), (2, 3, 70), (3,), (0,)])
def test_a_layer_and_its_gradients_are_those_of_float64(shape: tuple[int, ...], bias: bool) -> None:
    """Large products by oneDNN, small ones by torch; rows may have any number of dimensions, or be none."""
    ours, exact = layer(bias=bias)
    rows = torch.randn(*shape, 64)
    outcomes = []
    for model, kind in ((ours, torch.float32), (exact, torch.float64)):
        read = rows.detach().to(kind).requires_grad_()
        output = model(read)
        (output * torch.linspace(-1, 1, WIDE, dtype=kind)).sum().backward()
        outcomes.append([output.detach(), read.grad, *(parameter.grad for parameter in model.parameters())])
    assert outcomes[0][0].shape == outcomes[1][0].shape
    if rows.numel():
        assert all(near(*pair) for pair in zip(*outcomes, strict=True))


def test_what_is_kept_of_the_weights_follows_them() -> None:
    """Weights that are filled in place are the ones that the next few rows meet, and a copy of a model has its own."""
    ours, exact = layer(bias=True)
    rows = torch.randn(FEW_ROWS, 64)
    with torch.inference_mode():
        assert near(ours(rows), exact(rows.double()))
    other = copy.deepcopy(ours)
    for model in (ours, exact):
        with torch.no_grad():
            model.weight.copy_(torch.linspace(-1, 1, 64 * WIDE).view(WIDE, 64))
    with torch.inference_mode():
        assert near(ours(rows), exact(rows.double()))
        assert not near(other(rows), exact(rows.double()))


def test_frozen_weights_get_no_gradient() -> None:
    """As those below adapters."""
    ours, _ = layer(bias=True)
    ours.requires_grad_(False)
    rows = torch.randn(200, 64, requires_grad=True)
    ours(rows).sum().backward()
    assert rows.grad is not None
    assert ours.weight.grad is None


def test_other_types_of_numbers_go_torchs_own_way() -> None:
    """float64, bfloat16 and autocast are not what oneDNN's product was made for."""
    ours, exact = layer(bias=False)
    rows = torch.randn(200, 64)
    assert near(ours.double()(rows.double()), exact(rows.double()))
    with torch.autocast("cpu", torch.bfloat16):
        assert ours.float()(rows).dtype is torch.bfloat16


def attended(attend: Callable[..., Tensor], kind: torch.dtype, qkv: list[Tensor]) -> list[Tensor]:
    """The output and the gradients of queries, keys and values."""
    read = [tensor.detach().to(kind).requires_grad_() for tensor in qkv]
    output = attend(*read)
    (output * torch.linspace(-1, 1, output.shape[-1], dtype=kind)).sum().backward()
    assert all(tensor.grad is not None for tensor in read)
    return [output.detach(), *(tensor.grad for tensor in read if tensor.grad is not None)]


def plainly(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    new, end = query.shape[1], key.shape[1]
    seen = torch.ones(new, end, dtype=torch.bool).tril(end - new)
    return scaled_dot_product_attention(query, key, value, attn_mask=seen, scale=0.2, enable_gqa=True)


@pytest.mark.parametrize(("queries", "keys"), [(128, 128), (300, 300), (2, 131), (200, 390), (129, 256), (1, 128)])
def test_attention_in_blocks_is_that_of_float64(queries: int, keys: int) -> None:
    """Also of rows that go on behind what was read, and of tensors whose tokens come first in memory."""
    torch.manual_seed(0)
    sizes = ((6, queries), (2, keys), (2, keys))  # three heads share one of the keys
    qkv = [torch.randn(tokens, heads, 64).transpose(0, 1) for heads, tokens in sizes]
    ours = attended(lambda *tensors: attend_in_blocks(*tensors, scale=0.2), torch.float32, qkv)
    assert all(near(*pair) for pair in zip(ours, attended(plainly, torch.float64, qkv), strict=True))
    with torch.inference_mode():
        assert torch.equal(attend_in_blocks(*qkv, scale=0.2), ours[0])


def test_short_rows_and_narrow_heads_are_attended_by_torch() -> None:
    """Blocks gain nothing there."""
    assert in_blocks(torch.empty(2, 128, 64), 128)
    assert not in_blocks(torch.empty(2, 128, 32), 128)
    assert not in_blocks(torch.empty(2, 20, 64), 20)
    assert not in_blocks(torch.empty(2, 128, 64, dtype=torch.float64), 128)


def test_a_policy_multiplies_by_onednn() -> None:
    """The wire: all linear layers of a model that a policy takes, its vocabulary's too."""
    policy = TransformersPolicy(tiny_model())
    assert isinstance(policy._generator, Generator)
    kinds = {type(module) for module in policy.model.modules() if isinstance(module, nn.Linear)}
    assert kinds == {Linear}
