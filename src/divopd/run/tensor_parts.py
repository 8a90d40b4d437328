"""The tensors of a checkpoint in as many files as ranks share the weights: each rank writes and reads its own part.

    weights.safetensors                                       of one rank
    weights-1-of-2.safetensors  weights-2-of-2.safetensors    of two: the rows of each tensor, one part after the other

A tensor that is not shared out is in the first part. Ranks of other machines than the first hold copies (HSDP): they
write nothing and need not see the disk; what they load comes from the rank of the first machine that has the same part.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from divopd.models.weights import named_tensors
from divopd.run.tensor_file import KINDS

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.distributed.device_mesh import DeviceMesh

TYPES = {kind: dtype for dtype, kind in KINDS.items()}


def part_files(kind: str, parts: int) -> list[str]:
    """The names of the files of one kind of tensors."""
    if parts == 1:
        return [f"{kind}.safetensors"]
    return [f"{kind}-{number}-of-{parts}.safetensors" for number in range(1, parts + 1)]


def count_parts(names: Collection[str], kind: str) -> int:
    """How many ranks wrote a folder with files of these names."""
    found = (re.fullmatch(kind + r"-1-of-(\d+)\.safetensors", name) for name in names)
    return next((int(match[1]) for match in found if match), 1)


@dataclass(frozen=True)
class Part:
    """What a rank has of each tensor that is shared out."""

    number: int  # from 0
    of: int
    machine: int = 0
    mesh: "DeviceMesh | None" = None

    @property
    def is_written(self) -> bool:
        """Whether it is this rank that writes it."""
        return self.machine == 0

    @property
    def is_read(self) -> bool:
        """Whether this rank reads it from the disk; others get it from one that does."""
        return self.machine == 0 or self.mesh is None

    def file(self, kind: str) -> str:
        return part_files(kind, self.of)[self.number]

    def rows(self, whole: int) -> range:
        """Of a tensor with so many: FSDP2 cuts as torch.chunk does, and the last parts may have fewer, or none."""
        each = -(-whole // self.of)
        return range(min(self.number * each, whole), min((self.number + 1) * each, whole))


def part_of(model: "nn.Module") -> Part:
    """The part of this rank. Ranks that share nothing hold the same, and the first of them writes it."""
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor

    mesh = next((p.device_mesh for p in model.parameters() if isinstance(p, DTensor)), None)
    if mesh is None:
        return Part(0, 1, machine=dist.get_rank() if dist.is_initialized() else 0)
    place = mesh.get_coordinate()
    assert place is not None, "every rank is in the mesh"
    return Part(place[-1], mesh.size(mesh.ndim - 1), machine=place[0] if mesh.ndim > 1 else 0, mesh=mesh)


def copied_part(tensors: Mapping[str, "Tensor"], part: Part) -> dict[str, "Tensor"]:
    """This rank's part of them, copied to the CPU: training may go on."""
    from torch.distributed.tensor import DTensor

    copies = {}
    for name, tensor in tensors.items():
        if isinstance(tensor, DTensor):
            copies[name] = tensor.to_local().detach().to("cpu", copy=True).contiguous()
        elif part.number == 0:
            copies[name] = tensor.detach().to("cpu", copy=True).contiguous()
    return copies


class PartFiles:
    """The open files of one kind; nothing is read before it is asked for."""

    def __init__(self, files: list[Any]) -> None:
        self._files = files

    def kinds(self) -> dict[str, str]:
        """What each tensor is like as a whole, by name: torch.float32 [11, 8]."""
        found: dict[str, tuple[str, list[int]]] = {}
        for file in self._files:
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                shape = list(file.get_slice(name).get_shape())
                if name in found:
                    found[name][1][0] += shape[0]
                else:
                    found[name] = TYPES[file.get_slice(name).get_dtype()], shape
        return {name: f"{dtype} {shape}" for name, (dtype, shape) in found.items()}

    def whole(self, name: str) -> "Tensor":
        import torch

        pieces = [file.get_tensor(name) for file in self._files if name in file.keys()]  # noqa: SIM118
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def rows(self, name: str, wanted: range) -> "Tensor":
        """Some rows of a tensor, from whichever files have them."""
        import torch

        pieces, first = [], 0
        files = [file for file in self._files if name in file.keys()]  # noqa: SIM118
        for file in files:
            piece = file.get_slice(name)
            count = piece.get_shape()[0]
            start, stop = max(wanted.start - first, 0), min(wanted.stop - first, count)
            if start < stop:
                pieces.append(piece[start:stop])
            first += count
        return torch.cat(pieces) if pieces else files[0].get_tensor(name)[:0]


@contextmanager
def opened(folder: Path, kind: str, parts: int) -> Iterator[PartFiles]:
    """The files of one kind of tensors of a folder that was verified."""
    from safetensors import safe_open

    with ExitStack() as stack:
        files = (safe_open(folder / name, framework="pt") for name in part_files(kind, parts))
        yield PartFiles([stack.enter_context(file) for file in files])


def loaded_part(
    files: PartFiles | None, name: str, part: Part, *, like: "Tensor | None", kind: str, device: "torch.device"
) -> "Tensor":
    """A tensor as this rank holds it: shared out as `like` is, or whole. Without files it comes from another rank."""
    import torch
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor

    dtype, _, shape = kind.partition(" ")
    sizes = [int(size) for size in shape.strip("[]").split(",") if size.strip()]
    shared = isinstance(like, DTensor)
    rows = part.rows(sizes[0]) if shared else None
    if files is not None:
        values = (files.whole(name) if rows is None else files.rows(name, rows)).to(device)
    else:
        local = sizes if rows is None else [len(rows), *sizes[1:]]
        values = torch.empty(local, dtype=getattr(torch, dtype.removeprefix("torch.")), device=device)
    if part.mesh is not None and part.mesh.ndim > 1:
        machines = part.mesh.get_group(0)
        dist.broadcast(values, src=dist.get_process_group_ranks(machines)[0], group=machines)
    if not shared:
        return values
    assert isinstance(like, DTensor)
    placed = {"shape": like.shape, "stride": like.stride(), "run_check": False}
    return DTensor.from_local(values, like.device_mesh, like.placements, **placed)


def fill_part(files: PartFiles | None, model: "nn.Module", part: Part) -> None:
    """Fill a model, of which this rank holds its part; names and shapes have been compared."""
    import torch

    with torch.no_grad():
        for name, tensor in named_tensors(model).items():
            kind = f"{tensor.dtype} {list(tensor.shape)}"
            tensor.copy_(loaded_part(files, name, part, like=tensor, kind=kind, device=tensor.device))
