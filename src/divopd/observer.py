"""The observer: watches what a framework's own sampler trains, and changes nothing.

    observer = Observer(batch_size=64, cap=4)     # what a divopd of these settings would do is told beside it
    observer.arrived(rows)                        # when rows are scored
    observer.trained(update, keys)                # after an update: (rollout, turn) of every row in its batch
    observer.page("observed.html")                # at the end, or whenever you like

Whatever goes wrong in here stays in here: it is logged once, and from then on the observer does nothing. It keeps a few
numbers of every row for as long as the run lasts, and neither payloads nor tokens.
"""

import logging
from collections.abc import Callable, Collection
from dataclasses import asdict, replace
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from divopd.audits.utilization import Used
from divopd.composers.composer import Candidate, Decision
from divopd.errors import InputError
from divopd.metrics import Utilization, batch_figures, mean_of_last, utilization
from divopd.pool import Pool, Row
from divopd.pool_state import UNSEEN, Key
from divopd.records import BatchFigures
from divopd.replay import Recorded, Recording, bound
from divopd.report.comparison import Replayed
from divopd.report.verdict import Verdict, judge

SAMPLER = "your sampler"
P = ParamSpec("P")
R = TypeVar("R")


def _harmless(method: "Callable[Concatenate[Observer, P], R]") -> "Callable[Concatenate[Observer, P], R | None]":
    """An error ends the observation, not the framework's run."""

    @wraps(method)
    def safe(self: "Observer", *args: P.args, **kwargs: P.kwargs) -> R | None:
        if self.trouble is not None:
            return None
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            self.trouble = f"{type(error).__name__}: {error}"
            logging.getLogger("divopd").exception("the observer is off, the run goes on")
            return None

    return safe


class _Shadow(Pool):
    """A pool whose batches nobody trains: it has nothing to warn of."""

    def _tell(self, text: str) -> None:
        del text


class Observer:
    """Watches one run. The keywords are those of a pool: what it would have composed is reported beside what was
    trained. `trouble` says why the observer is off, if it is.

    `update` counts as the policy versions of the rows do: the learner holds version q before update q.
    """

    def __init__(self, method: str = "divopd", **settings: Any) -> None:
        if "record" in settings:
            raise InputError("an observer does not record; a pool does")
        self.trouble: str | None = None
        self._shadow = _Shadow(method, **settings)
        self._known: dict[Key, Candidate] = {}
        self._arrived: list[tuple[Key, int]] = []  # with the number of updates that were trained before
        self._success: dict[Key, bool | None] = {}
        self._updates: list[int] = []
        self._trained: list[list[Candidate]] = []  # one list an update
        self._would: list[list[Candidate]] = []  # what the shadow chose
        self._unknown = 0  # trained rows that had never arrived

    @_harmless
    def arrived(self, rows: Collection[Row]) -> None:
        """Rows that the sampler may choose from the next update on; those that came before are passed over."""
        new = {row.key: replace(row, payload=None).light() for row in rows if row.key not in self._known}
        self._shadow.put(new.values())
        for key, row in new.items():
            self._known[key], self._success[key] = row.candidate(first_seen=UNSEEN), row.success
            self._arrived.append((key, len(self._updates)))

    @_harmless
    def trained(self, update: int, keys: Collection[Key]) -> dict[str, float]:
        """The rows of one update's batch. Returns its figures, and under `would_` those of the shadow's batch."""
        found = [self._known.get((rollout, turn)) for rollout, turn in keys]
        shadow = self._shadow.compose(update, allow_short=True)
        batch = [candidate for candidate in found if candidate is not None]
        self._unknown += len(found) - len(batch)
        self._updates.append(update)
        self._trained.append(batch)
        self._would.append([self._known[row.key] for row in shadow.rows])
        would = {f"would_{name}": value for name, value in shadow.metrics.items()}
        return asdict(batch_figures(batch, update=update)) | would

    @_harmless
    def figures(self) -> dict[str, Any]:
        """What was trained so far, and what would have been: the figures of `divopd audit utilization`, dead rows and
        age beside them, means over the last 40 % of updates."""
        own, other = self._replayed(self._trained), self._replayed(self._would)
        return {
            "updates": len(self._updates),
            "rows": len(self._known),
            "trained_but_never_arrived": self._unknown,
            SAMPLER: _figures(own),
            self._shadow.settings.method: _figures(other),
        }

    @_harmless
    def page(self, path: Path | str) -> None:
        """Write one page that opens offline and says whether composition is a problem in this run."""
        from divopd.report.observed_page import write_page

        write_page(Path(path), self._verdict(), self._comparison(), updates=self._updates, unknown=self._unknown)

    def _verdict(self) -> Verdict | None:
        from divopd.experiments.evidence import known_evidence

        size = self._shadow.settings.batch_size
        entries = [Recorded(self._known[key], when, self._success[key]) for key, when in self._arrived]
        recording = Recording(entries, len(self._updates))
        return judge(recording, self._comparison(), batch_size=size, evidence=known_evidence(), baseline=SAMPLER)

    def _comparison(self) -> dict[str, Replayed]:
        return {SAMPLER: self._replayed(self._trained), self._shadow.settings.method: self._replayed(self._would)}

    def _replayed(self, batches: list[list[Candidate]]) -> Replayed:
        decisions = [Decision(batch, [], [], [], [], [], []) for batch in batches]
        figures = [batch_figures(batch, update=q) for batch, q in zip(batches, self._updates, strict=True)]
        return Replayed(decisions, figures, self._utilization(batches))

    def _utilization(self, batches: list[list[Candidate]]) -> Utilization:
        """Over the rows that were there for an update; the bound has the slots of all updates up to the last."""
        seen = [(self._known[key], self._updates[when]) for key, when in self._arrived if when < len(self._updates)]
        settings, updates = self._shadow.settings, max(self._updates, default=-1) + 1
        reachable = bound(
            Recording([Recorded(candidate, update, None) for candidate, update in seen], updates),
            batch_size=settings.batch_size,
            max_staleness=settings.max_staleness,
            updates=updates,
        )
        selected = [candidate for batch in batches for candidate in batch]
        return utilization([candidate for candidate, _ in seen], selected, reachable=reachable)


def _figures(replayed: Replayed) -> dict[str, Any]:
    def late(of: Callable[[BatchFigures], float]) -> float:
        return mean_of_last([of(figures) for figures in replayed.figures]) if replayed.figures else 0.0

    used = Used(replayed.utilization, late(lambda one: one.effective_rollouts), late(lambda one: one.top1_share))
    return asdict(used) | {"dead_share": late(lambda one: one.dead_share), "age": late(lambda one: one.age)}
