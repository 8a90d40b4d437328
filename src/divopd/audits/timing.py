"""Time: whether the seconds of an update follow the tokens of its batch, and whether an estimate of wall time holds.

The paper finds a Pearson correlation of 0.96 (Figure 8), and estimates wall time as step seconds + read seconds, within
1.2 % of timestamps (Table 15). Here a read is the learner's wait for a batch, and the timestamps are the run's clock.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from divopd.audits.stability import correlation
from divopd.errors import InputError
from divopd.records import UpdateRecord
from divopd.store import Store, is_store


@dataclass(frozen=True)
class TimeAudit:
    """One entry per update in `tokens` and `step_s`. None: all batches have equally many tokens, so nothing is told."""

    tokens: list[int]  # of the batch, rows whole
    step_s: list[float]  # of the learner, on the run's clock
    correlation: float | None  # of the two, Pearson
    measured_correlation: float | None  # of tokens with the learner's real seconds, whatever the clock
    constant_share: float | None  # of the mean step: what a line through them says of a batch without tokens
    stages_s: dict[str, float]  # the learner's real seconds, by stage
    estimate_s: float  # Σ step + Σ wait, waits of a life that was killed among them
    elapsed_s: float  # by the run's clock, at the last update

    @property
    def difference(self) -> float:
        """Of the estimate from the clock, as a share of it: what the learner does between updates is missing."""
        return self.estimate_s / self.elapsed_s - 1 if self.elapsed_s else 0.0

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"difference": self.difference}


def audit_time(run: Path) -> TimeAudit:
    """Look at the records of a run of `divopd train`; a recording has no clock and is refused."""
    if not (run.is_dir() or is_store(run)):
        raise InputError(f"{run}: a recording has no clock, so nothing took time in it; expected a run")
    with Store.open_read_only(run) as store, store.snapshot():
        records = [record for _, record in sorted(store.update_records().items())]
    if not records:
        raise InputError(f"{run}: this run has not recorded an update; expected a run of `divopd train`")
    return time_of(records)


def time_of(records: Sequence[UpdateRecord]) -> TimeAudit:
    """The figures from the records of a run's updates, in order."""
    tokens = [record.batch.tokens for record in records]
    spent = [0.0, *(record.spent.learner_s for record in records)]
    step_s = [after - before for before, after in pairwise(spent)]
    stages: Counter[str] = Counter()
    for record in records:
        stages.update(record.learner.seconds if record.learner else {})
    machine_s = [sum(record.learner.seconds.values()) if record.learner else 0.0 for record in records]
    return TimeAudit(
        tokens=tokens,
        step_s=step_s,
        correlation=_correlation(tokens, step_s),
        measured_correlation=_correlation(tokens, machine_s),
        constant_share=_constant_share(tokens, step_s),
        stages_s=dict(stages),
        estimate_s=records[-1].spent.learner_s + sum(record.waited_s for record in records),
        elapsed_s=records[-1].elapsed_s,
    )


def _correlation(tokens: Sequence[int], seconds: Sequence[float]) -> float | None:
    return correlation(np.array(tokens, dtype=float), np.array(seconds)) if len(set(tokens)) > 1 else None


def _constant_share(tokens: Sequence[int], seconds: Sequence[float]) -> float | None:
    """The intercept of the least-squares line, as a share of the mean."""
    x, y = np.array(tokens, dtype=float), np.array(seconds)
    away = x - x.mean()
    if not away.any() or not y.mean():
        return None
    slope = float(away @ y / (away @ away))
    return float((y.mean() - slope * x.mean()) / y.mean())
