"""A safetensors file that is hashed while it is written, tensor by tensor: nothing of it is read back or held twice.

The same bytes as the library writes (tests compare them), which keeps a whole copy of the file in memory.
"""

import hashlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

KINDS = {  # of tensors, as safetensors calls them, the widest first: in this order they are in the file
    "torch.int64": "I64",
    "torch.float64": "F64",
    "torch.float32": "F32",
    "torch.int32": "I32",
    "torch.bfloat16": "BF16",
    "torch.float16": "F16",
    "torch.uint8": "U8",
    "torch.bool": "BOOL",
}
AT_ONCE = 1 << 24  # bytes that are hashed and written in one piece


class Sink(Protocol):
    """What bytes are written to."""

    def write(self, data: Any, /) -> int: ...


def write_tensors(file: Path, tensors: Mapping[str, "Tensor"]) -> dict[str, Any]:
    """Write tensors of the CPU; returns the file's size and sha256."""
    order = sorted(tensors, key=lambda name: (list(KINDS).index(str(tensors[name].dtype)), name))
    digest = hashlib.sha256()
    size = 0
    with file.open("wb", buffering=0) as out:
        for block in (_header(tensors, order), *(_bytes(tensors[name]) for name in order)):
            for start in range(0, len(block), AT_ONCE):
                piece = block[start : start + AT_ONCE]
                digest.update(piece)
                _write_all(out, piece)
            size += len(block)
    return {"bytes": size, "sha256": digest.hexdigest()}


def _write_all(out: Sink, piece: memoryview) -> None:
    """An unbuffered file may take less than it is given, as when a disk is almost full."""
    while piece:
        piece = piece[out.write(piece) :]


def _header(tensors: Mapping[str, "Tensor"], order: list[str]) -> memoryview:
    place = 0
    described: dict[str, Any] = {}
    for name in order:
        tensor = tensors[name]
        end = place + tensor.numel() * tensor.element_size()
        kind = KINDS[str(tensor.dtype)]
        described[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [place, end]}
        place = end
    text = json.dumps(described, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # what follows is aligned
    return memoryview(struct.pack("<Q", len(text)) + text)


def _bytes(tensor: "Tensor") -> memoryview:
    import torch

    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")
