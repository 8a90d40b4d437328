"""TRL trains, divopd composes: `AsyncDistillationTrainer.train()` on a CPU, with batches of divopd.

    python examples/trl/train.py [UPDATES] [--out FOLDER] [--resume CHECKPOINT]

TRL's own loop asks for rows, takes the optimizer steps, publishes weights, logs and writes checkpoints. Between it and
the rollouts stands `divopd.adapters.trl`. The rollout worker below is what you would replace by yours: it plays
ALFWorld-small with the embedded student and lets the embedded teacher score, in the same process and only when TRL
waits for rows; a real one goes on beside the trainer, in processes of its own.
"""

import argparse
import json
import os
import queue
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import numpy as np
import torch
from datasets import Dataset
from trl.experimental.async_distillation import AsyncDistillationConfig, AsyncDistillationTrainer
from trl.experimental.async_distillation import async_distillation_trainer as trl_module
from trl.experimental.async_distillation.async_rollout_worker import RolloutSample

from divopd.adapters.trl import DivOPDRolloutWorker
from divopd.environments import make_environment, tasks
from divopd.explorer import Acting, Start, play, rows_of
from divopd.models.model_files import model_folder
from divopd.models.transformers_policy import TransformersPolicy
from divopd.prompts import Codec, style_for
from divopd.teacher import score_rollouts
from divopd.turns import Turn

ENVIRONMENT = "alfworld-small"
HORIZON = 15  # turns of a rollout
ROLLOUTS = 8  # played each time that rows are missing
BATCH = 16  # rows of an update


class PlayingWorker:
    """A rollout worker of TRL, and its weight transfer: both sides of the explorer are in this process."""

    def __init__(self, first_rollout: int = 0) -> None:
        self.rollout_buffer = self
        self.metrics_queue: queue.Queue[dict[str, float]] = queue.Queue()
        self.student = TransformersPolicy.load(model_folder("embedded:student"))
        self.teacher = TransformersPolicy.load(model_folder("embedded:teacher"))
        style = style_for(ENVIRONMENT, answer="terse", actions="unlisted", max_prompt_tokens=512)
        self.acting = Acting(style, Codec(self.student.tokenizer), temperature=1.0, max_response_tokens=24, seed=0)
        self.environments = [make_environment(ENVIRONMENT) for _ in range(ROLLOUTS)]
        self.tasks = tasks(ENVIRONMENT, "train")
        self.numbers = count(first_rollout)
        self.model_version = 0
        self.rows: queue.SimpleQueue[RolloutSample] = queue.SimpleQueue()

    # ── what TRL asks of a rollout worker ─────────────────────────────────────────────────────────────────────────

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def check_health(self, stale_after_s: float) -> None: ...

    def update_model_version(self, model_version: int) -> None:
        self.model_version = model_version

    def qsize(self) -> int:
        return self.rows.qsize()

    def get(self, timeout: float | None = None) -> RolloutSample:
        """The next row; whoever is ready to wait makes the explorer play."""
        if timeout != 0 and self.rows.empty():
            self.play()
        return self.rows.get(block=False)

    # ── what TRL asks of a weight transfer ────────────────────────────────────────────────────────────────────────

    def init_weight_transfer(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def destroy(self) -> None: ...

    def send_weights(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        """The explorer's student takes the weights that TRL has trained."""
        mine = dict(self.student.model.named_parameters())
        with torch.no_grad():
            for name, values in iterator:
                mine[name].copy_(values)

    # ── the explorer ──────────────────────────────────────────────────────────────────────────────────────────────

    def play(self) -> None:
        """Play some rollouts, let the teacher score them, and queue a row a turn."""
        starts = [Start(n, self.tasks[n % len(self.tasks)], depth=HORIZON) for n in islice(self.numbers, ROLLOUTS)]
        played = play(starts, self.acting, student=self.student, environments=self.environments)
        rollouts = [rows_of(one, name=f"rollout-{one.start.number}", version=0) for one in played]
        for rollout in score_rollouts(self.teacher, [rollout for rollout in rollouts if rollout]):
            for turn in rollout.turns:
                self.rows.put(as_trl(turn, model_version=self.model_version))
        self.metrics_queue.put({"rollout/success": sum(one.success for one in played) / len(played)})


def as_trl(turn: Turn, *, model_version: int) -> RolloutSample:
    """A turn as TRL's row: the teacher's score of the token that was sampled, and what TRL has no field for."""
    ids = np.array([*turn.prompt_ids, *turn.response_ids])
    first = len(turn.prompt_ids)
    mask = np.zeros(len(ids), dtype=np.int64)
    teacher_ids, teacher = np.full((len(ids), 1), -1), np.full((len(ids), 1), -np.inf, dtype=np.float32)
    if turn.action_mask is not None and turn.teacher_logprobs is not None:
        mask[first:] = turn.action_mask
        teacher_ids[first:, 0], teacher[first:, 0] = ids[first:], turn.teacher_logprobs
    chosen = mask[first:].astype(bool)
    about: dict[str, Any] = {
        "rollout": turn.rollout,
        "turn": turn.turn,
        "task": turn.task,
        "student_logprobs": np.asarray(turn.student_logprobs)[
            chosen
        ].tolist(),  # of the tokens that completion_mask has
        "prompt_truncated": turn.prompt_truncated,
    }
    return RolloutSample(
        prompt=[],
        completion=[],
        input_ids=ids,
        completion_mask=mask,
        teacher_topk_ids=teacher_ids,
        teacher_topk_logprobs=teacher,
        model_version=model_version,
        metrics={"divopd": about},
        teacher_id="default",
        prompt_id=int(turn.rollout.rpartition("-")[2]),
    )


def make_trainer(worker: PlayingWorker, composing: DivOPDRolloutWorker, *, updates: int, out: Path) -> Any:
    """TRL's trainer. One row at a time and BATCH of them an update, because only FlashAttention can pack rows."""
    # the only thing of TRL that is replaced: it asks CUDA for the GPU's speed, also where there is none
    trl_module.get_peak_flops_per_device = lambda accelerator, dtype: None  # pyright: ignore[reportPrivateImportUsage]
    args = AsyncDistillationConfig(
        output_dir=str(out),
        model_init_kwargs={"attn_implementation": "sdpa"},  # instead of FlashAttention
        token_budget=0,  # count rows: the default asks a vLLM server how long they may be
        per_device_train_batch_size=1,
        gradient_accumulation_steps=BATCH,
        max_steps=updates,
        learning_rate=3e-4,
        lr_scheduler_type="constant",
        beta=1.0,  # reverse KL at the sampled token, which is all that the teacher scored
        max_staleness=composing.pool.settings.max_staleness,
        logging_steps=1,
        save_steps=max(1, updates // 2),
        bf16=False,
        use_cpu=True,
        activation_checkpointing=False,
        report_to=[],
        disable_tqdm=True,
    )
    return AsyncDistillationTrainer(
        model=str(model_folder("embedded:student")),
        args=args,
        train_dataset=Dataset.from_dict({"prompt": worker.tasks}),  # TRL wants one; tasks come from the worker
        rollout_worker=composing,
        weight_transfer=worker,
        callbacks=[composing.callback()],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="TRL trains, divopd composes")
    parser.add_argument("updates", nargs="?", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("runs/trl"))
    parser.add_argument("--resume", type=Path, help="a checkpoint of TRL's in which the worker has saved its rows")
    asked = parser.parse_args()
    worker = PlayingWorker(first_rollout=0 if asked.resume is None else 1_000_000)
    composing = DivOPDRolloutWorker(worker, batch_size=BATCH, method="divopd", cap=2, pool_multiplier=8)
    if asked.resume is not None:
        composing.load(asked.resume)
    trainer = make_trainer(worker, composing, updates=asked.updates, out=asked.out)
    trainer.train(resume_from_checkpoint=None if asked.resume is None else str(asked.resume))
    for line in trainer.state.log_history:
        print(json.dumps({name: line[name] for name in ("step", "loss", "jsd", *_ours(line)) if name in line}))


def _ours(line: dict[str, Any]) -> list[str]:
    return [name for name in line if name.startswith(("divopd/", "rollout/"))]


if __name__ == "__main__":
    main()
