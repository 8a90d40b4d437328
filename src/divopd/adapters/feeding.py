"""What the adapters share: a pool for a framework without row weights, a batch as soon as there is one, its figures."""

from typing import Any

from divopd.composers.composer import equal_rows
from divopd.errors import InputError, NotReady
from divopd.methods import find_method
from divopd.pool import Batch, Pool


def pool_of_equal_rows(framework: str, method: str, **settings: Any) -> Pool:
    """A pool for a framework whose loss has no place for the weights of rows; a method that needs them is refused."""
    if find_method(method).weights is not equal_rows:
        raise InputError(
            f"method {method!r} weighs its rows, and {framework} has no place for their weights; use divopd, or "
            "another method with equal rows"
        )
    return Pool(method, **settings)


def compose_if_ready(pool: Pool, update: int) -> Batch | None:
    """The batch of this update, or None while rows are missing: they stay in the pool.

    Where the pool is full of rows that cannot be trained, waiting would last for ever: then the batch is short, or even
    empty, and the rows are gone.
    """
    try:
        return pool.compose(update)
    except NotReady as error:
        return pool.compose(update, allow_short=True) if error.full else None


def figures(batch: Batch, *, prefix: str = "divopd/") -> dict[str, float]:
    """The figures of a batch as the metrics of another framework: a number a name, under a name of ours."""
    return {prefix + name: float(value) for name, value in batch.metrics.items()}
