"""What a GPU does in one go: attention of all rows in one call, and stages that are timed without waiting."""

import inspect
from typing import Any

import pytest

pytest.importorskip("torch", reason="for want of the extra train")
import torch
from torch.nn.functional import scaled_dot_product_attention

from divopd.learner.timing import Clock
from divopd.models.attention import Packed, flash_attention

LENGTHS = (5, 1, 9, 3)
CPU = torch.device("cpu")


def plain(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cu_seq_q: torch.Tensor, cu_seq_k: torch.Tensor,
    max_q: int, max_k: int, *, scale: float, window_size: tuple[int, int], enable_gqa: bool,
) -> torch.Tensor:  # fmt: skip
    """As torch's varlen_attn, one row after the other, by a mask."""
    assert torch.equal(cu_seq_q, cu_seq_k)
    assert cu_seq_q.dtype == torch.int32
    assert (max_q, max_k, window_size[1], enable_gqa) == (max(LENGTHS), max(LENGTHS), 0, True)
    outputs = []
    for start, end in zip(cu_seq_q.tolist(), cu_seq_q.tolist()[1:], strict=False):
        rows = [tensor[start:end].transpose(0, 1)[None] for tensor in (query, key, value)]
        place = torch.arange(end - start)
        seen = place[None] <= place[:, None]
        if window_size[0] >= 0:
            seen &= place[None] >= place[:, None] - window_size[0]
        outputs.append(scaled_dot_product_attention(*rows, attn_mask=seen, scale=scale, enable_gqa=True)[0])
    return torch.cat(outputs, dim=1).transpose(0, 1)


@pytest.mark.parametrize("window", [None, 4])
def test_one_call_for_all_rows_is_a_call_for_each(window: int | None) -> None:
    """Outputs and gradients of queries, keys and values; query heads share key heads."""
    torch.manual_seed(0)
    tokens = sum(LENGTHS)
    shapes = ((4, tokens, 8), (2, tokens, 8), (2, tokens, 8))
    qkv = tuple(torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
    wanted = torch.randn(4, tokens, 8, dtype=torch.float64)
    found: list[tuple[torch.Tensor, ...]] = []
    for packed in (Packed(LENGTHS), Packed(LENGTHS, at_once=plain)):
        output = packed.attend(0, qkv, scale=0.3, window=window)  # pyright: ignore[reportArgumentType]
        found.append((output, *torch.autograd.grad((output * wanted).sum(), qkv)))
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, atol=1e-12)


def test_torch_is_called_as_it_wants_to_be() -> None:
    """Its function has all that ours is given; without a GPU, or in float32, rows are attended one by one."""
    varlen = pytest.importorskip("torch.nn.attention.varlen", reason="for want of torch 2.10")
    assert set(inspect.signature(plain).parameters) <= set(inspect.signature(varlen.varlen_attn).parameters)
    assert flash_attention(torch.zeros(1, 1, 1, dtype=torch.bfloat16)) is None


class Device:
    """A device that takes a second for everything, and notes what it was asked."""

    def __init__(self) -> None:
        self.now, self.asked = 0, list[str]()

    def mark(self) -> Any:
        self.now += 1
        return Moment(self, self.now)


class Moment:
    def __init__(self, device: Device, at: int) -> None:
        self.device, self.at = device, at

    def elapsed_time(self, end_event: "Moment") -> float:
        self.device.asked.append("elapsed")
        return 1e3 * (end_event.at - self.at)

    def synchronize(self) -> None:
        self.device.asked.append("wait")


def test_a_device_is_waited_for_once() -> None:
    """When the seconds are asked for, not in every stage of every micro-batch."""
    device = Device()
    clock = Clock(CPU, mark=device.mark)
    for name in ("forward", "backward", "forward"):
        with clock.stage(name):
            pass
    assert device.asked == []
    assert clock.seconds == {"forward": 2.0, "backward": 1.0}
    assert device.asked == ["wait", "elapsed", "elapsed", "elapsed"]


def test_a_processor_is_timed_as_it_goes() -> None:
    """Every stage has its seconds, those of two turns together."""
    clock = Clock(CPU)
    with clock.stage("a"):
        pass
    first = clock.seconds["a"]
    with clock.stage("a"), clock.stage("b"):
        pass
    assert clock.seconds["a"] > first >= 0
    assert clock.seconds.keys() == {"a", "b"}
