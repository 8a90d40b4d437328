"""The store of a run: the queue, the journal and the recording in one SQLite file.

Promises, with any process killed at any moment: a rollout whose `put` returned is there, whole; a batch is journalled
before anyone trains on it and comes back identical; every turn has exactly one fate. Every writing method is one
transaction: when it raises, nothing has changed.

A Store belongs to the thread and the process that opened it; open one in each. SQL is in the store*.py files only.
"""

import time
from pathlib import Path
from typing import Any, Literal

from divopd.composers.composer import Composer, Decision, candidate_of
from divopd.errors import ConflictError, FencedError, InputError, QueueFullError, StoreError, TurnFormatError
from divopd.journal import (
    JournaledBatch,
    JournalEntry,
    Key,
    StoredTurn,
    encode_entry,
    entry_of,
    exits_of,
    to_json_bytes,
)
from divopd.payload import digest_of, encode_rollout, encode_turn
from divopd.store_reader import FigureKind, StoreReader, entry_digest, rollout_digest, seal
from divopd.store_schema import connect, create_file, is_store, store_path
from divopd.turns import Rollout, Turn, turn_from_json

__all__ = ["Store", "StoreReader", "is_store", "store_path"]

POLL_S = 0.02  # how often a full queue is looked at again


class Store(StoreReader):
    """The queue, the journal and the recording of one run. Explorers put; one learner composes."""

    @classmethod
    def create(
        cls, path: Path | str, *, max_queued: int | None = None, synchronous: Literal["FULL", "NORMAL"] = "FULL"
    ) -> "Store":
        """Make a new store and open it; an existing file is never replaced.

        `max_queued` bounds the turns that wait to be read: a put waits while there are that many.
        """
        create_file(Path(path), max_queued=max_queued)
        return cls.open(path, synchronous=synchronous)

    @classmethod
    def open(cls, run: Path | str, *, synchronous: Literal["FULL", "NORMAL"] = "FULL") -> "Store":
        """Open the store of a run (its folder, or the store file itself) for reading and writing.

        With `synchronous` NORMAL a power cut may take back the last puts; a killed process never does.
        """
        path = store_path(run)
        store = cls(path, connect(path, mode="rw"))
        store._db.execute(f"PRAGMA synchronous = {'NORMAL' if synchronous == 'NORMAL' else 'FULL'}")
        return store

    # ── explorers ─────────────────────────────────────────────────────────────────────────────────────────────────

    def reserve_rollouts(self, count: int) -> range:
        """Numbers for the next rollouts of an explorer; none is given twice."""
        with self._transaction():
            end = self._one(
                "UPDATE state SET started_rollouts = started_rollouts + ? RETURNING started_rollouts", count
            )
        return range(end - count, end)

    def put_unscored(self, rollout: Rollout, *, generated_tokens: int) -> None:
        """Keep a rollout that has ended, durably, until the teacher has scored it and it is `put`; again is a no-op."""
        content = encode_rollout(rollout)
        with self._transaction():
            if self._one("SELECT 1 FROM rollouts WHERE id = ?", rollout.id) is None:
                row = (rollout.id, content, seal(content, rollout.id))
                added = self._db.execute("INSERT OR IGNORE INTO unscored (id, content, digest) VALUES (?, ?, ?)", row)
                tokens = generated_tokens * added.rowcount
                self._db.execute("UPDATE state SET generated_tokens = generated_tokens + ?", (tokens,))

    def put(self, rollout: Rollout, *, available_at: int | None = None, wait_s: float = 60.0) -> bool:
        """Queue all turns of a rollout, durably and together. True: queued now; False: it was there already.

        From now on it no longer waits for the teacher. The same id with another content raises a ConflictError. While a
        bounded queue is full this waits, at most `wait_s` seconds, then raises a QueueFullError; a rollout longer than
        the bound enters an empty queue. `available_at` is the first update that may read the turns: the next one,
        unless a simulated clock says so.
        """
        rows = [_row_of(turn) for turn in rollout.turns]
        digest = rollout_digest(rollout.id, rollout.task, rollout.version, ((row[0], row[1]) for row in rows))
        deadline = time.monotonic() + wait_s
        while True:
            with self._transaction():
                known = self._one("SELECT digest FROM rollouts WHERE id = ?", rollout.id)
                if known == digest:
                    return False
                if known is not None:
                    raise ConflictError(f"rollout {rollout.id!r} was put before with another content; use a new id")
                if self._has_room(len(rows)):
                    self._db.execute("DELETE FROM unscored WHERE id = ?", (rollout.id,))
                    self._insert(rollout, self._arrival_update(rollout, available_at), digest, rows)
                    return True
            if time.monotonic() >= deadline:
                raise QueueFullError(
                    f"rollout {rollout.id!r}: the queue stayed full for {wait_s:g} s; start a learner and put it again"
                )
            time.sleep(POLL_S)

    def _has_room(self, turns: int) -> bool:
        bound = self._one("SELECT max_queued FROM state")
        if bound is None:
            return True
        queued = self._one("SELECT count(*) FROM turns WHERE arrival > ?", self._watermark())
        return queued == 0 or queued + turns <= bound

    def _arrival_update(self, rollout: Rollout, asked: int | None) -> int:
        """The first update that may read the rollout. It never falls with arrival: a replay must see the same queue."""
        last = self._one("SELECT available_at FROM rollouts ORDER BY number DESC LIMIT 1", default=0)
        earliest = max(self.updates, last)
        if asked is not None and asked < earliest:
            raise InputError(
                f"rollout {rollout.id!r}: available_at is {asked}, but the queue has come to update {earliest}; "
                "put rollouts in the order in which they become available"
            )
        chosen = earliest if asked is None else asked
        if rollout.version > chosen:
            raise TurnFormatError(
                f"rollout {rollout.id!r}: version {rollout.version} is above available_at {chosen}; "
                "a turn cannot be queued before the policy that generated it exists"
            )
        return chosen

    def _insert(self, rollout: Rollout, available_at: int, digest: bytes, rows: list[tuple[Any, ...]]) -> None:
        number = self._db.execute(
            "INSERT INTO rollouts (id, task, version, available_at, turns, digest, seal) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (rollout.id, rollout.task, rollout.version, available_at, len(rows), digest, seal(digest, available_at)),
        ).lastrowid
        first = self._one("SELECT seq FROM sqlite_sequence WHERE name = 'turns'", default=0) + 1
        self._db.executemany(
            "INSERT INTO turns (arrival, rollout, turn, digest, reason, disagreement, tokens, valid_tokens) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            ((first + place, number, *row[:-1]) for place, row in enumerate(rows)),
        )
        payloads = ((first + place, row[-1]) for place, row in enumerate(rows))
        self._db.executemany("INSERT INTO payloads (arrival, payload) VALUES (?, ?)", payloads)

    # ── the learner ───────────────────────────────────────────────────────────────────────────────────────────────

    def begin_learner(self) -> int:
        """Become the learner of this run: the returned epoch fences every learner that began before."""
        with self._transaction():
            return self._one("UPDATE state SET epoch = epoch + 1 RETURNING epoch")

    def compose(self, composer: Composer, *, update: int, epoch: int) -> JournaledBatch:
        """Read the queue, decide the batch of this update and journal it, in one transaction; then serve it.

        `update` must be the next one. A FencedError means that another learner has begun: stop.
        """
        with self._transaction():
            self._check_epoch(epoch)
            if update != self.updates:
                raise StoreError(f"{self.path}: asked to compose update {update}, but the next one is {self.updates}")
            pool = {turn.key: turn for turn in self._read_pool(composer, update)}
            decision = composer.decide([turn.candidate(update=update) for turn in pool.values()], update=update)
            _check_complete(decision, pool, method=composer.settings.method)
            # pending turns lie below the watermark, fresh ones above it
            watermark = max([self._watermark(), *(turn.arrival for turn in pool.values())])
            self._write_fates(decision, pool, update)
            self._write_entry(entry_of(decision, update=update, composer=composer, watermark=watermark))
        return self.batch(update)

    def acknowledge(self, update: int, *, epoch: int) -> None:
        """Say that a durable checkpoint contains this update: a resume goes on after it.

        A learner says so again when it resumes: the word may have been lost with the one that wrote the checkpoint.
        """
        with self._transaction():
            self._check_epoch(epoch)
            self._check_journaled(update)
            self._db.execute("UPDATE state SET acknowledged_updates = max(acknowledged_updates, ?)", (update + 1,))

    def settle(self, update: int, *, epoch: int) -> int:
        """Drop the tokens of all turns that left by this update, which must be acknowledged; returns how many.

        Fates, keys and the journal stay. A run that never settles keeps everything, as its own recording.
        """
        with self._transaction():
            self._check_epoch(epoch)
            acknowledged = self._one("SELECT acknowledged_updates FROM state")
            if update >= acknowledged:
                raise StoreError(
                    f"{self.path}: asked to settle update {update}, but checkpoints hold {acknowledged} updates; "
                    "acknowledge the update first"
                )
            self._db.execute("UPDATE state SET settled_updates = max(settled_updates, ?)", (update + 1,))
            drop = "DELETE FROM payloads WHERE arrival IN (SELECT arrival FROM turns WHERE fate_update <= ?)"
            return self._db.execute(drop, (update,)).rowcount

    def _check_epoch(self, epoch: int) -> None:
        current = self._one("SELECT epoch FROM state")
        if epoch != current:
            raise FencedError(f"{self.path}: learner {epoch} was replaced by learner {current}; stop this one")

    def _write_fates(self, decision: Decision, pool: dict[Key, StoredTurn], update: int) -> None:
        rows: list[tuple[str, int | None, int, int]] = [
            (fate, update, c.first_seen, pool[c.key].arrival) for fate, left in exits_of(decision).items() for c in left
        ]
        fresh = (c for c in decision.pending if pool[c.key].first_seen is None)
        rows += [("pending", None, update, pool[c.key].arrival) for c in fresh]
        self._db.executemany("UPDATE turns SET fate = ?, fate_update = ?, first_seen = ? WHERE arrival = ?", rows)

    def _write_entry(self, entry: JournalEntry) -> None:
        settings, record = encode_entry(entry)
        before = self._one("SELECT digest FROM updates ORDER BY number DESC LIMIT 1", default=b"")
        digest = entry_digest(before, entry.update, entry.watermark, settings, record)
        self._db.execute("INSERT OR IGNORE INTO settings VALUES (?, ?)", (digest_of(settings), settings))
        row = (entry.update, entry.watermark, digest_of(settings), record, digest)
        self._db.execute(
            "INSERT INTO updates (number, watermark, settings, record, digest) VALUES (?, ?, ?, ?, ?)", row
        )

    # ── notes beside the ledger ───────────────────────────────────────────────────────────────────────────────────

    def record_figures(self, kind: FigureKind, number: int, figures: dict[str, Any]) -> None:
        """Keep the figures of an update, or of the evaluation of a policy version; recorded again, the last counts."""
        with self._transaction():
            text = to_json_bytes(figures)
            row = (kind, number, text, seal(text, kind, number))
            self._db.execute("INSERT OR REPLACE INTO figures (kind, number, json, digest) VALUES (?, ?, ?, ?)", row)

    def record_event(self, kind: str, event: dict[str, Any]) -> None:
        """Append what happened (a start, a wait, a lost environment) to the log of the run."""
        with self._transaction():
            text = to_json_bytes(event)
            row = (kind, text, seal(text, kind))
            self._db.execute("INSERT INTO events (kind, json, digest) VALUES (?, ?, ?)", row)


def _row_of(turn: Turn) -> tuple[Any, ...]:
    """(turn, digest, reason, disagreement, tokens, valid tokens, payload): all that put computes, before any lock."""
    light = {name: getattr(turn, name) for name in ("rollout", "turn", "task", "version", "prompt_truncated")}
    light |= {name: getattr(turn, name) for name in ("reward", "success", "rollout_turns")}
    # the lists are checked by encode_turn, available_at by _arrival_update
    turn_from_json(light | {"available_at": turn.version}, where=f"rollout {turn.rollout!r}")
    payload = encode_turn(turn)
    candidate = candidate_of(turn, first_seen=0)
    measured = (candidate.reason, candidate.disagreement, candidate.tokens, candidate.valid_tokens)
    return (turn.turn, digest_of(payload), *measured, payload)


def _check_complete(decision: Decision, pool: dict[Key, StoredTurn], *, method: str) -> None:
    """A user's own composer may have bugs; a turn that is lost or taken twice must not reach the journal."""
    parts = (decision.selected, decision.stale, decision.invalid, decision.aged_out, decision.pending)
    keys = [candidate.key for part in parts for candidate in part]
    rows = len(decision.selected)
    if len(keys) != len(pool) or set(keys) != pool.keys() or {len(decision.weights), len(decision.passes)} != {rows}:
        raise StoreError(
            f"method {method!r} lost a turn of its pool, or returned one twice ({len(keys)} for {len(pool)}); a "
            "composer puts every turn of the pool into exactly one list, with a weight and a pass for each selected one"
        )
