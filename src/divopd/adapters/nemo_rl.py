"""NeMo-RL 0.6: its prompt-group sampler, composed by divopd. Not run with the real package, which wants Python 3.13.

    async_rl:
      sampler: {name: custom, target: "divopd.adapters.nemo_rl:DivOPDSampler", batch_size: 64}

A row is a whole prompt group, so that there is nothing to spread within it: what is left of divopd is the gate, rows
that wait instead of being taken as they come, and the figures. `batch_size` is grpo.num_prompts_per_step. Written for
`PromptGroupSampler` at commit 7ea279a (August 2026).
"""

import logging
from collections.abc import Callable
from itertools import compress
from typing import Any

from divopd.adapters.feeding import compose_if_ready, figures, pool_of_equal_rows
from divopd.adapters.frameworks import require_fit
from divopd.errors import InputError
from divopd.methods import find_method
from divopd.pool import Row, measure

STUDENT, TEACHER, MASK = "generation_logprobs", "teacher_reference_logprobs", "token_mask"
log = logging.getLogger("nemo_rl.divopd")  # below `nemo_rl`, whose level NRL_LOG_LEVEL sets


class DivOPDSampler:
    """Chooses the prompt groups of a training step from those that NeMo-RL's buffer has ready.

    The buffer keeps the groups, and its checkpoint brings them back; that they had waited is forgotten then. NeMo-RL
    logs nothing of a sampler: the figures of the last batch are in `metrics`, and in its log at INFO.
    """

    def __init__(self, buffer: Any, *, batch_size: int, method: str = "divopd", **settings: Any) -> None:
        require_fit("nemo-rl")
        self.pool = pool_of_equal_rows("NeMo-RL", method, batch_size=batch_size, **settings)
        self.metrics: dict[str, float] = {}
        self._gated = find_method(method).composer.gated
        self._buffer = buffer
        self._next: list[Any] = []  # composed groups that were not asked for yet
        self._lost: list[Any] = []  # groups that are still in the buffer and will not be trained

    async def admit(self, *, trainer_version_fn: Callable[[], int]) -> int | None:
        """Never hold generation back: what is too old falls out."""
        del trainer_version_fn

    async def select(
        self, *, current_train_weight: int, min_prompt_groups: int, max_prompt_groups: int
    ) -> tuple[Any, int]:
        """Up to `max_prompt_groups` of the composed batch; (None, 0) as long as none can be composed."""
        del min_prompt_groups  # a batch is composed whole
        await self._read()
        if not self._next:
            batch = compose_if_ready(self.pool, current_train_weight)
            if batch is not None:
                self._next = [row.payload for row in batch.rows]
                self._lost += [row.payload for row, _ in batch.dropped]
                self.metrics = figures(batch)
                log.info("update %d: %s", current_train_weight, self.metrics)
        chosen, self._next = self._next[:max_prompt_groups], self._next[max_prompt_groups:]
        if not chosen:
            return None, 0
        await self._buffer.remove(self._places(chosen), remove_in_dp=False)
        return chosen[0].concat(*chosen[1:]), len(chosen)

    async def evict(self, *, current_train_weight: int) -> int:
        """Clear what will not be trained; how many groups that were, so that others may be generated."""
        oldest = current_train_weight - self.pool.settings.max_staleness
        ready = zip(self._buffer.meta_list, self._buffer.start_weight_list, self._buffer.ready_list, strict=True)
        waiting = {id(meta) for meta in self._next}
        stale = [meta for meta, weight, is_ready in ready if is_ready and weight < oldest and id(meta) not in waiting]
        places = self._places([*stale, *self._lost])
        self._lost = []
        return await self._buffer.remove(places, remove_in_dp=True) if places else 0

    def should_abort_inflight(self, *, start_weight_version: int, current_train_weight: int) -> bool:
        return start_weight_version < current_train_weight - self.pool.settings.max_staleness

    @property
    def is_on_policy(self) -> bool:
        return self.pool.settings.max_staleness == 0

    def required_buffer_capacity(self, groups_per_step: int) -> int:
        """At least a batch; asked once at the beginning, so that a wrong `batch_size` is told there."""
        if groups_per_step != self.pool.settings.batch_size:
            raise InputError(
                f"async_rl.sampler.batch_size is {self.pool.settings.batch_size}; expected "
                f"{groups_per_step}, grpo.num_prompts_per_step"
            )
        return groups_per_step

    def set_dispatch_index(self, resume_from_step: int) -> None:
        """Nothing is counted here."""

    async def _read(self) -> None:
        """Put the groups that became ready into the pool; one that the gate rejects is cleared at once."""
        slots = zip(self._buffer.meta_list, self._buffer.start_weight_list, self._buffer.ready_list, strict=True)
        ready = [(meta, weight) for meta, weight, is_ready in slots if is_ready]  # the buffer may change while we wait
        for meta, weight in ready:
            group = meta.sample_ids[0].rpartition("_g")[0]
            if self.pool.fate(group, 0) is None:
                row = Row(group, 0, group, weight, await self._measured(meta), meta)
                self.pool.put([row])
                if self._gated and row.measured.reason is not None:
                    self._lost.append(meta)

    async def _measured(self, meta: Any) -> Any:
        """A group measured as one row: the tokens of its responses after one another."""
        if TEACHER not in (meta.fields or ()):
            raise InputError(
                f"a prompt group has no field {TEACHER!r}, only {', '.join(meta.fields or ())}; put the teacher's log "
                "probabilities of its tokens beside them when a group is committed, or use a sampler of NeMo-RL"
            )
        columns = [STUDENT, TEACHER, MASK]
        data = await self._buffer._call_dp(
            "get_samples", sample_ids=meta.sample_ids, partition_id=meta.partition_id, select_fields=columns
        )
        student, teacher, mask = ([float(v) for row in _by_row(data[name]) for v in row] for name in columns)
        if len(student) == len(teacher) == len(mask):  # leave the prompts out; otherwise the gate says what is wrong
            student, teacher = (list(compress(values, mask)) for values in (student, teacher))
        trained = int(sum(mask))
        return measure(student, teacher, [1] * trained, prompt_tokens=len(mask) - trained, response_tokens=trained)

    def _places(self, metas: list[Any]) -> list[int]:
        wanted = {id(meta) for meta in metas}
        return [place for place, meta in enumerate(self._buffer.meta_list) if id(meta) in wanted]


def _by_row(column: Any) -> Any:
    """A jagged tensor row by row."""
    return column.unbind() if hasattr(column, "unbind") else column
