"""The adapter in a real Trinity-RFT: its queue is a Ray actor, its checkpoints are its own."""

import asyncio
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("trinity") is None:
    pytest.skip("for want of Trinity-RFT", allow_module_level=True)

import ray
import torch
from trinity.algorithm.sample_strategy import SAMPLE_STRATEGY
from trinity.buffer import get_buffer_writer
from trinity.common.config import BufferConfig, ExperienceBufferConfig, TrainerInput
from trinity.common.experience import EID, CustomField, Experience
from trinity.manager.state_manager import StateManager

from divopd.adapters.trinity import DivOPDSampleStrategy, read_rows, row_of, write_rows
from divopd.errors import CheckpointError, InputError
from divopd.turns import Turn, group_into_rollouts
from foreign_turns import BATCH_SIZE, figures_of, recorded_turns, replay_of, replayed
from lone_ray import lone_ray

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # warnings of Ray and Trinity are not ours
NAME = "divopd.adapters.trinity.DivOPDSampleStrategy"


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with lone_ray(cpus=2):
        yield


class Explorer:
    """A queue of Trinity's, and who writes into it: a list a rollout, as Trinity's explorer does."""

    def __init__(self, folder: Path) -> None:
        written = {"name": f"turns-{folder.name}", "storage_type": "queue", "path": str(folder / "written.jsonl")}
        self.storage = ExperienceBufferConfig(**written, max_read_timeout=1, batch_size=BATCH_SIZE)
        source = TrainerInput(experience_buffer=self.storage)
        self.config = BufferConfig(train_batch_size=BATCH_SIZE, cache_dir=str(folder / "buffer"), trainer_input=source)
        self.writer = get_buffer_writer(self.storage)
        asyncio.run(self.writer.acquire())

    def put(self, turns: list[Turn]) -> None:
        for rollout in group_into_rollouts(turns):
            asyncio.run(self.writer.write([as_trinity(turn) for turn in rollout.turns]))

    def strategy(self, **settings: Any) -> DivOPDSampleStrategy:
        """As Trinity's trainer makes it, from the name in its configuration."""
        return SAMPLE_STRATEGY.get(NAME)(buffer_config=self.config, **settings)

    def end(self) -> None:
        asyncio.run(self.writer.release())


@pytest.fixture
def explorer(tmp_path: Path) -> Iterator[Explorer]:
    explorer = Explorer(tmp_path)
    yield explorer
    ray.kill(explorer.writer.queue)  # pyright: ignore[reportAttributeAccessIssue]


def as_trinity(turn: Turn) -> Experience:
    batch, task, run = turn.rollout.split("/")
    return Experience(
        eid=EID(batch=int(batch), task=int(task), run=int(run), step=turn.turn),
        tokens=[*turn.prompt_ids, *turn.response_ids],
        prompt_length=len(turn.prompt_ids),
        logprobs=turn.student_logprobs,
        teacher_logprobs=turn.teacher_logprobs,
        action_mask=turn.action_mask,
        truncate_status="prompt_truncated" if turn.prompt_truncated else None,
        reward=turn.reward,
        info={"model_version": turn.version, "use_count": 0},
    )


def sampled(strategy: DivOPDSampleStrategy, update: int) -> tuple[list[Experience], dict[str, float]]:
    rows, metrics, _ = asyncio.run(strategy.sample(update + 1))
    return rows, metrics


def keys(rows: list[Experience]) -> list[list]:
    return [[row.eid.rid, row.eid.step] for row in rows]


@pytest.mark.parametrize("method", ["divopd", "vanilla", "divopd-focus"])
def test_batches_weights_and_figures_are_those_of_replay(method: str, explorer: Explorer, tmp_path: Path) -> None:
    """The trainer gets, step by step, the rows that `divopd replay` selects; figures are in Trinity's metrics."""
    turns = recorded_turns()
    strategy = explorer.strategy(method=method)
    for update, expected in enumerate(replayed(turns, tmp_path, method)):
        explorer.put([turn for turn in turns if turn.available_at == update])
        rows, metrics = sampled(strategy, update)
        assert keys(rows) == expected["selected"]
        assert [row.info["divopd_weight"] for row in rows] == expected["weights"]
        assert all([f.destination_field for f in row.custom_fields] == ["divopd_weight"] for row in rows)
        figures = figures_of(turns, expected["selected"], update=update)
        assert {name: metrics[f"divopd/{name}"] for name in figures} == figures
        assert (metrics["divopd/pending"], metrics["divopd/stale"]) == (expected["pending"], expected["stale"])
        assert metrics["sample/model_version/max"] <= update


def test_a_restart_in_the_middle_goes_on_as_if_nothing_had_happened(explorer: Explorer, tmp_path: Path) -> None:
    """Trinity's own file of the trainer's state brings the pool back, rows and all; the queue lives on.

    What was recorded meanwhile replays to the same batches.
    """
    turns = recorded_turns()
    written = {row.eid.rid + f"/{row.eid.step}": row for row in map(as_trinity, turns)}
    recording, replay = tmp_path / "recorded.jsonl", replayed(turns, tmp_path, "divopd")
    strategy = explorer.strategy(record=str(recording))
    for update, expected in enumerate(replay):
        explorer.put([turn for turn in turns if turn.available_at == update])
        rows, _ = sampled(strategy, update)
        assert keys(rows) == expected["selected"]
        for row in rows:
            original = written[row.eid.rid + f"/{row.eid.step}"]
            assert torch.equal(row.tokens, original.tokens)  # pyright: ignore[reportArgumentType]
            assert torch.equal(row.teacher_logprobs, original.teacher_logprobs)  # pyright: ignore[reportArgumentType]
        StateManager(str(tmp_path), trainer_name="trainer").save_trainer(update + 1, strategy.state_dict())
        saved = StateManager(str(tmp_path), trainer_name="trainer").load_trainer()
        strategy = explorer.strategy(record=str(recording))
        strategy.load_state_dict(saved["sample_strategy_state"])
    assert (tmp_path / "trainer_meta.json").stat().st_size < 100_000
    assert len(list((tmp_path / "buffer").iterdir())) == 2, "files of older checkpoints are removed"
    assert [batch["selected"] for batch in replay_of(recording, "divopd")] == [batch["selected"] for batch in replay]


def test_no_row_is_lost_when_the_queue_runs_short(explorer: Explorer, tmp_path: Path) -> None:
    """A batch that is not full is waited for; when the wait ends in vain, every row that was read is still there.

    Trinity's own reader loses what it has gathered then: 16 asked, 10 queued: none come, and forgets them.
    """
    turns = [turn for turn in recorded_turns() if not turn.prompt_truncated and turn.version == 0]
    strategy = explorer.strategy()
    explorer.put(turns[:10])
    with pytest.raises(TimeoutError, match="update 0: 10 rows for a batch of 16, and none came for 1 s"):
        sampled(strategy, 0)
    explorer.put(turns[10:40])
    first, metrics = sampled(strategy, 0)
    assert (len(first), metrics["divopd/pending"]) == (BATCH_SIZE, 24)
    second, _ = sampled(strategy, 1)
    explorer.end()
    with pytest.raises(StopAsyncIteration):
        sampled(strategy, 2)
    state = strategy.state_dict()
    left = read_rows(tmp_path / "buffer" / state["rows"])
    assert sorted(keys([*first, *second, *left])) == sorted([turn.rollout, turn.turn] for turn in turns[:40])


def test_what_the_pool_has_no_room_for_stays_in_the_queue(explorer: Explorer) -> None:
    """The queue's capacity goes on holding the explorers back."""
    turns = [turn for turn in recorded_turns() if not turn.prompt_truncated and turn.version == 0]
    strategy = explorer.strategy(pool_multiplier=2)
    explorer.put(turns[:50])
    _, metrics = sampled(strategy, 0)
    assert metrics["divopd/pending"] + metrics["divopd/queued"] == 2 * BATCH_SIZE - BATCH_SIZE
    assert asyncio.run(strategy._certain()) > 0


def test_a_pool_full_of_invalid_rows_does_not_stop_the_run(explorer: Explorer) -> None:
    """The valid ones among them are trained as a short batch; if there is none, the next rows are read."""
    alive = [turn for turn in recorded_turns() if not turn.prompt_truncated and turn.version == 0]
    dead = [turn for turn in recorded_turns(seed=1) if not turn.prompt_truncated and turn.version == 0]
    strategy = explorer.strategy(pool_multiplier=1)
    unscored = [as_trinity(turn) for turn in dead[: BATCH_SIZE + 5]]
    for number, row in enumerate(unscored):
        row.eid.run, row.teacher_logprobs = 1 + number, None
    asyncio.run(explorer.writer.write(unscored))
    explorer.put(alive[:20])
    rows, metrics = sampled(strategy, 0)
    assert (len(rows), metrics["divopd/invalid_no_teacher_logprobs"]) == (BATCH_SIZE - 5, 5)


def test_mistakes_are_told_in_a_line(explorer: Explorer, tmp_path: Path) -> None:
    """Turns without a number, rows without a version, another storage, no folder, a lost file."""
    turn = recorded_turns()[0]
    other = as_trinity(turn)
    other.logprobs = other.logprobs - 1  # pyright: ignore[reportOptionalOperand]
    asyncio.run(explorer.writer.write([as_trinity(turn), other]))
    with pytest.raises(InputError, match=r"put before with other numbers.*must set eid.step"):
        sampled(explorer.strategy(), 0)
    other.info = {}
    with pytest.raises(InputError, match="model_version"):
        row_of(other)
    strategy = explorer.strategy()
    with pytest.raises(CheckpointError, match="cannot read the pool's rows"):
        strategy.load_state_dict({"pool": strategy.pool.state_dict(), "rows": "gone.safetensors", "update": 0})
    explorer.config.cache_dir = None
    with pytest.raises(CheckpointError, match=r"buffer\.cache_dir is not set"):
        explorer.strategy().state_dict()
    explorer.config.trainer_input.experience_buffer = ExperienceBufferConfig(storage_type="file", path=str(tmp_path))
    with pytest.raises(InputError, match="has storage_type 'file'; expected 'queue'"):
        explorer.strategy()


def test_rows_of_a_checkpoint_are_the_same_again(tmp_path: Path) -> None:
    """All that Trinity's own bytes carry, without pickle; what JSON does not know becomes plain."""
    row = as_trinity(recorded_turns()[0])
    row.info |= {"score": torch.tensor(0.5), "where": Path("x")}
    row.multi_modal_inputs = {"pixel_values": torch.ones(2, 3)}
    row.custom_fields = [CustomField("score", "score", torch.float32)]
    write_rows(tmp_path / "rows.safetensors", [row, as_trinity(recorded_turns()[1])])
    (again, _) = read_rows(tmp_path / "rows.safetensors")
    assert again.info == row.info | {"score": 0.5, "where": "x"}
    assert (again.eid, again.custom_fields, again.reward) == (row.eid, row.custom_fields, row.reward)
    assert torch.equal(again.multi_modal_inputs["pixel_values"], torch.ones(2, 3))  # pyright: ignore
    assert again.action_mask.tolist() == row.action_mask.tolist()  # pyright: ignore[reportOptionalMemberAccess]
