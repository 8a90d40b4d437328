"""TRL 1.16: batches of `AsyncDistillationTrainer` composed by divopd.

    worker = DivOPDRolloutWorker(your_worker, batch_size=64)
    trainer = AsyncDistillationTrainer(model, args, dataset, rollout_worker=worker, callbacks=[worker.callback()])

It stands between a rollout worker and the trainer's queue. The worker says in `sample.metrics["divopd"]` what a
`RolloutSample` does not: rollout, turn, task and the student's log probabilities; it is taken out before the trainer
looks. `batch_size` is what one update trains: per_device_train_batch_size x gradient_accumulation_steps x processes,
and `token_budget` is 0, so that TRL counts rows, not tokens.
"""

# pyright takes trl for this very file
# pyright: reportAttributeAccessIssue=false, reportMissingImports=false

import json
import os
import queue
from collections import deque
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from time import monotonic
from typing import Any, cast

import numpy as np

from divopd.adapters.feeding import compose_if_ready, figures, pool_of_equal_rows
from divopd.adapters.frameworks import require_fit
from divopd.errors import InputError
from divopd.pool import Row, measure

STATE_FILE = "divopd.json"


class DivOPDRolloutWorker:
    """A rollout worker for the trainer, and its `rollout_buffer`: rows go into a pool, and out in composed batches.

    Versions and updates are counted as in divopd, from 0. TRL's version 1 is the first one, and it goes up every
    `weight_sync_steps` updates, which must be told here if they are not 1. Rows that were given to the trainer are
    remembered until it has trained them, because it asks for the next ones before: so a checkpoint loses none.
    """

    def __init__(
        self, worker: Any, *, batch_size: int, method: str = "divopd", weight_sync_steps: int = 1, **settings: Any
    ) -> None:
        require_fit("trl")
        self.pool = pool_of_equal_rows("TRL", method, batch_size=batch_size, **settings)
        self.rollout_buffer = self
        self.metrics_queue = _Figures(worker.metrics_queue)
        self._worker = worker
        self._sync_steps = weight_sync_steps
        self._begun_at = 0  # the update that this process began with
        self._trained = 0  # updates, as far as the trainer has told
        self._rows: deque[Any] = deque()  # composed and not known to be trained, oldest first; as TRL has them
        self._first = 0  # the number of the first of them, counted from the first row of the run
        self._given = 0  # rows that the trainer has taken, of the same count
        self._figures: deque[tuple[int, dict[str, float]]] = deque()  # of updates that are not known to be done

    # ── what the trainer asks of a worker ─────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        self._worker.start()

    def stop(self) -> None:
        self._worker.stop()

    def check_health(self, stale_after_s: float) -> None:
        self._worker.check_health(stale_after_s)

    def update_model_version(self, model_version: int) -> None:
        """The trainer has published weights: all updates before them are done."""
        self._trained_up_to(self._version(model_version))
        self._worker.update_model_version(model_version)

    # ── what it asks of a queue ───────────────────────────────────────────────────────────────────────────────────

    def qsize(self) -> int:
        """Rows that wait here, those of the next batch included."""
        return len(self.pool) + self._first + len(self._rows) - self._given

    def get(self, timeout: float | None = None) -> Any:
        """The next row of a composed batch. `queue.Empty` after `timeout` seconds; what had come stays in the pool."""
        until = None if timeout is None else monotonic() + timeout
        while self._given == self._first + len(self._rows):
            self._take_what_is_there()
            batch = compose_if_ready(self.pool, self._given // self.pool.settings.batch_size)
            if batch is not None:
                self._figures.append((batch.update, figures(batch)))
                self._rows.extend(row.payload for row in batch.rows)
            else:
                left_s = None if until is None else max(0.0, until - monotonic())
                self.pool.put([self._row(self._worker.rollout_buffer.get(timeout=left_s))])
        sample = self._rows[self._given - self._first]
        self._given += 1
        return sample

    def _take_what_is_there(self) -> None:
        while True:
            try:
                sample = self._worker.rollout_buffer.get(timeout=0)
            except queue.Empty:
                return
            self.pool.put([self._row(sample)])

    def _row(self, sample: Any) -> Row:
        about = sample.metrics.pop("divopd", None)
        if not isinstance(about, Mapping) or not {"rollout", "turn", "task", "student_logprobs"} <= about.keys():
            raise InputError(
                "a RolloutSample has no metrics['divopd'] with rollout, turn, task and student_logprobs; the rollout "
                "worker must put it there, because TRL's own rows tell neither (its built-in worker does not)"
            )
        at = np.flatnonzero(sample.completion_mask)
        teacher, scored = _teacher_of(sample, at)
        measured = measure(
            about["student_logprobs"],
            teacher,
            np.ones(len(at), dtype=int),
            scored,
            prompt_tokens=len(sample.input_ids) - len(at),
            prompt_truncated=bool(about.get("prompt_truncated", False)),
        )
        version = self._version(sample.model_version)
        return Row(str(about["rollout"]), int(about["turn"]), str(about["task"]), version, measured, sample)

    def _version(self, model_version: int) -> int:
        """TRL's version as a number of updates; 1 are the weights that this process began with."""
        if model_version == 1:
            return self._begun_at
        return max(0, (self._begun_at // self._sync_steps + model_version - 1) * self._sync_steps)

    def _trained_up_to(self, updates: int) -> None:
        """Forget the rows of updates that are done, and tell the figures of their batches."""
        self._trained = max(self._trained, updates)
        while self._rows and self._first < self._trained * self.pool.settings.batch_size:
            self._rows.popleft()
            self._first += 1
        while self._figures and self._figures[0][0] < self._trained:
            self.metrics_queue.tell(self._figures.popleft()[1])

    # ── state ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def callback(self) -> Any:
        """A callback of the trainer that saves the rows that wait here into every checkpoint that it writes."""
        from transformers import TrainerCallback

        worker = self

        class SaveWaitingRows(TrainerCallback):
            def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                worker.save(Path(args.output_dir) / f"checkpoint-{state.global_step}", updates=state.global_step)

        return SaveWaitingRows()

    def save(self, checkpoint: Path | str, *, updates: int) -> None:
        """Write what waits here into a checkpoint's folder, whole or not at all; `updates` are those it has trained."""
        state = self.state_dict(updates=updates)
        file = Path(checkpoint) / STATE_FILE
        partial = file.with_suffix(".partial")
        partial.write_text(json.dumps(state), encoding="utf-8")
        os.replace(partial, file)

    def load(self, checkpoint: Path | str) -> None:
        """Go on from a checkpoint that `save` wrote into; before `train(resume_from_checkpoint=…)`."""
        file = Path(checkpoint) / STATE_FILE
        if not file.exists():
            raise InputError(f"{file}: no such file; expected a checkpoint that was saved with worker.callback()")
        self.load_state_dict(json.loads(file.read_text(encoding="utf-8")))

    def state_dict(self, *, updates: int | None = None) -> dict[str, Any]:
        """The pool and the rows that are not trained after `updates` updates, with all that the trainer needs of them.

        Without a number: after as many as the trainer has told by its versions.
        """
        self._trained_up_to(self._trained if updates is None else updates)
        waiting = [self._encoded(sample) for sample in self._rows]
        pool = self.pool.state_dict(self._encoded)
        return {"updates": self._trained, "waiting": waiting, "figures": list(self._figures), "pool": pool}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state; the trainer begins with the weights after as many updates as it tells."""
        self._begun_at = self._trained = int(state["updates"])
        self.pool.load_state_dict(state["pool"], self._decoded)
        self._rows = deque(map(self._decoded, state["waiting"]))
        self._first = self._given = self._trained * self.pool.settings.batch_size
        self._figures = deque((int(update), told) for update, told in state["figures"])

    def _encoded(self, sample: Any) -> dict[str, Any]:
        """A row of TRL as JSON: arrays with their type, its version as a number of updates."""
        values = {field.name: getattr(sample, field.name) for field in fields(sample)}
        values["model_version"] = self._version(sample.model_version)
        return {name: _array_as_json(v) if isinstance(v, np.ndarray) else v for name, v in values.items()}

    def _decoded(self, saved: dict[str, Any]) -> Any:
        """The row again, its version as this process's trainer counts: TRL begins with 1 after a resume, too."""
        from trl.experimental.async_distillation.async_rollout_worker import RolloutSample

        values = {name: _array_of_json(v) if _is_array(v) else v for name, v in saved.items()}
        values["model_version"] = 1 + (int(saved["model_version"]) - self._begun_at) // self._sync_steps
        return RolloutSample(**values)


class _Figures:
    """What the trainer drains into its log: the figures of batches, then what the worker measures itself."""

    def __init__(self, others: Any) -> None:
        self._told: queue.Queue[dict[str, float]] = queue.Queue()
        self._others = others

    def tell(self, of_a_batch: dict[str, float]) -> None:
        self._told.put(of_a_batch)

    def get_nowait(self) -> dict[str, Any]:
        try:
            return self._told.get_nowait()
        except queue.Empty:
            return self._others.get_nowait()


def _teacher_of(sample: Any, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The teacher's log probability of each token of the response, and 1 where it is among those that TRL keeps."""
    ids, logprobs = np.asarray(sample.teacher_topk_ids)[at], np.asarray(sample.teacher_topk_logprobs)[at]
    is_token = ids == np.asarray(sample.input_ids)[at, None]
    scored = is_token.any(axis=1)
    chosen = np.where(is_token, logprobs, -np.inf).max(axis=1, initial=-np.inf)
    return np.where(scored, chosen, 0.0), scored.astype(int)


def _array_as_json(array: np.ndarray) -> dict[str, Any]:
    return {"type": array.dtype.name, "values": array.tolist()}


def _array_of_json(saved: dict[str, Any]) -> np.ndarray:
    return np.array(saved["values"], saved["type"])


def _is_array(value: object) -> bool:
    return isinstance(value, dict) and cast(dict[str, Any], value).keys() == {"type", "values"}
