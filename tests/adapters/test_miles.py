"""The buffer for miles, against a copy of the shape of its interface: miles has no release that could be installed."""

import asyncio
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from divopd.adapters.miles import DivOPDDataBuffer
from divopd.errors import InputError
from divopd.turns import Rollout, Turn, group_into_rollouts
from foreign_turns import BATCH_SIZE, figures_of, recorded_turns, replayed


class Status(Enum):
    COMPLETED = "completed"
    ABORTED = "aborted"


@dataclass
class Sample:
    """The fields of miles's Sample that matter here."""

    index: int | None = None
    group_index: int | None = None
    rollout_id: Any = None
    tokens: list[int] = field(default_factory=list)
    response_length: int = 0
    reward: Any = None
    loss_mask: list[int] | None = None
    oldest_weight_version: int | None = None  # a property of miles's, of its weight_versions
    rollout_log_probs: list[float] | None = None
    teacher_log_probs: list[float] | None = None
    status: Status = Status.COMPLETED
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass
class DataBufferInput:
    prompt_group: list[Sample]
    group: list[Any]


@dataclass(frozen=True)
class DataBufferConstructorInput:
    args: Namespace
    unused_handler_fn: Callable[[list[Sample]], None]


class Miles:
    """What miles's fully asynchronous rollout function does with a buffer: puts finished groups, gets one at a time."""

    def __init__(self, kind: type[DivOPDDataBuffer] = DivOPDDataBuffer, *, n_samples_per_prompt: int = 1) -> None:
        self.unused: list[list[Sample]] = []
        self.args = Namespace(
            rollout_batch_size=BATCH_SIZE, n_samples_per_prompt=n_samples_per_prompt, max_weight_staleness=None
        )
        self.buffer = kind(DataBufferConstructorInput(self.args, self.unused.append))

    async def put(self, turns: list[Turn]) -> None:
        for rollout in group_into_rollouts(turns):
            await self.buffer.put(finished(rollout))

    async def drain(self, version: int) -> tuple[list[list], dict[str, float]]:
        data: list[Any] = []
        while len(data) < self.args.rollout_batch_size:
            entry = await asyncio.wait_for(self.buffer.get(current_version=version), timeout=30)
            assert len(entry.group) == self.args.n_samples_per_prompt
            ((sample,),) = entry.group
            data.append([str(sample.rollout_id), sample.metadata["turn"]])
        return data, self.buffer.get_metrics()


def finished(rollout: Rollout, **changes: Any) -> DataBufferInput:
    """A group of one rollout; its teacher's answer is where miles's reward function leaves it."""
    samples = [replace(as_miles(turn), **changes) for turn in rollout.turns]
    return DataBufferInput(prompt_group=[Sample(index=0)], group=[samples])


def as_miles(turn: Turn) -> Sample:
    scores = [[None, 0, None], *([0.0, token, None] for token in turn.prompt_ids[1:])]
    scores += [
        [score, token, None] for score, token in zip(turn.teacher_logprobs or (), turn.response_ids, strict=False)
    ]
    return Sample(
        rollout_id=turn.rollout,
        tokens=[*turn.prompt_ids, *turn.response_ids],
        response_length=len(turn.response_ids),
        reward={"meta_info": {"input_token_logprobs": scores}} if turn.teacher_logprobs else 0.0,
        loss_mask=list(turn.action_mask or ()),
        oldest_weight_version=turn.version,
        rollout_log_probs=list(turn.student_logprobs or ()),
        metadata={"turn": turn.turn, "prompt_truncated": turn.prompt_truncated},
    )


def test_miles_gets_the_batches_of_replay_and_their_figures(tmp_path: Path) -> None:
    """Rollouts of several turns are taken apart: update by update the rows that `divopd replay` selects."""
    turns, miles = recorded_turns(), Miles()

    async def run() -> None:
        for update, expected in enumerate(replayed(turns, tmp_path, "divopd")):
            await miles.put([turn for turn in turns if turn.available_at == update])
            selected, metrics = await miles.drain(update)
            assert selected == expected["selected"]
            figures = figures_of(turns, expected["selected"], update=update)
            assert {name: metrics[f"rollout/divopd/{name}"] for name in figures} == pytest.approx(figures)

    asyncio.run(run())


def test_a_cancelled_get_and_a_short_queue_lose_no_row() -> None:
    """A get waits until a batch is there; one that is cancelled takes nothing with it."""
    turns = [turn for turn in recorded_turns() if turn.version == 0 and not turn.prompt_truncated][:BATCH_SIZE]
    miles = Miles()

    async def run() -> None:
        await miles.put(turns[:10])
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(miles.buffer.get(current_version=0), timeout=0.01)
        assert len(miles.buffer.pool) == 10
        await miles.put(turns[10:])
        selected, _ = await miles.drain(0)
        assert sorted(selected) == sorted([*turn.key] for turn in turns)

    asyncio.run(run())


def test_what_is_not_trained_goes_to_miles_s_handler() -> None:
    """Once for each prompt of which no row was trained: aborted ones at once, stale ones when they fall out."""
    first, second, *rest = group_into_rollouts([turn for turn in recorded_turns() if not turn.prompt_truncated])[:12]
    miles = Miles()

    async def run() -> None:
        await miles.buffer.put(finished(first, status=Status.ABORTED))
        assert len(miles.unused) == 1
        await miles.buffer.put(finished(second, oldest_weight_version=0))
        for rollout in rest:
            await miles.buffer.put(finished(rollout, oldest_weight_version=5))
        _, metrics = await miles.drain(5)
        assert len(miles.unused) == 2
        assert metrics["rollout/divopd/aborted_groups"] == 1
        assert metrics["rollout/divopd/stale"] == len(second.turns)
        assert miles.buffer.get_metrics()["rollout/divopd/aborted_groups"] == 0, "since the last call"

    asyncio.run(run())


def test_settings_are_class_attributes() -> None:
    """A subclass of two lines changes them; a group of several rollouts is refused."""

    class Mine(DivOPDDataBuffer):
        method = "divopd-base"
        settings = {"cap": 2}  # noqa: RUF012

    assert (Miles(Mine).buffer.pool.settings.method, Miles(Mine).buffer.pool.settings.cap) == ("divopd-base", 2)
    with pytest.raises(InputError, match="--n-samples-per-prompt is 8; expected 1"):
        Miles(n_samples_per_prompt=8)
