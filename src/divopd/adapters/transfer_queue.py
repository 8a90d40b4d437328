"""TransferQueue: its controller's samples, composed by a pool. Made for TransferQueue 0.1.11.

    transfer_queue.init(OmegaConf.create(
        {"controller": {"sampler": DivOPDSampler("divopd", batch_size=64), "polling_mode": True}},
        flags={"allow_objects": True},
    ))

The sampler runs inside the controller and sees no tensor: a producer puts what `custom_meta_of` gives beside each row.
A consumer asks with `sampling_config={"update": q}`; a request without it is answered in order, as by TransferQueue's
own SequentialSampler, so that other stages are served, too.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from divopd.adapters.feeding import compose_if_ready, figures
from divopd.adapters.frameworks import require_fit, unusable
from divopd.errors import InputError
from divopd.methods import make_composer
from divopd.pool import Batch, Measured, Pool, Row

try:
    import ray
    from prometheus_client.core import GaugeMetricFamily
    from transfer_queue.metadata import BatchMeta
    from transfer_queue.sampler import BaseSampler
except ImportError as error:
    raise unusable("TransferQueue", error) from None

require_fit("TransferQueue")

ROW, WEIGHT, BATCH = "divopd_row", "divopd_weight", "divopd_batch"  # in custom_meta; the last on a batch's first row


@dataclass
class Partition:
    """What the sampler holds of one partition: its pool, and the last batch for a consumer that asks again."""

    pool: Pool
    update: int | None = None
    selected: list[int] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)  # not told yet: the controller takes them with a batch only
    metrics: dict[str, float] = field(default_factory=dict)


class DivOPDSampler(BaseSampler):
    """Answers requests for the rows of an update with the batch that a pool composes. Pass an instance, not the class.

    The keywords are those of `Pool`. Rows that are not selected stay in the queue and are offered again; those that
    fall out are marked as consumed. A consumer that asks for the same update again gets the same rows.
    """

    def __init__(self, method: str = "divopd", **settings: Any) -> None:
        super().__init__()
        self._make = {"method": method, **settings}
        self._partitions: dict[str, Partition] = {}
        make_composer(**self._make)  # wrong settings are told here, not in the controller

    def _pool(self) -> Pool:
        return Pool(**self._make)

    def sample(
        self,
        ready_indexes: list[int],
        batch_size: int,
        *args: Any,
        partition: Any = None,
        update: int | None = None,
        allow_short: bool = False,
        **kwargs: Any,
    ) -> tuple[list[int], list[int]]:
        """The rows of an update, and which are done with; ([], []) as long as there are too few valid ones.

        `batch_size` is how many rows the controller waits for; how many a batch has is the pool's setting, and more
        than that cannot be asked for.
        """
        del args, kwargs
        if update is None:
            return ready_indexes[:batch_size], ready_indexes[:batch_size]
        mine = self._partitions.setdefault(partition.partition_id, Partition(self._pool()))
        if batch_size > mine.pool.settings.batch_size:
            got, most = batch_size, mine.pool.settings.batch_size
            raise InputError(f"asked for {got} rows of update {update}; expected at most the sampler's batch of {most}")
        if update == mine.update:
            return mine.selected, []
        mine.pool.put(arrived(partition, ready_indexes))
        batch = mine.pool.compose(update, allow_short=True) if allow_short else compose_if_ready(mine.pool, update)
        if batch is None:
            return [], []
        mine.dropped += [row.payload for row, _ in batch.dropped]
        if not batch.rows:
            return [], []
        mine.update, mine.metrics = update, figures(batch, prefix="")
        mine.selected, dropped, mine.dropped = [row.payload for row in batch.rows], mine.dropped, []
        write_back(partition, batch, dropped)
        return mine.selected, [*mine.selected, *dropped]

    def has_cached_result(
        self, partition_id: str, task_name: str, sampling_config: dict[str, Any] | None = None
    ) -> bool:
        """Whether the controller may ask though too few rows are ready: the batch of this update is known."""
        del task_name
        mine, update = self._partitions.get(partition_id), (sampling_config or {}).get("update")
        return mine is not None and update is not None and mine.update == update

    def clear_cache(self, partition_id: str) -> None:
        """Called when a partition is cleared: its rows are gone."""
        super().clear_cache(partition_id)
        self._partitions.pop(partition_id, None)

    def save_checkpoint(self) -> dict[str, Any]:
        """Part of TransferQueue's own checkpoint: numbers and indexes, no tensor."""
        saved = {
            name: [mine.pool.state_dict(encode=int), mine.update, mine.selected, mine.dropped, mine.metrics]
            for name, mine in self._partitions.items()
        }
        return {**super().save_checkpoint(), "divopd": saved}

    def load_checkpoint(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint; one of another sampler begins with empty pools."""
        super().load_checkpoint(state)
        self._partitions = {}
        for name, (pool_state, *rest) in state.get("divopd", {}).items():
            self._partitions[name] = Partition(self._pool(), *rest)
            self._partitions[name].pool.load_state_dict(pool_state, decode=int)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The figures of the last batches for Prometheus: `divopd_effective_rollouts{partition_id="train"}`, …"""
        last = [(partition, mine.metrics) for partition, mine in [*self._partitions.items()]]  # another thread's dict
        for name in sorted({name for _, metrics in last for name in metrics}):
            gauge = GaugeMetricFamily(f"divopd_{name}", f"{name} of the last batch", labels=["partition_id"])
            for partition, metrics in last:
                gauge.add_metric([partition], metrics.get(name, 0.0))
            yield gauge


def custom_meta_of(rollout: str, turn: int, task: str, version: int, measured: Measured) -> dict[str, Any]:
    """What a producer puts into a row's custom_meta: a few numbers that stand for the row."""
    return {ROW: [rollout, turn, task, version, *measured.numbers]}


def row_of(custom: dict[str, Any], index: int) -> Row:
    """A row of the queue as the pool sees it; its payload is its index."""
    rollout, turn, task, version, *numbers = custom[ROW]
    return Row(rollout, turn, task, version, Measured(*numbers), index)


def arrived(partition: Any, ready_indexes: list[int]) -> list[Row]:
    """The rows that are ready, in order of arrival: not that of their indexes, because freed ones are used again."""
    ready = set(ready_indexes)
    return [row_of(custom, i) for i, custom in partition.custom_meta.items() if i in ready and ROW in custom]


def write_back(partition: Any, batch: Batch, dropped: list[int]) -> None:
    """Say in custom_meta what each row weighs, and on the first row how the batch is made up and what fell out."""
    selected = [row.payload for row in batch.rows]
    custom = partition.get_custom_meta(selected)
    new = {index: {**custom[index], WEIGHT: w} for index, w in zip(selected, batch.weights, strict=True)}
    if selected:
        new[selected[0]][BATCH] = {"metrics": figures(batch), "dropped": dropped}
    partition.set_custom_meta(new)


# ── for consumers ─────────────────────────────────────────────────────────────────────────────────────────────────────


def weights_of(meta: BatchMeta) -> list[float]:
    """What each row of a batch weighs in the loss; the mean is 1."""
    return [row[WEIGHT] for row in meta.custom_meta]


def metrics_of(meta: BatchMeta) -> dict[str, float]:
    """How a batch is made up: rollouts, effective rollouts, largest share, age, what is pending, what fell out."""
    return dict(meta.custom_meta[0][BATCH]["metrics"]) if meta.size else {}


def dropped_with(meta: BatchMeta) -> BatchMeta:
    """The rows that fell out when this batch was composed, for `client.clear_samples`: nothing else frees them."""
    dropped = meta.custom_meta[0][BATCH]["dropped"] if meta.size else []
    return BatchMeta(global_indexes=dropped, partition_ids=meta.partition_ids[:1] * len(dropped))


def show_in_prometheus(controller: Any) -> None:
    """Add the sampler's figures to the controller's own /metrics (TransferQueue's `metrics.enabled: true`)."""
    ray.get(controller.__ray_call__.remote(lambda self: self._metrics.registry.register(self.sampler)))
