"""Trinity-RFT: its trainer's batches, composed by a pool. Made for trinity-rft 0.6.0.

    algorithm:
      sample_strategy: divopd.adapters.trinity.DivOPDSampleStrategy
      sample_strategy_args: {method: divopd, cap: 4}

Trinity's trainer asks for the batch of step 1, 2, …; that is update 0, 1, … here. A row is a turn: `eid.rid` is its
rollout, `eid.step` its turn, `eid.tid` its task, `info["model_version"]` its policy version.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from divopd.adapters.feeding import compose_if_ready, figures
from divopd.adapters.frameworks import require_fit, unusable
from divopd.composers.composer import equal_rows
from divopd.errors import CheckpointError, ConflictError, InputError
from divopd.methods import find_method
from divopd.pool import Batch, Pool, Row, measure

try:
    import torch
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import save_file
    from trinity.algorithm.sample_strategy.sample_strategy import SampleStrategy
    from trinity.algorithm.sample_strategy.utils import representative_sample
    from trinity.buffer import get_buffer_reader
    from trinity.common.config import BufferConfig
    from trinity.common.experience import CustomField, Experience
    from trinity.utils.log import get_logger
    from trinity.utils.timer import Timer
except ImportError as error:
    raise unusable("trinity-rft", error) from None

require_fit("trinity-rft")
WEIGHT = CustomField(source_field="divopd_weight", destination_field="divopd_weight", data_type=torch.float32)
PICTURES = "multi_modal_inputs"  # a dict of tensors; all other fields are a tensor or plain


class DivOPDSampleStrategy(SampleStrategy):
    """Reads turns from Trinity's queue into a pool, and gives the trainer the batches that the pool composes.

    The keywords are those of `Pool`; `batch_size` is Trinity's `train_batch_size` unless it is given. Rows weigh what
    `info["divopd_weight"]` says. Trinity's trainers put it into the batch as `divopd_weight`, and no loss of theirs
    looks at it: a method that weighs its rows needs an advantage function that multiplies by it.
    """

    def __init__(self, buffer_config: BufferConfig, *, method: str = "divopd", **settings: Any) -> None:
        super().__init__(buffer_config)
        source = buffer_config.trainer_input.experience_buffer
        if source is None or source.storage_type != "queue":
            got = source and source.storage_type
            raise InputError(f"buffer.trainer_input.experience_buffer has storage_type {got!r}; expected 'queue'")
        self.reader: Any = get_buffer_reader(source)
        self.pool = Pool(method, **{"batch_size": buffer_config.train_batch_size, **settings})
        self.folder, self.update = buffer_config.cache_dir, -1  # the last one composed
        if find_method(method).weights is not equal_rows:
            get_logger(__name__).warning(f"{method} weighs its rows: multiply the advantages by batch['divopd_weight']")

    async def sample(self, step: int, **kwargs: Any) -> tuple[list[Experience], dict[str, float], list[Any]]:
        """The batch of a trainer's step; waits until there are enough rows. What was read is in the pool if it raises.

        StopAsyncIteration when the explorer has ended and there is no whole batch left, as with Trinity's own.
        """
        metrics: dict[str, float] = {}
        with Timer(metrics, "time/read_experience"):
            batch = await self._composed(step - 1)
        rows = [row.payload for row in batch.rows]
        for row, weight in zip(rows, batch.weights, strict=True):
            row.info["divopd_weight"] = weight
            row.custom_fields = [*(f for f in row.custom_fields if f != WEIGHT), WEIGHT]
        metrics |= figures(batch)
        self.set_model_version_metric(rows, metrics)
        return rows, metrics, representative_sample(rows)

    async def _composed(self, update: int) -> Batch:
        """A pool that is full of invalid rows gives a short batch rather than none; never an empty one."""
        while True:
            await self._read(update)
            batch = compose_if_ready(self.pool, update)
            if batch is None:
                await self._wait(update)
            elif batch.rows:
                self.update = update
                return batch

    async def _read(self, update: int) -> None:
        """Take what the pool has room for, and never more than is certain to be in the queue.

        QueueStorage.get_batch forgets the rows that it has gathered when it times out or the queue is closed.
        """
        while number := min(await self._certain(), self.pool.room(update)):
            self._put(await self.reader.read(number))

    async def _certain(self) -> int:
        """Rows that a list is unpacked for, and a row at least of every list that still waits."""
        return await self.reader.queue.__ray_call__.remote(lambda queue: len(queue.exp_pool) + queue.queue.qsize())

    async def _wait(self, update: int) -> None:
        try:
            self._put(await self.reader.read(1))  # a single row cannot be forgotten
        except TimeoutError:
            raise TimeoutError(
                f"update {update}: {self.pool.rows(update)} rows for a batch of {self.pool.settings.batch_size}, and "
                f"none came for {self.reader.timeout:g} s (max_read_timeout); they are saved with the next checkpoint"
            ) from None

    def _put(self, rows: Iterable[Experience]) -> None:
        try:
            self.pool.put([row_of(row) for row in rows])
        except ConflictError as error:
            raise InputError(f"{error}; a workflow of several turns must set eid.step of each") from None

    # ── state: numbers beside Trinity's own in its JSON file, the rows themselves in a file of the buffer's folder ────

    @classmethod
    def default_args(cls) -> dict[str, Any]:
        return {"method": "divopd"}

    def state_dict(self) -> dict[str, Any]:
        """Called by Trinity when it saves a checkpoint: Trinity's queue would not give these rows again."""
        if self.folder is None:
            raise CheckpointError("buffer.cache_dir is not set; Trinity's check_and_update() sets it: call it first")
        rows: dict[str, Experience] = {}
        state = self.pool.state_dict(encode=lambda row: rows.setdefault(row.eid.uid, row).eid.uid)
        path = Path(self.folder) / f"divopd-rows-{self.update + 1:09}.safetensors"
        write_rows(path, rows.values())
        for old in sorted(path.parent.glob("divopd-rows-*.safetensors"))[:-2]:  # Trinity's file may still name the last
            old.unlink()
        return {"pool": state, "rows": path.name, "update": self.update}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint; an empty state is a run that begins, and so is one of another strategy."""
        if "pool" in state_dict:
            rows = {row.eid.uid: row for row in read_rows(Path(self.folder or ".") / state_dict["rows"])}
            self.pool.load_state_dict(state_dict["pool"], decode=rows.__getitem__)
            self.update = state_dict["update"]


def row_of(row: Experience) -> Row:
    """A row of Trinity's as the pool sees it."""
    eid, version = row.eid, row.info.get("model_version")
    if version is None:
        raise InputError(f"row {eid.uid}: info['model_version'] is missing; Trinity's workflow runner sets it")
    measured = measure(
        row.logprobs,
        row.teacher_logprobs,
        row.action_mask,
        prompt_tokens=row.prompt_length,
        prompt_truncated=row.truncate_status == "prompt_truncated",
        response_tokens=len(row.tokens) - row.prompt_length,  # pyright: ignore[reportArgumentType]
    )
    return Row(eid.rid, int(eid.step), eid.tid, int(version), measured, row)


# ── rows in a file: tensors, and what is no tensor as JSON in the file's header; Trinity's own bytes are pickled ──────


def write_rows(path: Path, rows: Iterable[Experience]) -> None:
    """Write rows whole or not at all."""
    tensors: dict[str, torch.Tensor] = {}
    words: list[dict[str, Any]] = []
    for number, row in enumerate(rows):
        parts = {name: getattr(row, name) for name in Experience._TENSOR_FIELDS}
        parts |= {f"{PICTURES}.{name}": value for name, value in (row.multi_modal_inputs or {}).items()}
        copies = {name: part.detach().cpu().contiguous().clone() for name, part in parts.items() if part is not None}
        tensors |= {f"{number}.{name}": part for name, part in copies.items()}
        plain = {name: getattr(row, name) for name in Experience._META_FIELDS}
        fields = Experience._serialize_custom_fields(row.custom_fields)
        words.append({**plain, "eid": row.eid.to_dict(), "custom_fields": fields})
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    save_file(tensors, partial, metadata={"rows": json.dumps(words, default=_plain)})
    partial.replace(path)


def _plain(value: Any) -> Any:
    """What a workflow may have put into `info` or `metrics`."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def read_rows(path: Path) -> list[Experience]:
    """The rows of a checkpoint."""
    try:
        with safe_open(path, framework="pt") as file:
            words = json.loads(file.metadata()["rows"])
            given: list[dict[str, Any]] = [{} for _ in words]
            for key in file.keys():  # noqa: SIM118  (no dict)
                number, _, name = key.partition(".")
                given[int(number)][name] = file.get_tensor(key)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{path}: cannot read the pool's rows ({error}); restore the file, or begin anew"
        ) from None
    for row, tensors in zip(words, given, strict=True):
        pictures = {name.partition(".")[2]: tensors.pop(name) for name in [*tensors] if name.startswith(PICTURES)}
        row |= {**tensors, PICTURES: pictures or None}
        row["custom_fields"] = Experience._deserialize_custom_fields(row["custom_fields"])
    return [Experience(**{"tokens": [], **row}) for row in words]
