"""The sampler in a real TransferQueue: a controller and a storage unit as Ray actors, and their own checkpoints."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

if find_spec("transfer_queue") is None:
    pytest.skip("for want of TransferQueue", allow_module_level=True)

import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from tensordict import TensorDict
from transfer_queue.metadata import BatchMeta

from divopd.adapters.transfer_queue import (
    DivOPDSampler,
    custom_meta_of,
    dropped_with,
    metrics_of,
    show_in_prometheus,
    weights_of,
)
from divopd.errors import InputError
from divopd.pool import measure
from divopd.turns import Turn
from foreign_turns import BATCH_SIZE, figures_of, recorded_turns, replayed
from lone_ray import lone_ray

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # warnings of Ray and torch are not ours
PARTITION, TASK = "train", "update"


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with lone_ray(cpus=4):
        yield


class Queue:
    """TransferQueue with our sampler: rows go in with a few numbers beside them, batches come out."""

    def __init__(self, sampler: DivOPDSampler) -> None:
        settings = {
            "controller": {"sampler": sampler, "polling_mode": True},
            "metrics": {"enabled": True},
            "backend": {"SimpleStorage": {"num_data_storage_units": 1}},
        }
        self.settings: Any = tq.init(OmegaConf.create(settings, flags={"allow_objects": True}))
        self.controller = ray.get_actor("TransferQueueController", namespace="transfer_queue")
        self.client = tq.get_client()

    def put(self, turns: list[Turn]) -> None:
        if turns:
            tq.kv_batch_put(
                keys=[f"{turn.rollout}/{turn.turn}" for turn in turns],
                partition_id=PARTITION,
                fields=TensorDict({"first": torch.tensor([[turn.prompt_ids[0]] for turn in turns])}, len(turns)),
                tags=[meta_of(turn) for turn in turns],
            )

    def get(self, update: int, *, rows: int = BATCH_SIZE, **config: Any) -> BatchMeta:
        config = {"update": update, **config}
        return self.client.get_meta(["first"], rows, PARTITION, task_name=TASK, sampling_config=config)

    def metrics(self) -> dict[str, float]:
        """What the controller shows Prometheus."""
        with urlopen(f"http://{self.settings.metrics.endpoint}/metrics") as page:
            lines = [line.split() for line in page.read().decode().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in lines}


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> Iterator[Queue]:
    method = getattr(request, "param", "divopd")
    yield Queue(DivOPDSampler(method, batch_size=BATCH_SIZE))
    tq.close()


def meta_of(turn: Turn) -> dict[str, Any]:
    measured = measure(
        turn.student_logprobs,
        turn.teacher_logprobs,
        turn.action_mask,
        prompt_tokens=len(turn.prompt_ids),
        prompt_truncated=turn.prompt_truncated,
        response_tokens=len(turn.response_ids),
    )
    return custom_meta_of(turn.rollout, turn.turn, turn.task, turn.version, measured)


def keys(meta: BatchMeta) -> list[list]:
    return [row["divopd_row"][:2] for row in meta.custom_meta]


@pytest.mark.parametrize("queue", ["divopd", "vanilla", "divopd-focus"], indirect=True)
def test_batches_weights_and_figures_are_those_of_replay(
    queue: Queue, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The consumer gets the rows that `divopd replay` selects, and the figures; freed indexes are used again."""
    turns, whole = recorded_turns(), {turn.key: turn for turn in recorded_turns()}
    show_in_prometheus(queue.controller)
    gone = 0
    for update, expected in enumerate(replayed(turns, tmp_path, request.node.callspec.params["queue"])):
        queue.put([turn for turn in turns if turn.available_at == update])
        meta = queue.get(update)
        assert keys(meta) == expected["selected"]
        assert weights_of(meta) == expected["weights"]
        first = torch.cat([*queue.client.get_data(meta)["first"]]).tolist()
        assert first == [whole[rollout, turn].prompt_ids[0] for rollout, turn in expected["selected"]]
        figures = figures_of(turns, expected["selected"], update=update)
        shown, seen = metrics_of(meta), queue.metrics()
        assert {name: shown[f"divopd/{name}"] for name in figures} == figures
        assert {name: seen[f'divopd_{name}{{partition_id="{PARTITION}"}}'] for name in figures} == figures
        dropped = dropped_with(meta)
        assert dropped.size == expected["stale"] + expected["aged_out"] + sum(expected["invalid"].values())
        queue.client.clear_samples(meta)
        queue.client.clear_samples(dropped)
        gone += meta.size + dropped.size
        arrived = sum(turn.available_at <= update for turn in turns)
        assert len(queue.client.kv_list(PARTITION)[PARTITION]) == arrived - gone


def test_a_restart_in_the_middle_goes_on_as_if_nothing_had_happened(queue: Queue, tmp_path: Path) -> None:
    """TransferQueue's own checkpoint, loaded into a new controller after every update, changes no batch."""
    turns = recorded_turns()
    for update, expected in enumerate(replayed(turns, tmp_path, "divopd")):
        queue.put([turn for turn in turns if turn.available_at == update])
        assert keys(queue.get(update)) == expected["selected"]
        if update % 3 == 1:
            tq.save_checkpoint(tmp_path / "checkpoint")
            queue.put(turns[-5:])  # what comes after the checkpoint is not in it
            tq.close()
            queue = Queue(DivOPDSampler("divopd", batch_size=BATCH_SIZE))
            tq.load_checkpoint(tmp_path / "checkpoint")
            assert keys(queue.get(update)) == expected["selected"], "a consumer that asks again gets the same rows"


def test_no_row_is_lost_when_the_queue_runs_short(queue: Queue) -> None:
    """Too few rows, too few valid ones, rows without numbers: nothing is given, nothing is consumed; later all come."""
    alive = [turn for turn in recorded_turns() if not turn.prompt_truncated and turn.version == 0]
    dead = [turn for turn in recorded_turns() if turn.prompt_truncated and turn.version == 0]
    queue.put(alive[:10])
    assert queue.get(0).size == 0
    queue.put(dead[:8])
    assert queue.get(0).size == 0, "18 rows are ready, and 10 of them are valid"
    queue.client.put(TensorDict({"first": torch.zeros(1, 1)}, 1), partition_id=PARTITION)  # its numbers are to come
    queue.put(alive[10:40])
    batches = [queue.get(0), queue.get(1)]
    last = queue.get(2, rows=1, allow_short=True)
    assert [meta.size for meta in (*batches, last)] == [BATCH_SIZE, BATCH_SIZE, 40 - 2 * BATCH_SIZE]
    assert sorted(key for meta in (*batches, last) for key in keys(meta)) == sorted([*t.key] for t in alive[:40])
    assert dropped_with(batches[0]).size == 8
    other = queue.client.get_meta(["first"], 1, PARTITION, task_name=TASK)
    assert other.custom_meta == [{}], "without an update, rows come in order"


def test_mistakes_are_told_in_a_line(queue: Queue) -> None:
    """Wrong settings where the sampler is made; more rows than a batch has, where they are asked for."""
    with pytest.raises(InputError, match="batch_size is 0; expected 1 or more"):
        DivOPDSampler(batch_size=0)
    queue.put(recorded_turns()[:40])
    with pytest.raises(RuntimeError, match="asked for 17 rows of update 0; expected at most the sampler's batch of 16"):
        queue.get(0, rows=17)
