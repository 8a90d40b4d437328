"""The ranks of one learner: processes of one machine that train as one (learner.py shards the weights over them).

The first alone talks to the store. Before every update it tells the others, as JSON, what to train on. A rank that dies
takes the others with it: whoever started them starts all of them again, and they go on from the last checkpoint.
"""

import json
import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist

from divopd.turns import Turn, turn_from_json, turn_to_json

Rows = tuple[list[Turn], list[float]]  # turns and their weights
Wish = Literal["stop", "checkpoint"]  # instead of rows
LONGEST_WAIT = timedelta(days=1)  # for a batch. A rank that died is not found out by waiting for it, see above


def join(rendezvous: Path, *, rank: int, ranks: int, device: str) -> None:
    """Become one of the ranks; waits for all of them. On CUDA each takes a device of its own."""
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # they are on one machine: nobody else need reach them
    backend = "gloo"
    if device.startswith("cuda"):
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(rank % torch.cuda.device_count())  # an actor of a cluster sees one, and it is its own
    address = f"file://{rendezvous.absolute()}"
    dist.init_process_group(backend, init_method=address, rank=rank, world_size=ranks, timeout=LONGEST_WAIT)


def leave() -> None:
    """Part after the last update."""
    if dist.is_initialized():
        dist.destroy_process_group()


def share_rows(rows: tuple[Sequence[Turn], Sequence[float]] | Wish) -> Rows | Wish:
    """What the first rank has to train on, or wants instead, on every rank; what the others give does not count."""
    if not dist.is_initialized():
        return rows if isinstance(rows, str) else (list(rows[0]), list(rows[1]))
    text = b""
    if dist.get_rank() == 0:
        said = rows
        if not isinstance(rows, str):
            said = {"turns": [turn_to_json(turn) for turn in rows[0]], "weights": list(rows[1])}
        text = json.dumps(said).encode()
    heard: Any = json.loads(_broadcast(text))
    return ([turn_from_json(one) for one in heard["turns"]], heard["weights"]) if isinstance(heard, dict) else heard


def _broadcast(text: bytes) -> bytes:
    size = torch.tensor(len(text))
    dist.broadcast(size, src=0)
    content = torch.empty(int(size), dtype=torch.uint8)
    if dist.get_rank() == 0:
        content.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    dist.broadcast(content, src=0)
    return content.numpy().tobytes()
