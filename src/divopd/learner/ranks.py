"""Several ranks as one learner: processes that share the weights (torch_learner.py shards them) and work in step.

The training loop runs on the first rank alone. What it asks of its learner, it asks of all: before each call the first
rank tells the others, as JSON, what to do. A rank that dies takes the others with it: whoever started them starts all
of them again, and they go on from the last checkpoint.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from divopd.learner import Learner, Weights
from divopd.records import UpdateFigures
from divopd.turns import Turn, turn_from_json, turn_to_json

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


class FirstRank:
    """The learner that the training loop sees: whatever it does, the other ranks do with it."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner

    def update(self, turns: Sequence[Turn], weights: Sequence[float]) -> UpdateFigures:
        _tell({"do": "update", "turns": [turn_to_json(turn) for turn in turns], "weights": list(weights)})
        return self._learner.update(turns, weights)

    def weights(self) -> Weights:
        _tell({"do": "weights"})
        return self._learner.weights()

    def snapshot(self, dtype: str | None) -> Weights:
        _tell({"do": "snapshot", "dtype": dtype})
        return self._learner.snapshot(dtype)

    def save(self, folder: Path, *, update: int, state: Mapping[str, Any]) -> None:
        _tell({"do": "save", "folder": str(folder), "update": update})
        self._learner.save(folder, update=update, state=state)

    def load(self, path: Path) -> dict[str, Any]:
        _tell({"do": "load", "path": str(path)})
        return self._learner.load(path)

    def close(self) -> None:
        """Let the other ranks go, after the last call."""
        _tell({"do": "end"})
        dist.destroy_process_group()


def follow(learner: Learner) -> None:
    """Any rank but the first: do what the first one does, until it ends."""
    while (wish := _hear())["do"] != "end":
        if wish["do"] == "update":
            learner.update([turn_from_json(turn) for turn in wish["turns"]], wish["weights"])
        elif wish["do"] == "weights":
            learner.weights()
        elif wish["do"] == "snapshot":
            learner.snapshot(wish["dtype"])
        elif wish["do"] == "save":
            learner.save(Path(wish["folder"]), update=wish["update"], state={})  # the first rank alone writes
        else:
            learner.load(Path(wish["path"]))
    dist.destroy_process_group()


def _tell(wish: dict[str, Any]) -> None:
    _broadcast(json.dumps(wish).encode())


def _hear() -> dict[str, Any]:
    return json.loads(_broadcast(b""))


def _broadcast(text: bytes) -> bytes:
    """The first rank's text, on every rank."""
    size = torch.tensor(len(text))
    dist.broadcast(size, src=0)
    content = torch.empty(int(size), dtype=torch.uint8)
    if dist.get_rank() == 0:
        content.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    dist.broadcast(content, src=0)
    return content.numpy().tobytes()
