"""What the first rank says, heard by all ranks: the same text, or the same refusal. One process alone hears itself."""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from divopd.errors import CheckpointError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def from_first_rank(make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `make` gives there (JSON types), on every rank; its CheckpointError is raised on every rank."""
    import torch.distributed as dist

    if not dist.is_initialized():
        return make()
    said: dict[str, Any] = {}
    if dist.get_rank() == 0:
        try:
            said = {"made": make()}
        except CheckpointError as error:
            said = {"refused": str(error)}
    heard = json.loads(broadcast(json.dumps(said).encode()))
    if "refused" in heard:
        raise CheckpointError(heard["refused"])
    return heard["made"]


def broadcast(text: bytes, *, group: "ProcessGroup | None" = None) -> bytes:
    """The first rank's text, on every rank of a group, or on all."""
    import torch
    import torch.distributed as dist

    device = "cpu" if "gloo" in str(dist.get_backend(group)) else "cuda"
    size = torch.tensor(len(text), device=device)
    dist.broadcast(size, src=0, group=group)
    content = torch.empty(int(size), dtype=torch.uint8, device=device)
    if dist.get_rank() == 0:
        content.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    dist.broadcast(content, src=0, group=group)
    return content.cpu().numpy().tobytes()
