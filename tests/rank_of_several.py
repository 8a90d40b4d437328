"""One of several ranks of a learner, started by a test: it trains, saves, trains on, goes back and trains on again.

Arguments: its number, how many ranks and machines there are, where they meet, the file that tells it, a folder for
checkpoints that the first machine has, and one for what the first rank found.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from divopd.learner.meeting import find, network_to, read_place, serve, write_place
from divopd.learner.ranks import FirstRank, follow, join
from divopd.learner.torch_learner import TorchLearner
from divopd.models.optimization import Optimization
from divopd.models.transformers_policy import TransformersPolicy
from token_rollouts import pool, tiny_model

BATCHES = [pool(0), pool(1), pool(2)[:4], pool(3)]


def make_learner(nodes: int = 1) -> TorchLearner:
    return TorchLearner(
        TransformersPolicy(tiny_model(torch.float32)), Optimization(lr=1e-3, max_tokens=90), nodes=nodes
    )


def after_four_updates() -> dict[str, torch.Tensor]:
    """What one rank has learned then."""
    learner = make_learner()
    for batch in BATCHES:
        learner.update(batch)
    return {name: tensor.clone() for name, tensor in learner.weights().items()}


def main(rank: int, ranks: int, nodes: int, address: str, meeting: Path, checkpoints: Path, found: Path) -> None:
    if rank:
        store = find(lambda: read_place(meeting), lambda: None)
    else:
        store, place = serve(address, 0, ranks=ranks)
        write_place(meeting, place)
    crew = join(store, address, rank=rank, ranks=ranks, device="cpu", hung_after_s=150)
    print(f"by {network_to(address)}", flush=True)
    learner = make_learner(nodes)
    if rank:
        follow(learner, crew)
        return
    first = FirstRank(learner, crew)
    for batch in BATCHES[:3]:
        first.update(batch, [1.0] * len(batch))
    saving = first.save(checkpoints, update=2, state={"version": 3})
    first.update(BATCHES[3], [1.0] * len(BATCHES[3]))  # while it is written
    save_file(dict(first.weights()), found / "on.safetensors")
    saving.wait()
    assert first.load(checkpoints / "000002") == {"version": 3}
    first.update(BATCHES[3], [1.0] * len(BATCHES[3]))
    save_file(dict(first.weights()), found / "resumed.safetensors")
    first.close()


if __name__ == "__main__":
    number, ranks, nodes, address, *places = sys.argv[1:]
    main(int(number), int(ranks), int(nodes), address, *map(Path, places))
