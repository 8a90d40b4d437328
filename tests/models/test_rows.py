"""Rows for the pool from tensors: `measure` takes them without importing torch."""

import torch

from divopd.pool import Measured, measure


def test_tensors_measure_alike_in_any_precision() -> None:
    """Also bfloat16, which numpy cannot take, and tensors that carry a gradient."""
    student, teacher, mask = [-0.5, -1.25, -2.0], [-0.75, -0.25, -4.0], [True, True, False]
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        lists = (torch.tensor(student, dtype=dtype, requires_grad=True), torch.tensor(teacher, dtype=dtype))
        assert measure(*lists, torch.tensor(mask), prompt_tokens=7) == Measured(None, -0.75, 10, 2)
