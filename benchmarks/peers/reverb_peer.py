"""Reverb: a first-in, first-out table in the memory of a server, in the same process. Runs in .venv-reverb.

A turn is an item of five arrays with its name, task and version; a rollout ends with a flush, which
returns when the server has it. A batch is 64 items, each sampled once.
"""

import numpy as np
import reverb
from answering import answer, measured

TABLE = "turns"
state: dict = {}


def about() -> dict:
    return {
        "patched": "nothing",
        "durable": False,
        "client": "TrajectoryWriter and Client.sample, server in the process",
    }


def begin(prompt: int, response: int, turns: int) -> None:
    if state:
        state["writer"].close()
        state["server"].stop()
    rng = np.random.default_rng(0)
    table = reverb.Table(
        TABLE,
        sampler=reverb.selectors.Fifo(),
        remover=reverb.selectors.Fifo(),
        max_size=1_000_000,
        max_times_sampled=1,
        rate_limiter=reverb.rate_limiters.MinSize(1),
    )
    state["server"] = reverb.Server([table])
    state["client"] = reverb.Client(f"localhost:{state['server'].port}")
    state["writer"] = state["client"].trajectory_writer(num_keep_alive_refs=turns)
    state["turns"] = turns
    state["row"] = {
        "prompt": rng.integers(0, 150_000, prompt, np.int32),
        "response": rng.integers(0, 150_000, response, np.int32),
        "student": -rng.random(response),
        "teacher": -rng.random(response),
        "mask": np.ones(response, np.uint8),
        "version": np.int32(0),
    }
    state["rollouts"] = 0


def put(rollouts: int) -> dict:
    return measured(lambda: [_put_one() for _ in range(rollouts)])


def _put_one() -> None:
    number = state["rollouts"] = state["rollouts"] + 1
    writer = state["writer"]
    for turn in range(state["turns"]):
        writer.append({**state["row"], "rollout": np.int32(number), "turn": np.int32(turn)})
        writer.create_item(TABLE, 1.0, {name: column[-1:] for name, column in writer.history.items()})
    writer.end_episode()  # waits until the server has every item


def take(batches: int, size: int) -> dict:
    return measured(lambda: [_take(size) for _ in range(batches)])


def _take(size: int) -> None:
    rows = list(state["client"].sample(TABLE, num_samples=size, emit_timesteps=False))
    assert len(rows) == size
    assert len(state["row"]["prompt"]) in [np.shape(column)[-1] for column in rows[-1].data if np.ndim(column)]


answer({"about": about, "begin": begin, "put": put, "take": take})
