"""The sampler for NeMo-RL, against a copy of the shape of its buffer: NeMo-RL wants Python 3.13 and GPUs."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from divopd.adapters.nemo_rl import DivOPDSampler
from divopd.errors import InputError
from divopd.turns import Turn
from foreign_turns import BATCH_SIZE, UPDATES, figures_of, recorded_turns, replayed

COLUMNS = ["generation_logprobs", "teacher_reference_logprobs", "token_mask"]


@dataclass(eq=False)
class KVBatchMeta:
    """The handle of a prompt group."""

    sample_ids: list[str]
    fields: list[str] = field(default_factory=lambda: [*COLUMNS])
    partition_id: str = "train"

    def concat(self, *others: "KVBatchMeta") -> "KVBatchMeta":
        return KVBatchMeta([name for one in (self, *others) for name in one.sample_ids])


class TQReplayBuffer:
    """What NeMo-RL's buffer shows a sampler: parallel lists, a removal, and a way to the data."""

    def __init__(self) -> None:
        self.meta_list: list[KVBatchMeta | None] = []
        self.start_weight_list: list[int] = []
        self.ready_list: list[bool] = []
        self.data: dict[str, dict[str, list[float]]] = {}

    def commit(self, turn: Turn, *, fields: list[str] = COLUMNS) -> None:
        """A group of one row; every token of the sequence has an entry."""
        name, prompt = f"{group_of(turn)}_g0", [0.0] * len(turn.prompt_ids)
        values = (turn.student_logprobs or (), turn.teacher_logprobs or [0.0] * len(turn.response_ids))
        columns = [*values, turn.action_mask or ()]
        self.data[name] = {key: [*prompt, *map(float, column)] for key, column in zip(COLUMNS, columns, strict=True)}
        self.meta_list.append(KVBatchMeta([name], list(fields)))
        self.start_weight_list.append(turn.version)
        self.ready_list.append(True)

    def reserve(self, weight: int) -> None:
        self.meta_list.append(None)
        self.start_weight_list.append(weight)
        self.ready_list.append(False)

    async def remove(self, idxs: list[int], remove_in_dp: bool) -> int:
        for place in sorted(idxs, reverse=True):
            meta = self.meta_list[place]
            assert meta is not None, "a slot that is not ready must not be removed"
            for name in meta.sample_ids if remove_in_dp else ():
                del self.data[name]
            for kept in (self.meta_list, self.start_weight_list, self.ready_list):
                del kept[place]
        return len(idxs)

    async def _call_dp(self, name: str, *, sample_ids: list[str], partition_id: str, select_fields: list[str]) -> Any:
        assert (name, partition_id) == ("get_samples", "train")
        return {key: [self.data[sample][key] for sample in sample_ids] for key in select_fields}


def group_of(turn: Turn) -> str:
    return f"{turn.rollout}/{turn.turn}"


def sampler_of(buffer: TQReplayBuffer, **settings: Any) -> DivOPDSampler:
    sampler = DivOPDSampler(buffer, **{"batch_size": BATCH_SIZE, **settings})
    sampler.set_dispatch_index(0)
    return sampler


async def step(sampler: DivOPDSampler, weight: int, most: int = BATCH_SIZE) -> tuple[list[str], int]:
    """What NeMo-RL's train pump does until it has groups: evict, then select."""
    evicted = await sampler.evict(current_train_weight=weight)
    meta, groups = await sampler.select(current_train_weight=weight, min_prompt_groups=1, max_prompt_groups=most)
    assert groups == (0 if meta is None else len(meta.sample_ids))
    return ([] if meta is None else [name.removesuffix("_g0") for name in meta.sample_ids]), evicted


def test_groups_are_chosen_as_replay_chooses_them(tmp_path: Path) -> None:
    """With a group as a row and as a rollout of its own, and nothing is left in the buffer that will not be trained."""
    turns = [
        Turn(**{**turn.__dict__, "rollout": group_of(turn), "turn": 0, "task": group_of(turn)})
        for turn in recorded_turns()
    ]
    buffer = TQReplayBuffer()
    sampler = sampler_of(buffer)

    async def run() -> None:
        for update, expected in enumerate(replayed(turns, tmp_path, "divopd")):
            for turn in turns:
                if turn.available_at == update:
                    buffer.commit(Turn(**{**turn.__dict__, "rollout": turn.rollout.rpartition("/")[0],
                                          "turn": int(turn.rollout.rpartition("/")[2])}))  # fmt: skip
            buffer.reserve(0)  # a rollout that goes on: neither read nor removed
            selected, _ = await step(sampler, update)
            assert [[name, 0] for name in selected] == expected["selected"]
            figures = figures_of(turns, expected["selected"], update=update)
            assert {name: sampler.metrics[f"divopd/{name}"] for name in figures} == pytest.approx(figures)
        await sampler.evict(current_train_weight=UPDATES - 1)
        assert sum(buffer.ready_list) == len(sampler.pool), "what was dropped has made room"
        assert len(buffer.ready_list) - sum(buffer.ready_list) == UPDATES

    asyncio.run(run())


def test_a_short_buffer_and_streamed_chunks_lose_no_group() -> None:
    """(None, 0) while groups are missing; a composed batch is given out in the pieces that are asked for."""
    turns = [turn for turn in recorded_turns() if turn.version == 0 and not turn.prompt_truncated][:BATCH_SIZE]
    buffer = TQReplayBuffer()
    sampler = sampler_of(buffer)

    async def run() -> None:
        for turn in turns[:10]:
            buffer.commit(turn)
        assert await step(sampler, 0) == ([], 0)
        for turn in turns[10:]:
            buffer.commit(turn)
        pieces = [(await step(sampler, 0, most=6))[0] for _ in range(3)]
        assert [len(piece) for piece in pieces] == [6, 6, 4]
        assert sorted(name for piece in pieces for name in piece) == sorted(map(group_of, turns))

    asyncio.run(run())


def test_stale_and_invalid_groups_make_room_before_a_batch_is_there() -> None:
    """Generation waits for room in NeMo-RL's buffer: without this it would wait for ever."""
    valid, dead = [], []
    for turn in recorded_turns():
        (dead if turn.prompt_truncated else valid).append(turn)
    buffer = TQReplayBuffer()
    sampler = sampler_of(buffer)

    async def run() -> None:
        for turn in [*dead[:3], *[turn for turn in valid if turn.version == 0][:4]]:
            buffer.commit(turn)
        await step(sampler, 0)
        assert (await step(sampler, 0))[1] == 3
        assert (await step(sampler, 3))[1] == 4
        assert not buffer.data

    asyncio.run(run())


def test_what_is_wrong_is_told() -> None:
    """A group without the teacher's scores, a batch of another size; staleness as NeMo-RL asks for it."""
    buffer = TQReplayBuffer()
    sampler = sampler_of(buffer, max_staleness=1)
    assert (sampler.is_on_policy, sampler.required_buffer_capacity(BATCH_SIZE)) == (False, BATCH_SIZE)
    assert sampler.should_abort_inflight(start_weight_version=3, current_train_weight=5)
    assert not sampler.should_abort_inflight(start_weight_version=4, current_train_weight=5)
    with pytest.raises(InputError, match="expected 32, grpo"):
        sampler.required_buffer_capacity(32)
    buffer.commit(recorded_turns()[0], fields=COLUMNS[:1])
    with pytest.raises(InputError, match="no field 'teacher_reference_logprobs', only generation_logprobs"):
        asyncio.run(step(sampler, 0))
