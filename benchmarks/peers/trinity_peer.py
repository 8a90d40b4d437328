"""Trinity-RFT's experience queue: a Ray actor with its rows in memory. Runs in .venv-trinity.

A rollout is written as one list of experiences, as Trinity's explorer does, and read in batches of 64, as its trainer
does. Ray would run its workers at nice 15; here they are not.
"""

import asyncio
import os
from tempfile import TemporaryDirectory

os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - so Ray spells it
import ray
import torch
from answering import answer, measured
from trinity.buffer import get_buffer_reader, get_buffer_writer
from trinity.common.config import ExperienceBufferConfig
from trinity.common.experience import EID, Experience

state: dict = {"begun": 0, "rollouts": 0}


def about() -> dict:
    return {
        "patched": "nothing; installed without verl and vLLM, which its queue does not import",
        "durable": False,
        "client": "QueueWriter.write and QueueReader.read, awaited one after the other",
        "ray_worker_niceness": 0,
    }


def begin(prompt: int, response: int, turns: int) -> None:
    state["begun"] += 1
    path = os.path.join(state["folder"], f"written{state['begun']}.jsonl")
    storage = ExperienceBufferConfig(
        name=f"turns{state['begun']}",
        storage_type="queue",
        path=path,
        max_read_timeout=60,
        batch_size=64,
        capacity=1_000_000,
    )
    state["writer"], state["reader"] = get_buffer_writer(storage), get_buffer_reader(storage)
    state["loop"].run_until_complete(state["writer"].acquire())
    state["turns"] = turns
    state["row"] = {
        "tokens": torch.randint(0, 150_000, (prompt + response,), dtype=torch.int32),
        "prompt_length": prompt,
        "logprobs": -torch.rand(response, dtype=torch.float64),
        "teacher_logprobs": -torch.rand(response, dtype=torch.float64),
        "action_mask": torch.ones(response, dtype=torch.bool),
    }


def put(rollouts: int) -> dict:
    return measured(lambda: [_put_one() for _ in range(rollouts)])


def _put_one() -> None:
    state["rollouts"] += 1
    rows = [
        Experience(
            eid=EID(batch=0, task=0, run=state["rollouts"], step=turn),
            info={"model_version": 0, "use_count": 0},
            **state["row"],
        )
        for turn in range(state["turns"])
    ]
    state["loop"].run_until_complete(state["writer"].write(rows))


def take(batches: int, size: int) -> dict:
    return measured(lambda: [_take(size) for _ in range(batches)])


def _take(size: int) -> None:
    rows = state["loop"].run_until_complete(state["reader"].read(size))
    assert len(rows) == size
    assert len(rows[0].tokens) == len(state["row"]["tokens"])


with TemporaryDirectory(prefix="ray") as state["folder"]:
    ray.init(address="local", include_dashboard=False, num_cpus=4, _temp_dir=state["folder"], log_to_driver=False)
    state["loop"] = asyncio.new_event_loop()
    try:
        answer({"about": about, "begin": begin, "put": put, "take": take})
    finally:
        ray.shutdown()
