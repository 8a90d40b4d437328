"""Several ranks as one learner: processes that share the weights (torch_learner.py shards them) and work in step.

The training loop runs on the first rank alone. What it asks of its learner, it asks of all: before each call the first
rank tells the others, as JSON, what to do. A rank that dies or hangs takes the others with it: whoever started them
starts all of them again, and they go on from the last checkpoint.
"""

import json
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage] - documented

from divopd.learner import Learner, Saved, Saving, Weights
from divopd.learner.meeting import network_to
from divopd.records import UpdateFigures
from divopd.run.agreed import broadcast
from divopd.turns import Turn, turn_from_json, turn_to_json

LONGEST_WAIT = timedelta(days=1)  # for a batch: nobody is hung who waits for one


def take_device(device: str, *, rank: int) -> None:
    """On CUDA each rank has a device of its own; before its model is loaded."""
    if device.startswith("cuda"):
        torch.cuda.set_device(rank % torch.cuda.device_count())  # an actor of a cluster sees one, and it is its own


def join(store: TCPStore, address: str, *, rank: int, ranks: int, device: str, hung_after_s: float) -> "Crew":
    """Become one of the ranks; waits for all of them.

    Ranks that compute together wait for one another twice as long as a silent one is waited for: whoever watches their
    heartbeats finds the one that hangs before.
    """
    if network := network_to(address):  # nobody else need reach them
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, network)
    store.set(f"here/{rank}", "yes")
    store.wait([f"here/{other}" for other in range(ranks)])  # as long as the store waits: some load their model longer
    backend = "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo"
    patience = timedelta(seconds=2 * hung_after_s)
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=patience)
    return Crew()


class Crew:
    """All ranks, as each of them sees them: the first tells what to do, the others hear it."""

    def __init__(self) -> None:
        group = dist.new_group(backend="gloo", timeout=LONGEST_WAIT)
        assert not isinstance(group, int)  # that is torch's word for a rank outside, and all are inside
        self._group = group

    def tell(self, wish: dict[str, Any]) -> None:
        broadcast(json.dumps(wish).encode(), group=self._group)

    def hear(self) -> dict[str, Any]:
        return json.loads(broadcast(b"", group=self._group))

    def leave(self) -> None:
        """The last call of a rank."""
        dist.destroy_process_group()


class FirstRank:
    """The learner that the training loop sees: whatever it does, the other ranks do with it."""

    def __init__(self, learner: Learner, crew: Crew) -> None:
        self._learner, self._crew = learner, crew

    def update(self, turns: Sequence[Turn], weights: Sequence[float]) -> UpdateFigures:
        self._crew.tell({"do": "update", "turns": [turn_to_json(turn) for turn in turns], "weights": list(weights)})
        return self._learner.update(turns, weights)

    def weights(self) -> Weights:
        self._crew.tell({"do": "weights"})
        return self._learner.weights()

    def snapshot(self, dtype: str | None) -> Weights:
        self._crew.tell({"do": "snapshot", "dtype": dtype})
        return self._learner.snapshot(dtype)

    def stream(self, dtype: str | None) -> Iterator[tuple[str, Any]]:
        self._crew.tell({"do": "stream", "dtype": dtype})
        return self._learner.stream(dtype)

    def kinds(self, dtype: str | None) -> dict[str, tuple[str, tuple[int, ...]]]:
        return self._learner.kinds(dtype)

    def save(self, folder: Path, *, update: int, state: Mapping[str, Any]) -> Saving:
        self._crew.tell({"do": "save", "folder": str(folder), "update": update})
        return self._learner.save(folder, update=update, state=state)

    def load(self, path: Path) -> dict[str, Any]:
        self._crew.tell({"do": "load", "path": str(path)})
        return self._learner.load(path)

    def close(self) -> None:
        """Let the other ranks go, after the last call."""
        self._crew.tell({"do": "end"})
        self._crew.leave()


def follow(learner: Learner, crew: Crew) -> None:
    """Any rank but the first: do what the first one does, until it ends."""
    saving: Saving = Saved()
    while (wish := crew.hear())["do"] != "end":
        if wish["do"] == "update":
            learner.update([turn_from_json(turn) for turn in wish["turns"]], wish["weights"])
        elif wish["do"] == "weights":
            learner.weights()
        elif wish["do"] == "snapshot":
            learner.snapshot(wish["dtype"])
        elif wish["do"] == "stream":
            deque(learner.stream(wish["dtype"]), maxlen=0)
        elif wish["do"] == "save":
            saving.wait()
            saving = learner.save(Path(wish["folder"]), update=wish["update"], state={})  # the state is the first's
        else:
            learner.load(Path(wish["path"]))
    saving.wait()
    crew.leave()
