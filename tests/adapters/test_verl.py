"""The adapter in a real verl: rows in a real TransferQueue, asked for by the trainer's own step."""

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest

if find_spec("verl") is None:
    pytest.skip("for want of verl", allow_module_level=True)

import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf

with warnings.catch_warnings():  # verl imports what Ray calls old
    warnings.simplefilter("ignore")
    from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from divopd.errors import InputError
from divopd.turns import Rollout, Turn, group_into_rollouts
from foreign_turns import BATCH_SIZE, figures_of, recorded_turns, replayed

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # warnings of Ray and verl are not ours


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with TemporaryDirectory(prefix="ray") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(address="local", include_dashboard=False, num_cpus=2, _temp_dir=folder, log_to_driver=False)
        tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
        yield
        tq.close()
        ray.shutdown()


@pytest.fixture(autouse=True)
def empty_queue() -> Iterator[None]:
    yield
    clear()


def clear() -> None:
    for partition, rows in (tq.kv_list() or {}).items():
        if rows:
            tq.kv_clear(keys=list(rows), partition_id=partition)


class Trainer(PPOTrainer):
    """verl's trainer with its own `step` and buffer; what needs a GPU, it leaves out."""

    def __init__(
        self, *, more: Callable[[int], None] | None = None, parameter_sync_step: int = 1, **settings: Any
    ) -> None:
        sampler = {
            "max_off_policy_threshold": 1,
            "max_off_policy_strategy": "drop",
            "custom_sampler": {"path": "pkg://divopd.adapters.verl", "name": "DivOPDReplayBuffer"},
            "sampler_kwargs": {"batch_size": BATCH_SIZE, **settings},
        }
        mode = {"parameter_sync_step": parameter_sync_step}
        config = {
            "data": {"train_batch_size": 4},
            "trainer": {"critic_warmup": 0, "v1": {"sampler": sampler, "separate_async": mode}},
            "actor_rollout_ref": {"rollout": {"temperature": 1.0}},
        }
        self.config = OmegaConf.create(config)
        self.trainer_mode, self.parameter_sync_step = "separate_async", parameter_sync_step
        self.use_reference_policy = self.use_critic = False
        self.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=[])
        self.more = more
        self.trained: list[list[str]] = []
        self.replay_buffer = self._build_replay_buffer()
        self.replay_buffer.poll_interval = 0.01

    def _add_prompts_to_generate(self, num_prompts: int) -> int:
        if self.more is None:
            raise TimeoutError("nothing is being generated")
        self.more(num_prompts)
        return num_prompts

    def prepare_step(self) -> dict:
        return {}

    def _balance_batch(self, batch: Any, metrics: Any, **_: Any) -> Any:
        return upsample_batch_to_divisible_size(batch, BATCH_SIZE, eos_token_id=0)

    def _compute_old_log_prob(self, batch: Any, metrics: Any) -> Any:
        return batch

    _compute_advantage = _compute_old_log_prob

    def _update_actor(self, batch: Any, metrics: Any) -> Any:
        self.trained.append(list(batch.keys))
        return batch

    def on_sample_end(self) -> None: ...

    def on_step_end(self) -> None: ...

    def update(self, update: int) -> tuple[list[list], dict[str, float]]:
        """A step as verl's `fit` makes it, up to clearing its rows; which rows it trained, and its metrics."""
        self.global_steps, metrics = update + 1, {}
        batch = self.step(metrics, {})
        tq.kv_clear(keys=batch.keys, partition_id=batch.partition_id)
        return keys(self.trained[-1]), metrics


def keys(names: list[str]) -> list[list]:
    return [[name.rpartition("_")[0], int(name.rpartition("_")[2])] for name in names]


def turns_of_verl() -> list[Turn]:
    """Recorded turns, with rollouts as verl names them: `{uid}_{session}`."""
    turns = recorded_turns()
    return [
        replace(turn, rollout=f"{turn.task.replace('/', '-')}_0", task=turn.task.replace("/", "-")) for turn in turns
    ]


def named(
    turns: list[Turn], name: str, *, version: int | None = None, action_mask: list[int] | None = None
) -> list[Turn]:
    """The same turns as others."""
    return [
        replace(
            turn,
            rollout=f"{name}{turn.rollout}",
            task=f"{name}{turn.task}",
            version=turn.version if version is None else version,
            action_mask=turn.action_mask if action_mask is None else action_mask[: len(turn.response_ids)],
        )
        for turn in turns
    ]


def put(turns: list[Turn], *, scored: bool = True) -> None:
    """As verl's agent loop does: the rows of a rollout, then its prompt as finished."""
    for rollout in group_into_rollouts(turns):
        put_rollout(rollout, scored=scored)


def put_rollout(rollout: Rollout, *, scored: bool, status: str = "finished") -> None:
    fields = [fields_of(turn, scored=scored) for turn in rollout.turns]
    tags = [
        {
            "status": "success",
            "seq_len": turn.tokens,
            "min_global_steps": turn.version,
            "max_global_steps": turn.version,
        }
        for turn in rollout.turns
    ]
    names = [f"{turn.rollout}_{turn.turn}" for turn in rollout.turns]
    tq.kv_batch_put(keys=names, partition_id="train", fields=list_of_dict_to_tensordict(fields), tags=tags)
    prompt = {"is_prompt": True, "status": status, "global_steps": rollout.version + 1}
    tq.kv_put(key=rollout.task, partition_id="train", tag=prompt)


def fields_of(turn: Turn, *, scored: bool = True) -> dict[str, torch.Tensor]:
    """verl has no row without scores: where the recorded turn has none, no token of it is trained."""
    prompt, size = len(turn.prompt_ids), len(turn.response_ids)
    fields = {
        "prompts": torch.tensor(turn.prompt_ids),
        "responses": torch.tensor(turn.response_ids),
        "response_mask": torch.tensor(turn.action_mask),
        "rollout_log_probs": torch.tensor(turn.student_logprobs, dtype=torch.float32),
    }
    if scored:
        whole = torch.full((prompt + size, 1), math.nan)  # of a token before: what must not be looked at is NaN
        whole[prompt - 1 : -1, 0] = torch.tensor(turn.teacher_logprobs or [0.0] * size)
        fields |= {"teacher_logprobs": whole, "teacher_ids": torch.zeros((prompt + size, 1), dtype=torch.int32)}
    return fields


@pytest.mark.parametrize("method", ["divopd", "vanilla"])
def test_verl_trains_the_batches_of_replay_and_logs_their_figures(method: str, tmp_path: Path) -> None:
    """Step by step the rows that `divopd replay` selects, with figures in verl's metrics; no row stays behind."""
    turns, trainer = turns_of_verl(), Trainer(method=method)
    for update, expected in enumerate(replayed(turns, tmp_path, method)):
        put([turn for turn in turns if turn.available_at == update])
        selected, metrics = trainer.update(update)
        assert selected == expected["selected"]
        figures = figures_of(turns, expected["selected"], update=update)
        assert {name: metrics[f"divopd/{name}"] for name in figures} == pytest.approx(figures)
        assert (metrics["divopd/pending"], metrics["divopd/stale"]) == (expected["pending"], expected["stale"])
    rows = tq.kv_list("train")["train"]
    held = [name for name, tag in rows.items() if not tag.get("is_prompt")]
    assert len(held) == len(trainer.replay_buffer.pool), "trained and dropped rows are cleared"
    assert {name.split("_")[0] for name in held} == {name for name, tag in rows.items() if tag.get("is_prompt")}


def test_a_restart_in_the_middle_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    """TransferQueue's checkpoint, which verl writes and reads, has the pool's state: a new trainer trains no row again.

    verl saves before it clears the rows of the step, so that they come back with the checkpoint.
    """
    turns, trainer = turns_of_verl(), Trainer()
    for update, expected in enumerate(replayed(turns, tmp_path, "divopd")):
        put([turn for turn in turns if turn.available_at == update])
        trainer.global_steps = update + 1
        trainer.step({}, {})
        assert keys(trainer.trained[-1]) == expected["selected"]
        tq.save_checkpoint(tmp_path / "transfer_queue")
        clear()
        tq.load_checkpoint(tmp_path / "transfer_queue")
        trainer = Trainer()
    assert len(tq.kv_list()["divopd"]["pool"]["state"]) < 100_000


def test_no_row_is_lost_when_the_queue_runs_short() -> None:
    """Too few rows are waited for; where nothing is being generated, prompts are asked for. All rows are trained."""
    turns = [turn for turn in turns_of_verl() if turn.version == 0 and not turn.prompt_truncated]
    asked: list[int] = []

    def more(prompts: int) -> None:
        asked.append(prompts)
        put(turns[10 * len(asked) : 10 * len(asked) + 10])

    put(turns[:10])
    trainer = Trainer(more=more)
    selected, metrics = trainer.update(0)
    assert asked == [4], "as many as verl's batch has prompts"
    assert len(selected) == BATCH_SIZE
    assert metrics["divopd/pending"] == 20 - BATCH_SIZE
    again, _ = trainer.update(1)
    assert {tuple(key) for key in selected + again} >= {turn.key for turn in turns[:20]}


def test_a_short_wait_that_fails_loses_nothing() -> None:
    """What was read is still in the pool, and in TransferQueue, when the wait ends in an error."""
    turns = [turn for turn in turns_of_verl() if turn.version == 0 and not turn.prompt_truncated]
    put(turns[:10])
    trainer = Trainer()
    with pytest.raises(TimeoutError):
        trainer.update(0)
    put(turns[10:20])
    selected, metrics = trainer.update(0)
    assert (len(selected), metrics["divopd/pending"]) == (BATCH_SIZE, 20 - BATCH_SIZE)


def test_failed_groups_are_replaced() -> None:
    """As in verl's own buffer: where a session failed, the group goes, and another prompt comes."""
    turns = [turn for turn in turns_of_verl() if turn.version == 0 and not turn.prompt_truncated]
    put(turns[:BATCH_SIZE])
    put_rollout(group_into_rollouts(named(turns[:3], "failed"))[0], scored=True, status="failure")
    asked: list[int] = []
    selected, metrics = Trainer(more=asked.append).update(0)
    assert sorted(selected) == sorted([*turn.key] for turn in turns[:BATCH_SIZE])
    assert (asked, metrics["training/rollout_failure/evicted_samples"]) == ([1], 1)
    assert not [name for name in tq.kv_list("train")["train"] if name.startswith("failed")]


def test_dead_rows_of_verl_are_no_rows() -> None:
    """What verl pads a short batch with is never read, and a row whose tokens are all masked is gated."""
    turns = [turn for turn in turns_of_verl() if turn.version == 0 and not turn.prompt_truncated]
    put(named(turns[:10], "dead", action_mask=[0] * 30) + turns[:6])
    trainer = Trainer(pool_multiplier=1)  # the pool is full, so that the batch is short
    selected, metrics = trainer.update(0)
    padding = [rollout for rollout, _ in selected if rollout.startswith("pad")]
    assert len(padding) == BATCH_SIZE - metrics["divopd/rows"] > 0
    assert metrics["divopd/dead_share"] == 0
    assert metrics["divopd/invalid_no_action_mask"] == 10
    assert all(rollout.startswith(("pad", "0-")) for rollout, _ in selected)


def test_vanished_scores_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """No row has the teacher's scores: verl lost them, and the error says why. Only some have not: a warning."""
    turns = [turn for turn in turns_of_verl() if turn.version == 0 and not turn.prompt_truncated]
    put(turns[:20], scored=False)
    with pytest.raises(
        InputError, match="only the last output is scored, and a key that the first one lacks is dropped"
    ):
        Trainer().update(0)
    put(turns[20:60])
    Trainer().update(0)
    assert "20 of 60 rows have no teacher_logprobs" in caplog.text


def test_the_best_few_tokens_of_a_teacher() -> None:
    """With top-k scores a token counts where the response's own token is among them."""
    from divopd.adapters.verl import _measured

    turn = next(turn for turn in turns_of_verl() if not turn.prompt_truncated)
    fields, prompt = fields_of(turn), len(turn.prompt_ids)
    wide = torch.full((turn.tokens, 3), -9.0)
    ids = torch.full((turn.tokens, 3), -1, dtype=torch.int32)
    wide[:, 1] = fields["teacher_logprobs"][:, 0]
    ids[prompt - 1 : -1, 1] = torch.tensor(turn.response_ids, dtype=torch.int32)
    ids[prompt - 1, 1] = -1  # the first token is not among the best
    student, mask = fields["rollout_log_probs"], fields["response_mask"]
    measured = _measured(fields["prompts"], fields["responses"], mask, student, wide, ids)
    assert turn.student_logprobs is not None
    assert turn.teacher_logprobs is not None
    rest = list(zip(turn.student_logprobs, turn.teacher_logprobs, strict=True))[1:]
    assert measured.disagreement == pytest.approx(sum(s - t for s, t in rest))
    assert measured.valid_tokens == len(rest)


def test_several_updates_a_step() -> None:
    """With parameter_sync_step 2 a step trains two batches of the same weights; versions are counted in updates."""
    turns = [turn for turn in turns_of_verl() if turn.version == 0 and not turn.prompt_truncated]
    put(turns[:40])
    trainer = Trainer(parameter_sync_step=2)
    trainer.update(0)
    assert len({name for batch in trainer.trained for name in batch}) == 2 * BATCH_SIZE
    trainer.global_steps = 2
    put(named(turns[:30], "later", version=1))
    metrics: dict[str, float] = {}
    trainer.step(metrics, {})
    assert metrics["divopd/age"] == pytest.approx(0.5 + 8 / 16), (
        "8 rows of version 0 at update 2, the rest of version 2"
    )


def test_wrong_settings_are_told() -> None:
    """A batch size must be said, unknown settings and methods with row weights are refused, in a line."""
    trainer = Trainer()
    trainer.config.trainer.v1.sampler.sampler_kwargs = {}
    with pytest.raises(InputError, match="sampler_kwargs has no batch_size"):
        trainer._build_replay_buffer()
    with pytest.raises(InputError, match="caps"):
        Trainer(caps=4)
    with pytest.raises(InputError, match="verl has no place for their weights"):
        Trainer(method="turnopd")
