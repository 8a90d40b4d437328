"""The pool: the composer for frameworks that have a queue of their own.

    pool = Pool("divopd", batch_size=64, cap=4)
    pool.put([Row(rollout, turn, task, version, measure(student, teacher, mask, prompt_tokens=n), payload)])
    batch = pool.compose(update)

It holds what a store holds, without a disk: the queue, the pending rows, when each was first seen and what became of
it. It never looks at tokens: a row is a few numbers and a payload that is handed back as it came. A pool belongs to one
thread; it can be pickled unless its payloads cannot.
"""

import warnings
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from divopd.composers.composer import Candidate, Decision, Settings, counted_reasons, nothing_to_train
from divopd.errors import ConflictError, InputError, NothingToTrainWarning, NotReady
from divopd.methods import make_composer
from divopd.metrics import batch_figures
from divopd.pool_state import STATE_FORMAT, UNSEEN, Encode, Key, Left, Loaded, row_state
from divopd.rows import Measured, Row, checked, measure
from divopd.turns import Fate

if TYPE_CHECKING:
    from divopd.recorder import Recorder

__all__ = ["Batch", "Measured", "NotReady", "Pool", "Row", "measure"]


@dataclass(frozen=True)
class Batch:
    """What to train on, in order, and what fell out of the pool on the way.

    `weights` has what each row weighs in the loss; their mean is 1. `dropped` are rows that are gone for good, with
    their fate: stale, invalid or aged out. `metrics` is flat: the composition of the batch, and where other rows are.
    """

    update: int
    rows: list[Row]
    weights: list[float]
    dropped: list[tuple[Row, Fate]]
    metrics: dict[str, float]


class Pool:
    """Fills learner batches from rows that somebody else keeps. One pool belongs to one run.

    `method` is a name of `divopd methods`; the keywords are those of `make_composer`, with the paper's values as
    defaults. `record` is a file TURNS.jsonl that gets every row as it is put, and TURNS.batches.jsonl beside it what
    was trained (recorder.py).
    """

    def __init__(self, method: str = "divopd", *, record: Path | str | None = None, **settings: Any) -> None:
        self._composer = make_composer(method, **settings)
        self._recorder = None if record is None else _recorder(record)
        self._held: dict[Key, Row] = {}  # queued and pending
        self._queue: deque[Candidate] = deque()  # in arrival order
        self._pending: list[Candidate] = []
        self._left: dict[Key, Left] = {}  # until their version is stale
        self._missing: set[Key] = set()  # held, but restored without a payload
        self._composed = -1  # the last update
        self._has_warned = False

    @property
    def settings(self) -> Settings:
        return self._composer.settings

    def __len__(self) -> int:
        """How many rows wait here, queued or pending."""
        return len(self._held)

    # ── rows in ───────────────────────────────────────────────────────────────────────────────────────────────────

    def put(self, rows: Iterable[Row]) -> int:
        """Queue rows in this order; returns how many of them were new. If it raises, nothing has changed.

        A row that is here, or was here and has left, changes nothing; with other numbers it is a ConflictError. A row
        that was restored without its payload gets the one it is put with. Rows of a version that is too old are taken,
        and dropped as stale by the next batch.
        """
        new: dict[Key, Row] = {}
        attached: dict[Key, Row] = {}
        for given in rows:
            row = checked(given)
            known = self._known(row.key) or new.get(row.key)
            if known is None:
                new[row.key] = row
            elif known.content != row.content:
                raise ConflictError(
                    f"rollout {row.rollout!r} turn {row.turn} was put before with other numbers: got {row.content}, "
                    f"known {known.content}; use a new rollout id"
                )
            elif row.key in self._missing:
                attached[row.key] = row
        if self._recorder is not None:
            self._recorder.put(list(new.values()), available_at=self._composed + 1)
        for key, row in attached.items():
            self._held[key] = row.light()
            self._missing.discard(key)
        for key, row in new.items():
            self._held[key] = row.light()
            self._queue.append(row.candidate(first_seen=UNSEEN))
        return len(new)

    def _known(self, key: Key) -> Row | None:
        left = self._left.get(key)
        return self._held.get(key) if left is None else left.row

    def fate(self, rollout: str, turn: int) -> Fate | None:
        """What became of a row: queued, pending, or how it left; None if it was never here, or that is forgotten."""
        key = rollout, turn
        if key in self._left:
            return self._left[key].fate
        if key not in self._held:
            return None
        return Fate("pending" if any(c.key == key for c in self._pending) else "queued")

    # ── batches out ───────────────────────────────────────────────────────────────────────────────────────────────

    def rows(self, update: int) -> int:
        """How many rows this update could choose from; with a gate, valid ones only."""
        return self._count(self._read(update), update)

    def ready(self, update: int) -> bool:
        """Whether `compose` would fill a whole batch now."""
        return self.rows(update) >= self.settings.batch_size

    def room(self, update: int) -> int:
        """How many more rows this update could look at: whoever reads another queue leaves the rest there."""
        oldest = self._composer.oldest_version(update)
        return max(0, self._composer.pool_size - sum(c.version >= oldest for c in (*self._pending, *self._queue)))

    def compose(self, update: int, allow_short: bool = False) -> Batch:
        """Compose the batch of this update; its rows leave the pool. The learner holds version `update` before it.

        Too few rows are a NotReady, and nothing has changed then; with `allow_short` the batch is as short as it must
        be, or empty. Updates never go backwards. Rows that are not selected stay pending until they are, or fall out.
        """
        pool = self._read(update)
        if not allow_short:
            self._refuse_short(pool, update)
        decision = self._composer.decide(pool, update=update)
        if not self._has_warned and (text := nothing_to_train(decision, update=update)):
            self._has_warned = True
            self._tell(text)
        if self._recorder is not None:
            self._recorder.compose(decision, update=update, composer=self._composer)
        for _ in range(len(pool) - len(self._pending)):
            self._queue.popleft()
        self._pending, self._composed = decision.pending, update
        trained = [self._leave(c, Fate("trained", update)) for c in decision.selected]
        dropped = [(self._leave(c, fate), fate) for c, fate in _drops(decision, update)]
        self._forget(update)
        metrics = _metrics(decision, update=update, queued=len(self._queue))
        return Batch(update, trained, decision.weights, dropped, metrics)

    def _tell(self, text: str) -> None:
        warnings.warn(text, NothingToTrainWarning, stacklevel=3)

    def _read(self, update: int) -> list[Candidate]:
        """Pending rows, then fresh ones as far as there is room, each in arrival order."""
        if update < max(0, self._composed):
            last = f"update {self._composed} was composed" if self._composed >= 0 else "updates count from 0"
            raise InputError(f"asked for update {update}, but {last}; updates never go backwards")
        fresh = self._composer.read(self._queue, update=update, pending=self._pending)
        newest = max(fresh, key=lambda c: c.version, default=None)
        if newest is not None and newest.version > update:
            raise InputError(
                f"update {update}: rollout {newest.rollout!r} turn {newest.turn} is of version {newest.version}; "
                "expected at most the update's number: the learner holds version q before update q, both from 0"
            )
        return [*self._pending, *(c._replace(first_seen=update) for c in fresh)]

    def _count(self, pool: Sequence[Candidate], update: int) -> int:
        oldest, gated = self._composer.oldest_version(update), self._composer.gated
        return sum(c.version >= oldest and (c.reason is None or not gated) for c in pool)

    def _refuse_short(self, pool: Sequence[Candidate], update: int) -> None:
        rows, size = self._count(pool, update), self.settings.batch_size
        if rows >= size:
            return
        oldest = self._composer.oldest_version(update)
        invalid = [c for c in pool if c.version >= oldest and c.reason is not None]
        full = sum(c.version >= oldest for c in pool) >= self._composer.pool_size
        why = f"; {len(invalid)} more are invalid ({counted_reasons(invalid)})" if invalid else ""
        what = "the pool is full, so waiting does not help: pass" if full else "put more rows, or pass"
        raise NotReady(
            f"update {update}: {rows} rows for a batch of {size}{why}; {what} allow_short=True for a short batch",
            rows=rows,
            full=full,
        )

    def _leave(self, candidate: Candidate, fate: Fate) -> Row:
        row = self._held.pop(candidate.key)
        self._missing.discard(candidate.key)
        self._left[candidate.key] = Left(replace(row, payload=None), fate)
        return row

    def _forget(self, update: int) -> None:
        """Drop what is remembered of rows that would now be stale: put again, they are dropped as such."""
        oldest = self._composer.oldest_version(update)
        for key in [key for key, left in self._left.items() if left.row.version < oldest]:
            del self._left[key]

    # ── state ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def missing(self) -> list[Key]:
        """The rows that were restored without their payload: put them again, or get them with payload None."""
        return [key for key in self._held if key in self._missing]

    def state_dict(self, encode: Encode | None = None) -> dict[str, Any]:
        """All that the next batch depends on, as JSON types: a few numbers a row, and payloads only if `encode` is
        given, which makes JSON of one."""
        names: dict[str, int] = {}
        pending = [row_state(self._held[c.key], c.first_seen, names) for c in self._pending]
        queued = [row_state(self._held[c.key], UNSEEN, names) for c in self._queue]
        left = [[*row_state(row, UNSEEN, names), *fate] for row, fate in self._left.values()]
        state: dict[str, Any] = {
            "format": STATE_FORMAT,
            "settings": asdict(self.settings),
            "composed": self._composed,
            "pending": pending,
            "queued": queued,
            "left": left,
            "names": list(names),
        }
        if self._recorder is not None:
            state["recorded"] = self._recorder.position()
        if encode is not None:
            keys = [c.key for c in (*self._pending, *self._queue)]
            state["payloads"] = [None if k in self._missing else [encode(self._held[k].payload)] for k in keys]
        return state

    def load_state_dict(self, state: dict[str, Any], decode: Encode | None = None) -> None:
        """Go on from a saved state, as if nothing had happened; what the pool held before is gone.

        A state of other settings is a StateError that names the setting. Payloads come back by `decode`, where they
        were saved; without them the rows are listed by `missing`.
        """
        loaded = Loaded.of(state, decode, settings=self.settings)
        if self._recorder is not None:
            self._recorder.go_on(state.get("recorded"))
        self._held = {row.key: row for row, _ in (*loaded.pending, *loaded.queued)}
        self._pending = [row.candidate(first_seen=seen) for row, seen in loaded.pending]
        self._queue = deque(row.candidate(first_seen=UNSEEN) for row, _ in loaded.queued)
        self._left = {left.row.key: left for left in loaded.left}
        self._missing, self._composed = loaded.missing, loaded.composed


def _recorder(path: Path | str) -> "Recorder":
    from divopd.recorder import Recorder  # it brings the store along: for those who record

    return Recorder(path)


def _drops(decision: Decision, update: int) -> list[tuple[Candidate, Fate]]:
    return [
        *((c, Fate("stale", update)) for c in decision.stale),
        *((c, Fate("invalid", update, c.reason)) for c in decision.invalid),
        *((c, Fate("aged_out", update)) for c in decision.aged_out),
    ]


def _metrics(decision: Decision, *, update: int, queued: int) -> dict[str, float]:
    """The figures of specification §9 that a batch has; `invalid_REASON` also counts dead rows of a batch."""
    lost = (*decision.invalid, *(c for c in decision.selected if c.reason is not None))
    return {
        **asdict(batch_figures(decision.selected, update=update)),
        "pending": len(decision.pending),
        "queued": queued,
        "stale": len(decision.stale),
        "aged_out": len(decision.aged_out),
        "invalid": len(decision.invalid),
        **{f"invalid_{reason}": count for reason, count in Counter(c.reason for c in lost).items()},
    }
