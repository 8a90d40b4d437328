"""The adapter in a real TRL: its queue's dataset asks for rows, its trainer's loop takes optimizer steps on them."""

import json
import queue
import sys
from dataclasses import replace
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if find_spec("trl") is None:
    pytest.skip("for want of TRL", allow_module_level=True)

from divopd.adapters.trl import DivOPDRolloutWorker
from divopd.errors import InputError, StateError
from divopd.turns import Turn
from foreign_turns import BATCH_SIZE, UPDATES, figures_of, recorded_turns, replayed

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # warnings of TRL and transformers are not ours
EXAMPLE = Path(__file__).parents[2] / "examples" / "trl" / "train.py"


class Worker:
    """A rollout worker in this process: rows are put by the test."""

    def __init__(self) -> None:
        self.rollout_buffer: queue.Queue[Any] = queue.Queue()
        self.metrics_queue: queue.Queue[dict[str, float]] = queue.Queue()
        self.asked: list[object] = []

    def start(self) -> None:
        self.asked.append("start")

    def stop(self) -> None:
        self.asked.append("stop")

    def check_health(self, stale_after_s: float) -> None:
        """TRL asks each time that it has waited in vain."""
        self.asked.append(stale_after_s)
        assert self.asked.count(stale_after_s) < 20, "the trainer waits for rows that do not come"

    def update_model_version(self, model_version: int) -> None:
        self.asked.append(model_version)


class LateQueue(queue.Queue[Any]):
    """A queue into which rows come while somebody waits for them."""

    def __init__(self, late: list[Any]) -> None:
        super().__init__()
        self.late = late

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        return self.late.pop(0) if timeout and self.late else super().get(block, timeout)


class Trainer:
    """What TRL's trainer does around its queue, with TRL's own dataset and collator, without a model."""

    def __init__(self, worker: DivOPDRolloutWorker, turns: list[Turn], *, begun_at: int = 0) -> None:
        from trl.experimental.async_distillation import async_distillation_trainer as trl_module

        self.worker, self.turns, self.begun_at = worker, turns, begun_at
        self.model_version, self.metrics, self.prompts = 0, {}, set[int]()
        sink: dict[str, list] = trl_module.defaultdict(list)
        dataset = trl_module.RolloutQueueDataset(
            worker.rollout_buffer,
            lambda: self.model_version,
            worker.check_health,
            60.0,
            sink,
            max_staleness=2,
            poll_interval_s=0.01,
        )
        self.batches = iter(trl_module.FixedCountBatcher(dataset, 1, BATCH_SIZE))
        self.collator = trl_module.DataCollatorForRollout(pad_token_id=0, metrics=sink)
        self.sink = sink
        self.publish()
        worker.start()

    def publish(self) -> None:
        self.model_version += 1
        self.worker.update_model_version(self.model_version)

    def take(self) -> list[list]:
        """The rows of the next update, as the trainer gets them; TRL sorts them by their length, we by their name."""
        ((rows,),) = ([group] for group in next(self.batches))
        packed = self.collator.torch_call([[rows]])
        assert packed["input_ids"].shape[0] == 1
        keys = [self.turns[row["prompt_id"]].key for row in rows]
        return sorted([*key] for key in keys)

    def told(self) -> dict[str, float]:
        """What the trainer's `log` would drain."""
        told: dict[str, float] = {}
        while True:
            try:
                told |= self.worker.metrics_queue.get_nowait()
            except queue.Empty:
                return told


def put(worker: Worker, turns: list[Turn], *, of: list[Turn], first_version: int = 1) -> None:
    for turn in turns:
        worker.rollout_buffer.put(as_trl(turn, number=of.index(turn), first_version=first_version))


def as_trl(turn: Turn, *, number: int, first_version: int = 1) -> Any:
    """A row as TRL's worker makes it: the teacher's best tokens, and among them the one that was sampled."""
    from trl.experimental.async_distillation.async_rollout_worker import RolloutSample

    ids, first = np.array([*turn.prompt_ids, *turn.response_ids]), len(turn.prompt_ids)
    mask = np.zeros(len(ids), dtype=np.int64)
    mask[first:] = turn.action_mask or 0
    best, scores = np.full((len(ids), 3), -1), np.full((len(ids), 3), -np.inf, dtype=np.float32)
    if turn.teacher_logprobs is not None:
        best[first:, 0], scores[first:, 0] = 99_999, -0.01
        best[first:, 1], scores[first:, 1] = turn.response_ids, turn.teacher_logprobs
    student = [] if turn.student_logprobs is None else np.asarray(turn.student_logprobs)[mask[first:] == 1].tolist()
    about = {"rollout": turn.rollout, "turn": turn.turn, "task": turn.task, "student_logprobs": student}
    return RolloutSample(
        prompt=[{"role": "user", "content": turn.task}],
        completion=[],
        input_ids=ids,
        completion_mask=mask,
        teacher_topk_ids=best,
        teacher_topk_logprobs=scores,
        model_version=turn.version + first_version,
        metrics={"divopd": about | {"prompt_truncated": turn.prompt_truncated}, "length": float(len(ids))},
        teacher_id="default",
        prompt_id=number,
    )


@pytest.mark.parametrize("method", ["divopd", "vanilla"])
def test_trl_gets_the_batches_of_replay_and_their_figures(method: str, tmp_path: Path) -> None:
    """Update by update the rows that `divopd replay` selects; figures, and the worker's own, where TRL's log drains."""
    turns, rollouts = recorded_turns(), Worker()
    worker = DivOPDRolloutWorker(rollouts, batch_size=BATCH_SIZE, method=method)
    trainer = Trainer(worker, turns)
    for update, expected in enumerate(replayed(turns, tmp_path, method)):
        put(rollouts, [turn for turn in turns if turn.available_at == update], of=turns)
        rollouts.metrics_queue.put({"rollout/success": update})
        assert trainer.take() == sorted(expected["selected"])
        trainer.publish()
        told = trainer.told()
        figures = figures_of(turns, expected["selected"], update=update)
        assert {name: told[f"divopd/{name}"] for name in figures} == pytest.approx(figures)
        assert (told["divopd/pending"], told["divopd/stale"]) == (expected["pending"], expected["stale"])
        assert told["rollout/success"] == update
    assert not trainer.sink["sample/dropped_stale_total"], "TRL drops nothing of a composed batch"
    assert rollouts.asked == [1, "start", *range(2, UPDATES + 2)]
    assert "divopd" not in trainer.sink, "what is for the pool does not reach TRL's metrics"
    assert trainer.sink["length"]


def test_a_restart_in_the_middle_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    """Rows that waited, and those that the trainer had fetched ahead and not trained, are there again."""
    turns, rollouts = recorded_turns(), Worker()
    worker = DivOPDRolloutWorker(rollouts, batch_size=BATCH_SIZE)
    trainer, first_version = Trainer(worker, turns), 1
    for update, expected in enumerate(replayed(turns, tmp_path, "divopd")):
        new = [turn for turn in turns if turn.available_at == update]
        put(rollouts, new, of=turns, first_version=first_version)
        assert trainer.take() == sorted(expected["selected"])
        if update % 2:  # the batch is fetched, and not trained
            worker.save(tmp_path, updates=update)
            rollouts, first_version = Worker(), 1 - update
            worker = DivOPDRolloutWorker(rollouts, batch_size=BATCH_SIZE)
            worker.load(tmp_path)
            trainer = Trainer(worker, turns)
            assert trainer.take() == sorted(expected["selected"]), "it is trained after the restart"
            assert min(trainer.sink["sample/staleness_mean"]) >= 0, "as if the trainer had counted on"
        trainer.publish()
        figures = figures_of(turns, expected["selected"], update=update)
        assert trainer.told()["divopd/effective_rollouts"] == pytest.approx(figures["effective_rollouts"])


def test_no_row_is_lost_when_the_queue_runs_short() -> None:
    """Rows that came stay in the pool when the wait ends in vain, and are in the batch that is full at last."""
    turns = [turn for turn in recorded_turns() if turn.version == 0 and not turn.prompt_truncated][:BATCH_SIZE]
    rollouts = Worker()
    worker = DivOPDRolloutWorker(rollouts, batch_size=BATCH_SIZE)
    trainer = Trainer(worker, turns)
    rollouts.rollout_buffer = late = LateQueue([])
    put(rollouts, turns[:10], of=turns)
    for _ in range(3):
        with pytest.raises(queue.Empty):
            worker.get(timeout=0.01)
    assert (worker.qsize(), len(worker.pool)) == (10, 10)
    put(rollouts, turns[10:14], of=turns)
    late.late += [as_trl(turn, number=turns.index(turn)) for turn in turns[14:]]
    assert trainer.take() == sorted([*turn.key] for turn in turns), "the last two came while it waited"


def test_a_token_without_a_score_does_not_count() -> None:
    """Where the sampled token is not among those that the teacher scored, it is left out of the disagreement."""
    turn = next(turn for turn in recorded_turns() if not turn.prompt_truncated)
    sample, first = as_trl(turn, number=0), len(turn.prompt_ids)
    sample.teacher_topk_ids[first, 1] = -1
    worker = DivOPDRolloutWorker(Worker(), batch_size=BATCH_SIZE)
    measured = worker._row(sample).measured
    assert turn.student_logprobs is not None
    assert turn.teacher_logprobs is not None
    rest = list(zip(turn.student_logprobs, turn.teacher_logprobs, strict=True))[1:]
    assert measured.valid_tokens == len(rest)
    assert measured.disagreement == pytest.approx(sum(student - teacher for student, teacher in rest))
    assert measured.tokens == turn.tokens


def test_weights_that_go_out_every_other_update() -> None:
    """With weight_sync_steps a version of TRL's is several updates old; also after a resume between two of them."""
    turns = [turn for turn in recorded_turns() if turn.version == 0 and not turn.prompt_truncated]
    rollouts = Worker()
    worker = DivOPDRolloutWorker(rollouts, batch_size=BATCH_SIZE, weight_sync_steps=2)
    trainer = Trainer(worker, turns)
    put(rollouts, turns[:BATCH_SIZE], of=turns)
    trainer.take()
    saved = json.loads(json.dumps(worker.state_dict(updates=1)))
    resumed = DivOPDRolloutWorker(rollouts := Worker(), batch_size=BATCH_SIZE, weight_sync_steps=2)
    resumed.load_state_dict(saved)
    trainer = Trainer(resumed, turns)
    put(rollouts, turns[BATCH_SIZE : 2 * BATCH_SIZE], of=turns)
    trainer.take()
    trainer.publish()
    assert trainer.told()["divopd/age"] == 0, "the weights after update 0 were published at the resume"
    put(rollouts, [replace(turn, version=1) for turn in turns[2 * BATCH_SIZE : 3 * BATCH_SIZE]], of=turns_as(turns, 1))
    trainer.take()
    trainer.publish()
    assert trainer.told()["divopd/age"] == 0, "those after update 1 are version 2"


def turns_as(turns: list[Turn], version: int) -> list[Turn]:
    return [replace(turn, version=version) for turn in turns]


def test_what_a_worker_must_tell() -> None:
    """Rows without the student's log probabilities, methods with row weights, states of others: each a line."""
    turns = [turn for turn in recorded_turns() if not turn.prompt_truncated]
    rollouts = Worker()
    worker = DivOPDRolloutWorker(rollouts, batch_size=BATCH_SIZE)
    sample = as_trl(turns[0], number=0)
    del sample.metrics["divopd"]
    rollouts.rollout_buffer.put(sample)
    with pytest.raises(InputError, match="no metrics\\['divopd'\\] with rollout, turn, task and student_logprobs"):
        worker.get(timeout=0)
    with pytest.raises(InputError, match="TRL has no place for their weights"):
        DivOPDRolloutWorker(rollouts, batch_size=BATCH_SIZE, method="divopd-focus")
    other = DivOPDRolloutWorker(rollouts, batch_size=BATCH_SIZE, cap=1)
    with pytest.raises(StateError, match="cap"):
        worker.load_state_dict(other.state_dict())
    with pytest.raises(InputError, match="saved with worker"):
        worker.load(Path("nowhere"))


def example() -> Any:
    spec = spec_from_file_location("trl_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def trained(module: Any, arguments: list[str], monkeypatch: pytest.MonkeyPatch, told: Any) -> list[dict[str, Any]]:
    monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
    module.main()
    lines = [line for line in told.readouterr().out.splitlines() if line.startswith('{"step"')]
    return [line for line in map(json.loads, lines) if "loss" in line]


def test_trl_trains_on_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`train()` of TRL takes optimizer steps on composed rows, publishes weights, logs figures, and resumes."""
    from transformers import AutoModelForCausalLM

    from divopd.models.model_files import model_folder

    module = example()
    lines = trained(module, ["4", "--out", str(tmp_path)], monkeypatch, capsys)
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    for line in lines:
        assert np.isfinite(line["loss"])
        assert line["divopd/rows"] == module.BATCH
        assert line["divopd/rollouts"] > module.BATCH / 4
        assert line["divopd/dead_share"] == 0
    before = AutoModelForCausalLM.from_pretrained(model_folder("embedded:student")).state_dict()
    after = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-4").state_dict()
    assert max(float((after[name] - before[name]).abs().max()) for name in before) > 1e-4
    middle = tmp_path / "checkpoint-2"
    again = trained(module, ["4", "--out", str(tmp_path / "b"), "--resume", str(middle)], monkeypatch, capsys)
    assert [line["step"] for line in again][-2:] == [3, 4]
    ours = [name for name in lines[2] if name.startswith("divopd/")]
    assert {name: again[-2][name] for name in ours} == {name: lines[2][name] for name in ours}, (
        "composed before the stop"
    )
