"""miles 0.1: its fully asynchronous buffer, composed by divopd. Not run with the real package, which has no release.

    --fully-async --n-samples-per-prompt 1 --custom-async-data-buffer-path divopd.adapters.miles.DivOPDDataBuffer

Settings are class attributes, because miles gives a buffer nothing but its own arguments: a subclass of two lines
changes them. Written for `DataBuffer` of miles at commit 31f1ca9 (August 2026): `put`, `get`, `get_metrics`.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from divopd.adapters.feeding import compose_if_ready, figures, pool_of_equal_rows
from divopd.adapters.frameworks import require_fit
from divopd.errors import InputError
from divopd.pool import Batch, Row, measure


@dataclass
class Prompt:
    """What was asked for at once, how many of its rows wait, and whether one was trained."""

    samples: list[Any]
    waiting: int
    trained: bool = False


class DivOPDDataBuffer:
    """A buffer whose groups are single rows: a rollout of several turns is taken apart, and a batch is put together.

    A batch has `rollout_batch_size` rows. What is dropped goes to miles's `--async-unused-samples-handler` once no row
    of its prompt was trained. Rows that wait here are lost with the process, as in miles's own buffer.
    """

    method: ClassVar[str] = "divopd"
    settings: ClassVar[dict[str, Any]] = {}  # keywords of `make_composer`, such as cap; batch_size comes from miles

    def __init__(self, input: Any) -> None:
        require_fit("miles")
        args = input.args
        if args.n_samples_per_prompt != 1:
            raise InputError(
                f"--n-samples-per-prompt is {args.n_samples_per_prompt}; expected 1: miles trains the rollouts of a "
                "prompt together then, and rows of a group cannot be chosen apart"
            )
        settings = dict(self.settings)
        if args.max_weight_staleness is not None:
            settings.setdefault("max_staleness", args.max_weight_staleness)
        self.pool = pool_of_equal_rows("miles", self.method, batch_size=args.rollout_batch_size, **settings)
        self._unused = input.unused_handler_fn
        self._arrived = asyncio.Condition()
        self._next: deque[Any] = deque()  # of the batch that is being fetched
        self._left: dict[
            int, int
        ] = {}  # rows of a prompt that wait, by the identity of its samples; 0: one was trained
        self._update = 0
        self._batches: list[Batch] = []
        self._aborted = 0

    async def put(self, input: Any) -> None:
        """Take a finished group apart and keep its rows. It never waits: what is not trained in time falls out."""
        rows = list(_turns(input.group))
        if any(sample.status.value == "aborted" for sample in rows):
            self._aborted += 1
            self._unused(input.prompt_group)
            return
        async with self._arrived:
            prompt = Prompt(input.prompt_group, waiting=len(rows))
            self.pool.put([_row(sample, turn, input, prompt) for turn, sample in enumerate(rows)])
            self._arrived.notify_all()

    async def get(self, current_version: int | None = None, **context: Any) -> Any:
        """The next row of a composed batch, as a group of one; waits until a batch can be composed."""
        del context
        if current_version is not None:
            self._update = max(self._update, int(current_version))
        async with self._arrived:
            while not self._next:
                batch = compose_if_ready(self.pool, self._update)
                if batch is None:
                    await self._arrived.wait()
                else:
                    self._keep(batch)
            return self._next.popleft()  # nothing is awaited after it: a cancelled get loses no row

    def get_metrics(self) -> dict[str, float]:
        """The figures of the batches since the last call: their mean, where there were several."""
        told = [figures(batch, prefix="rollout/divopd/") for batch in self._batches]
        names = dict.fromkeys(name for one in told for name in one)
        means = {name: sum(one.get(name, 0.0) for one in told) / len(told) for name in names}
        means["rollout/divopd/aborted_groups"] = float(self._aborted)
        self._batches, self._aborted = [], 0
        return means

    def _keep(self, batch: Batch) -> None:
        self._batches.append(batch)
        for row in batch.rows:
            group, prompt = row.payload
            prompt.trained = True
            self._next.append(group)
        for row, _ in batch.dropped:
            prompt = row.payload[1]
            prompt.waiting -= 1
            if not prompt.waiting and not prompt.trained:
                self._unused(prompt.samples)


def _turns(group: list[Any]) -> Iterator[Any]:
    """The rows of a group: a generate function may return a list, a sample a turn."""
    for item in group:
        yield from item if isinstance(item, list) else (item,)


def _row(sample: Any, turn: int, input: Any, prompt: Prompt) -> Row:
    rollout = sample.index if sample.rollout_id is None else sample.rollout_id
    task = sample.index if sample.group_index is None else sample.group_index
    size = sample.response_length
    measured = measure(
        sample.rollout_log_probs,
        _teacher_of(sample),
        [1] * size if sample.loss_mask is None else sample.loss_mask,
        prompt_tokens=len(sample.tokens) - size,
        prompt_truncated=bool(sample.metadata.get("prompt_truncated", False)),
        response_tokens=size,
    )
    group = [[sample]] if isinstance(input.group[0], list) else [sample]
    version = sample.oldest_weight_version or 0
    turn = int(sample.metadata.get("turn", turn))
    return Row(str(rollout), turn, str(task), version, measured, (replace(input, group=group), prompt))


def _teacher_of(sample: Any) -> Any:
    """miles fills `teacher_log_probs` after its buffer: before, the teacher's answer is the reward."""
    if sample.teacher_log_probs is not None or not isinstance(sample.reward, dict):
        return sample.teacher_log_probs
    scores = sample.reward.get("meta_info", {}).get("input_token_logprobs")
    return None if scores is None else [score[0] for score in scores[1:][-sample.response_length :]]
