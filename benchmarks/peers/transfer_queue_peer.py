"""TransferQueue: a controller and one storage unit as Ray actors, rows in their memory. Runs in .venv-transfer-queue.

A rollout's turns are put as one batch of five columns and three numbers. A batch is 64 rows: asked for, fetched,
cleared. Ray would run its workers at nice 15; here they are not.
"""

import os
from tempfile import TemporaryDirectory

os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - so Ray spells it
import ray
import torch
import transfer_queue as tq
from answering import answer, measured
from omegaconf import OmegaConf
from tensordict import TensorDict

COLUMNS = ["prompt", "response", "student", "teacher", "mask", "version"]
state: dict = {"begun": 0, "rollouts": 0}


def about() -> dict:
    return {
        "patched": "nothing",
        "durable": False,
        "client": "put and get_meta, get_data, clear; controller and one SimpleStorage unit",
        "ray_worker_niceness": 0,
    }


def begin(prompt: int, response: int, turns: int) -> None:
    if not state["begun"]:
        tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
        state["client"] = tq.get_client()
    state["begun"] += 1
    state["turns"] = turns
    state["row"] = {
        "prompt": torch.randint(0, 150_000, (turns, prompt), dtype=torch.int32),
        "response": torch.randint(0, 150_000, (turns, response), dtype=torch.int32),
        "student": -torch.rand((turns, response), dtype=torch.float64),
        "teacher": -torch.rand((turns, response), dtype=torch.float64),
        "mask": torch.ones((turns, response), dtype=torch.uint8),
        "version": torch.zeros((turns, 1), dtype=torch.int32),
    }


def put(rollouts: int) -> dict:
    return measured(lambda: [_put_one() for _ in range(rollouts)])


def _put_one() -> None:
    state["rollouts"] += 1
    state["client"].put(TensorDict(state["row"], state["turns"]), partition_id=f"train{state['begun']}")


def take(batches: int, size: int) -> dict:
    return measured(lambda: [_take(size) for _ in range(batches)])


def _take(size: int) -> None:
    client = state["client"]
    meta = client.get_meta(COLUMNS, size, f"train{state['begun']}", task_name="update")
    rows = client.get_data(meta)
    assert len(rows["prompt"]) == size
    client.clear_samples(meta)


with TemporaryDirectory(prefix="ray") as folder:
    ray.init(address="local", include_dashboard=False, num_cpus=4, _temp_dir=folder, log_to_driver=False)
    try:
        answer({"about": about, "begin": begin, "put": put, "take": take})
    finally:
        ray.shutdown()
