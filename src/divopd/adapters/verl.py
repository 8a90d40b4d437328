"""verl 0.9: the replay buffer of its asynchronous trainers, composed by divopd.

    trainer.v1.sampler.custom_sampler.path=pkg://divopd.adapters.verl
    trainer.v1.sampler.custom_sampler.name=DivOPDReplayBuffer
    +trainer.v1.sampler.sampler_kwargs.batch_size=64

A row is an output of an agent loop: its key `{uid}_{session}_{index}` has task, rollout and turn. `batch_size` counts
rows, where verl's own counts prompts; verl fills up to a multiple of ppo_mini_batch_size x rollout.n with dead rows.
"""

# pyright takes transfer_queue for the file beside this one
# pyright: reportAttributeAccessIssue=false, reportMissingImports=false

import json
import logging
from itertools import groupby
from typing import Any

from divopd.adapters.feeding import compose_if_ready, figures, pool_of_equal_rows
from divopd.adapters.frameworks import require_fit, unusable
from divopd.errors import InputError
from divopd.pool import Batch, Row, measure

try:
    import transfer_queue as tq
    from transfer_queue import KVBatchMeta
    from verl.trainer.ppo.v1.replay_buffer import ReplayBufferAsync
except ImportError as error:
    raise unusable("verl", error) from None

STATE = "divopd"  # a partition of our own in TransferQueue: its checkpoint brings the pool's state back
FIELDS = ["prompts", "responses", "response_mask", "rollout_log_probs", "teacher_logprobs", "teacher_ids"]
UNSCORED = (
    "no row has teacher_logprobs; turn distillation on. An agent loop with several outputs a session loses them in "
    "verl 0.9: only the last output is scored, and a key that the first one lacks is dropped for all. Score every "
    "output in AgentLoopWorkerTQ._agent_loop_postprocess"
)
UNSURE = "no row has rollout_log_probs; set actor_rollout_ref.rollout.calculate_log_probs=True"
log = logging.getLogger(__name__)


class DivOPDReplayBuffer(ReplayBufferAsync):
    """verl's buffer with rows chosen one by one. Rows stay in TransferQueue until they are trained or fall out.

    Staleness is the pool's: verl's `max_off_policy_threshold` drops nothing here. The pool's state lies in
    TransferQueue, so that a resumed run goes on as if it had not stopped.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        require_fit("verl")
        super().__init__(*args, **kwargs)
        settings = {"method": "divopd", **self.sampler_kwargs}
        if "batch_size" not in settings:
            raise InputError(
                "trainer.v1.sampler.sampler_kwargs has no batch_size; expected the rows of an update: a multiple of "
                "ppo_mini_batch_size x rollout.n"
            )
        self.pool = pool_of_equal_rows("verl", **settings)
        self._updates_a_step = int(self.trainer_config.get("parameter_sync_step", 1))
        self._step, self._calls = -1, 0
        self._restored = False
        self._scored = False  # a row with teacher_logprobs was seen

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        """The rows of the next update, and its figures. It waits until there are enough; `batch_size` counts prompts.

        Where too few come although nothing is being generated, that many more prompts are asked for.
        """
        if partition_id == "val":
            return super().sample(global_steps, partition_id, batch_size)
        update, metrics, logged_at = self._update(global_steps), {}, 0.0
        while True:
            self._sync_metadata_from_transfer_queue()
            metrics |= self._replace_failed(global_steps, partition_id)
            self._restore_once()
            self._read(partition_id)
            batch = compose_if_ready(self.pool, update)
            if batch is not None:
                meta = self._settle(partition_id, batch)
                if batch.rows:
                    return meta, metrics | figures(batch)
                continue
            in_flight = self.pending_keys[partition_id] | self.running_keys[partition_id]
            if not in_flight and self.refill_fn is not None:
                self.refill_fn(batch_size)
            logged_at = self._wait_for_next_poll(partition_id, logged_at)

    def _update(self, global_steps: int) -> int:
        """verl counts steps from 1, and a step may have several updates with the same weights in the explorers."""
        self._step, self._calls = global_steps, self._calls + 1 if self._step == global_steps else 0
        return (global_steps - 1) * self._updates_a_step + self._calls

    def _stale_terminal_keys(self, global_steps: int, partition_id: str) -> set[str]:
        """None: rows fall out one by one, and the pool says which."""
        return set()

    def _replace_failed(self, global_steps: int, partition_id: str) -> dict[str, Any]:
        """Groups in which a session failed go, and as many prompts come, as in verl's own buffer."""
        reasons = self._terminal_eviction_reasons(global_steps, partition_id)
        evicted, _, _, metrics = self._evict_terminal_groups(global_steps, partition_id, reasons)
        if evicted and self.refill_fn is not None:
            self.refill_fn(len(evicted))
        return metrics

    # ── rows in ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _read(self, partition_id: str) -> None:
        """Put the rows of finished groups into the pool that are not in it; what verl pads with belongs to no group."""
        tags, finished = self.partitions[partition_id], self.finished_keys[partition_id]
        new = [key for key in tags if _uid(key) in finished and self.pool.fate(*_rollout_and_turn(key)) is None]
        rows: list[Row] = []
        for _, keys in groupby(new, lambda key: _rollout_and_turn(key)[0]):
            rows += self._rows_of_session(partition_id, list(keys), tags)
        unscored = sum(row.measured.reason == "no_teacher_logprobs" for row in rows)
        if unscored and not self._scored and unscored == len(rows):
            raise InputError(UNSCORED)
        if unscored and unscored < len(rows):
            log.warning("%d of %d rows have no teacher_logprobs and will not be trained", unscored, len(rows))
        if rows and all(row.measured.reason == "no_student_logprobs" for row in rows):
            raise InputError(UNSURE)
        self._scored |= unscored < len(rows)
        self.pool.put(rows)

    def _rows_of_session(self, partition_id: str, keys: list[str], tags: dict[str, dict[str, Any]]) -> list[Row]:
        """The rows of one rollout. One by one: TransferQueue drops a field for all keys that are asked for together."""
        data = tq.kv_batch_get(keys=keys, partition_id=partition_id, select_fields=FIELDS)
        columns = {name: data[name].unbind() if name in data else [None] * len(keys) for name in FIELDS}
        rows: list[Row] = []
        for at, key in enumerate(keys):
            rollout, turn = _rollout_and_turn(key)
            version = tags[key].get("min_global_steps")
            version = tags[key]["global_steps"] - 1 if version is None else version
            measured = _measured(*(columns[name][at] for name in FIELDS))
            rows.append(Row(rollout, turn, _uid(key), int(version) * self._updates_a_step, measured))
        return rows

    # ── rows out ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _settle(self, partition_id: str, batch: Batch) -> KVBatchMeta:
        """Clear what fell out, and prompts of which no row waits; keep the pool's state beside the rows."""
        tags = self.partitions[partition_id]
        chosen, dropped = ([_key(row) for row in rows] for rows in (batch.rows, [row for row, _ in batch.dropped]))
        waiting = {_uid(key) for key in tags if self._waits(key)}
        done = {_uid(key) for key in (*chosen, *dropped)} - waiting
        done &= self.finished_keys[partition_id]
        gone = [*done, *(key for key in dropped if key in tags)]
        if gone:
            tq.kv_clear(partition_id=partition_id, keys=gone)
        tq.kv_put(key="pool", partition_id=STATE, tag={"state": json.dumps(self.pool.state_dict())})
        return KVBatchMeta(partition_id=partition_id, keys=chosen, tags=[tags[key] for key in chosen])

    def _waits(self, key: str) -> bool:
        fate = self.pool.fate(*_rollout_and_turn(key))
        return fate is not None and fate.kind in ("queued", "pending")

    def _restore_once(self) -> None:
        """Go on from the state that came back with TransferQueue's checkpoint, if there is one."""
        saved = self.partitions.get(STATE, {}).get("pool")
        if saved is not None and not self._restored:
            self.pool.load_state_dict(json.loads(saved["state"]))
        self._restored = True


def _uid(key: str) -> str:
    return key.split("_")[0]


def _rollout_and_turn(key: str) -> tuple[str, int]:
    rollout, _, turn = key.rpartition("_")
    return rollout, int(turn)


def _key(row: Row) -> str:
    return f"{row.rollout}_{row.turn}"


def _measured(prompts: Any, responses: Any, mask: Any, student: Any, teacher: Any, teacher_ids: Any) -> Any:
    """The teacher's scores are of the whole sequence, and each lies one token before the one that it is of."""
    first, size, scored = len(prompts) - 1, len(responses), None
    if teacher is not None:
        teacher = teacher[first : first + size]
        if teacher.shape[-1] > 1:  # the best few tokens: the response's own may be missing
            is_token = teacher_ids[first : first + size] == responses[:, None]
            scored = is_token.any(-1)
            teacher = (teacher * is_token).sum(-1)
        else:
            teacher = teacher[:, 0]
    return measure(student, teacher, mask, scored, prompt_tokens=len(prompts), response_tokens=size)
