"""Writing a store: what explorers, teachers and the learner of a run may do, on a SQLite file.

Promises, with any process killed at any moment: a rollout whose `put` returned is there, whole; a batch is journalled
before anyone trains on it and comes back identical; every turn has exactly one fate. Every writing method is one
transaction: when it raises, nothing has changed.

A Store belongs to the thread and the process that opened it; open one in each.
"""

import json
from collections.abc import Mapping
from itertools import groupby
from math import isnan
from operator import is_
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from divopd.composers.composer import Composer, Decision
from divopd.curricula import Outcome
from divopd.errors import ConflictError, FencedError, InputError, StoreError, TurnFormatError
from divopd.records import EvaluationRecord, UpdateRecord, encode_evaluation, encode_update
from divopd.store.calls import CallLog
from divopd.store.faces import WRONG_ANSWER, Calls, Ledger, Questions, Queue
from divopd.store.journal import (
    Arrived,
    Decided,
    JournaledBatch,
    JournalEntry,
    Key,
    StoredTurn,
    encode_entry,
    entry_of,
    exits_of,
    to_json_bytes,
)
from divopd.store.payload import decode_rollout, digest_of, encode_rollout, encode_teacher_turns, encode_turn
from divopd.store.reader import BY_ARRIVAL, LAST, RecordKind, available, stored_turn
from divopd.store.schema import connect, create_file, store_path
from divopd.store.session import entry_digest, rollout_digest, seal
from divopd.turns import Rollout, turn_from_json
from divopd.validity import assess

# what turn_from_json checks of a turn, and turns of one rollout mostly have in common
_SHARED = (
    "rollout",
    "task",
    "version",
    "prompt_truncated",
    "reward",
    "success",
    "rollout_turns",
    "rollout_valid_tokens",
)


class _Counted(NamedTuple):
    """What of a store has been counted: numbers of rollouts and turns only rise, and no row is ever taken away."""

    rollouts: int = 0
    turns: int = 0
    tokens: int = 0
    last_rollout: int = 0
    last_turn: int = 0


class Store(CallLog):
    """The queue, the journal and the recording of one run. Explorers and teachers put; one learner composes."""

    _counted = _Counted()

    @classmethod
    def create(
        cls,
        path: Path | str,
        *,
        synchronous: Literal["FULL", "NORMAL"] = "FULL",
        config: Mapping[str, Any] | None = None,
    ) -> "Store":
        """Make a new store and open it; an existing file is never replaced.

        `config` is what the run begins with, sealed in the store from its first moment: `sealed_config` gives it back.
        """
        create_file(Path(path), [] if config is None else [_config_record(config)])
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

    # ── explorers and teachers ────────────────────────────────────────────────────────────────────────────────────

    def reserve(self, count: int) -> range:
        """Numbers for the next rollouts of an explorer, counted from 0; none is given twice."""
        with self._transaction():
            end = self._one(
                "UPDATE state SET started_rollouts = started_rollouts + ? RETURNING started_rollouts", count
            )
        return range(end - count, end)

    def offer(self, rollout: Rollout, *, generated_tokens: int) -> None:
        """Keep a rollout that has ended, durably, until the teacher has scored it and it is `put`.

        Offering it again, or after it was put, changes nothing.
        """
        content = encode_rollout(rollout)
        with self._transaction():
            if self._one("SELECT 1 FROM rollouts WHERE id = ?", rollout.id) is None:
                row = (rollout.id, content, seal(content, rollout.id))
                added = self._db.execute("INSERT OR IGNORE INTO unscored (id, content, digest) VALUES (?, ?, ?)", row)
                self._count_generated(generated_tokens * added.rowcount)

    def unscored(self, limit: int) -> list[Rollout]:
        """Rollouts that wait for the teacher, the newest first: after a long absence the older ones are stale."""
        query = "SELECT id, content, digest FROM unscored ORDER BY number DESC LIMIT ?"
        with self.snapshot():
            rows = self._db.execute(query, (limit,)).fetchall()
        return [self._unsealed(decode_rollout, content, digest, name) for name, content, digest in rows]

    def put(self, rollout: Rollout, *, available_at: int | None = None, generated_tokens: int = 0) -> bool:
        """Queue all turns of a scored rollout, durably and together. True: queued now; False: it was there already.

        It no longer waits for the teacher then. Its turns of the teacher are kept beside the queue, in the same moment.
        The same id with another content raises a ConflictError, unless a teacher's wrong answer is what differs: that
        is noted with the first put, which counts.
        `available_at` is the first update that may read the turns: the next one, unless a simulated clock says so.
        `generated_tokens` count for a rollout that was never offered, with its first put.
        """
        rows = _rows_of(rollout)  # measured before the lock is taken
        taught = encode_teacher_turns(rollout.teacher_turns)
        digest = rollout_digest(rollout.id, rollout.task, rollout.version, (row[:3] for row in rows), taught=taught)
        with self._transaction():
            known = self._one("SELECT digest FROM rollouts WHERE id = ?", rollout.id)
            if known == digest:
                return False
            if known is not None and (rollout.wrong_answer is not None or self._was_wrong(rollout.id)):
                return False
            if known is not None:
                raise ConflictError(f"rollout {rollout.id!r} was put before with another content; use a new id")
            lease = "DELETE FROM records WHERE kind = 'lease' AND number = (SELECT number FROM unscored WHERE id = ?)"
            self._db.execute(lease, (rollout.id,))
            offered = self._db.execute("DELETE FROM unscored WHERE id = ?", (rollout.id,)).rowcount
            self._count_generated(0 if offered else generated_tokens)
            number = self._insert(rollout, self._arrival_update(rollout, available_at), digest, rows)
            if taught:
                self._insert_record("teacher_turns", number, taught)
            if rollout.wrong_answer is not None:
                event = {"rollout": rollout.id, "task": rollout.task, "reason": rollout.wrong_answer}
                self._append_event(WRONG_ANSWER, event | {"turns": len(rows), "update": self.updates})
        return True

    def _was_wrong(self, rollout: str) -> bool:
        return any(kind == WRONG_ANSWER and event["rollout"] == rollout for _, kind, event in self.events())

    def put_scored(self, rollout: Rollout) -> bool:
        """As put, for a rollout that a teacher has claimed. False: it waits no longer, because another was faster.

        Then nothing changes: the first scores count, and those of two teachers may differ in their last digits.
        """
        with self.snapshot():
            waits = self._one("SELECT 1 FROM unscored WHERE id = ?", rollout.id) is not None
        try:
            return waits and self.put(rollout)
        except ConflictError:  # put by another since the look above; what waits under its id was this rollout
            return False

    def _count_generated(self, tokens: int) -> None:
        if tokens:
            self._db.execute("UPDATE state SET generated_tokens = generated_tokens + ?", (tokens,))

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
        newest = max(turn.version for turn in rollout.turns)
        if newest > chosen:
            raise TurnFormatError(
                f"rollout {rollout.id!r}: version {newest} is above available_at {chosen}; "
                "a turn cannot be queued before the policy that generated it exists"
            )
        return chosen

    def _insert(self, rollout: Rollout, available_at: int, digest: bytes, rows: list[tuple[Any, ...]]) -> int:
        put = (available_at, *_ending_of(rollout))
        number = self._db.execute(
            "INSERT INTO rollouts (id, task, version, available_at, success, reward, turns, digest, seal) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (rollout.id, rollout.task, rollout.version, *put, len(rows), digest, seal(digest, *put)),
        ).lastrowid
        assert number is not None, "an INSERT has a row"
        first = self._one("SELECT seq FROM sqlite_sequence WHERE name = 'turns'", default=0) + 1
        self._db.executemany(
            "INSERT INTO turns (arrival, rollout, turn, version, digest, reason, disagreement, tokens, valid_tokens, "
            "rollout_turns, rollout_valid_tokens) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            ((first + place, number, *row[:-1]) for place, row in enumerate(rows)),
        )
        payloads = ((first + place, row[-1]) for place, row in enumerate(rows))
        self._db.executemany("INSERT INTO payloads (arrival, payload) VALUES (?, ?)", payloads)
        return number

    def outcomes(self, *, after: int) -> list[Outcome]:
        """How the rollouts ended that arrived after number `after`, in order of arrival; 0 asks for all of them."""
        query = """SELECT r.number, r.version, r.success, t.disagreement, t.valid_tokens
            FROM rollouts r CROSS JOIN turns t ON t.rollout = r.number WHERE r.number > ? ORDER BY r.number, t.turn"""
        with self.snapshot():
            rows = self._db.execute(query, (after,)).fetchall()
        return [
            Outcome(number, version, bool(success), tuple(row[3:] for row in turns))
            for (number, version, success), turns in groupby(rows, key=lambda row: row[:3])
        ]

    # ── the learner ───────────────────────────────────────────────────────────────────────────────────────────────

    def begin_learner(self) -> int:
        """Become the learner of this run: the returned epoch fences every learner that began before."""
        with self._transaction():
            return self._one("UPDATE state SET epoch = epoch + 1 RETURNING epoch")

    def rows(self, composer: Composer, *, update: int) -> int:
        """How many rows this composer could choose from now: by it a learner knows whether to wait.

        Stale turns do not count, and for a composer with a gate neither do invalid ones.
        """
        with self.snapshot():
            return _count_rows(self._read_pool(composer, update), composer, update)

    def past_rows(self, composer: Composer, *, update: int, arrived: int) -> int:
        """How many rows there were before this update was composed, when so many turns had arrived."""
        with self.snapshot():
            return _count_rows(self._past_pool(composer, update, arrived), composer, update)

    def compose(self, composer: Composer, *, update: int, epoch: int) -> JournaledBatch:
        """Read the queue, decide the batch of this update and journal it, in one transaction; then serve it.

        `update` must be the next one. A FencedError means that another learner has begun: stop.
        """
        with self._transaction():
            self._check_epoch(epoch)
            if update != self.updates:
                raise StoreError(f"{self.path}: asked to compose update {update}, but the next one is {self.updates}")
            stored = self._read_pool(composer, update)
            pool = {(turn.rollout, turn.turn): turn for turn in stored}
            decision = composer.decide([turn.candidate(update=update) for turn in stored], update=update)
            _check_complete(decision, pool, method=composer.settings.method)
            # pending turns lie below the watermark, fresh ones above it
            watermark = max([self._watermark(), *[turn.arrival for turn in stored]])
            self._write_fates(decision, pool, update)
            entry = entry_of(decision, update=update, composer=composer, watermark=watermark)
            digest = self._write_entry(entry)
        with self.snapshot():  # what `batch` gives, without asking again for what was just read and written
            turns = self._whole_turns([pool[key] for key in entry.selected])
        return JournaledBatch(entry, digest.hex(), turns, decision.selected)

    def acknowledge(self, update: int, *, epoch: int) -> None:
        """Say that a durable checkpoint holds this update and all before it: only now may they be settled.

        To say it of an older update changes nothing.
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
            state = "SELECT acknowledged_updates, settled_updates FROM state"
            acknowledged, settled = self._db.execute(state).fetchone()
            if update >= acknowledged:
                raise StoreError(
                    f"{self.path}: asked to settle update {update}, but checkpoints hold {acknowledged} updates; "
                    "acknowledge the update first"
                )
            self._db.execute("UPDATE state SET settled_updates = max(settled_updates, ?)", (update + 1,))
            left = "SELECT arrival FROM turns WHERE fate_update BETWEEN ? AND ?"
            return self._db.execute(f"DELETE FROM payloads WHERE arrival IN ({left})", (settled, update)).rowcount

    def _read_pool(self, composer: Composer, update: int) -> list[StoredTurn]:
        """Pending turns, then those read now, each in arrival order."""
        pending = self._stored(BY_ARRIVAL + "WHERE t.fate = 'pending' ORDER BY t.arrival")
        queue = self._db.execute(BY_ARRIVAL + "WHERE t.arrival > ? ORDER BY t.arrival", (self._watermark(),))
        fresh = composer.read(available(map(stored_turn, queue), update=update), update=update, pending=pending)
        queue.close()
        return pending + fresh

    def _past_pool(self, composer: Composer, update: int, arrived: int) -> list[StoredTurn]:
        """What `_read_pool` gave before this update was composed, when so many turns had arrived."""
        before = self._one("SELECT watermark FROM updates WHERE number = ?", update - 1, default=0)
        pending = self.pending_after(update - 1) if update else []
        queue = self._stored(BY_ARRIVAL + "WHERE t.arrival BETWEEN ? AND ? ORDER BY t.arrival", before + 1, arrived)
        return pending + composer.read(available(queue, update=update), update=update, pending=pending)

    def _check_epoch(self, epoch: int) -> None:
        current = self._one("SELECT epoch FROM state")
        if epoch != current:
            raise FencedError(f"{self.path}: learner {epoch} was replaced by learner {current}; stop this one")

    def _write_fates(self, decision: Decision, pool: dict[Key, StoredTurn], update: int) -> None:
        query = """UPDATE turns SET fate = ?, fate_update = ?, first_seen = coalesce(first_seen, ?)
            WHERE arrival IN (SELECT value FROM json_each(?))"""
        stays = {turn.arrival for turn in pool.values() if turn.first_seen is None}
        for fate, candidates in exits_of(decision).items():
            arrivals = [pool[c.rollout, c.turn].arrival for c in candidates]
            stays.difference_update(arrivals)
            if arrivals:
                self._db.execute(query, (fate, update, update, json.dumps(arrivals)))
        self._db.execute(query, ("pending", None, update, json.dumps(sorted(stays))))

    def _write_entry(self, entry: JournalEntry) -> bytes:
        """Write it; returns its digest."""
        settings, record = encode_entry(entry)
        before = self._one("SELECT digest FROM updates ORDER BY number DESC LIMIT 1", default=b"")
        digest = entry_digest(before, entry.update, entry.watermark, settings, record)
        self._db.execute("INSERT OR IGNORE INTO settings VALUES (?, ?)", (digest_of(settings), settings))
        row = (entry.update, entry.watermark, digest_of(settings), record, digest)
        self._db.execute(
            "INSERT INTO updates (number, watermark, settings, record, digest) VALUES (?, ?, ?, ?, ?)", row
        )
        return digest

    # ── records, counts and notes ─────────────────────────────────────────────────────────────────────────────────

    def record(self, record: UpdateRecord) -> bool:
        """Keep what an update showed and cost. True: written now; False: there was a record, and that one counts."""
        return self._keep("update", record.update, encode_update(record))

    def record_evaluation(self, record: EvaluationRecord) -> bool:
        """Keep the evaluation of a policy version. True: written now; False: there was one, and that one counts."""
        return self._keep("evaluation", record.version, encode_evaluation(record))

    def _keep(self, kind: RecordKind, number: int, data: dict[str, Any]) -> bool:
        with self._transaction():
            return self._insert_record(kind, number, to_json_bytes(data))

    def arrived(self) -> Arrived:
        """What explorers and teacher have produced so far."""
        with self.snapshot():
            self._count_new()
            generated = self._one("SELECT generated_tokens FROM state")
        return Arrived(self._counted.rollouts, self._counted.turns, generated, self._counted.tokens)

    def _count_new(self) -> None:
        """Only what has arrived since the last look: to count all turns at every update would take ever longer."""
        seen = self._counted
        rollouts, last_rollout = self._db.execute(
            "SELECT count(*), max(number) FROM rollouts WHERE number > ?", (seen.last_rollout,)
        ).fetchone()
        turns, tokens, last_turn = self._db.execute(
            "SELECT count(*), sum(tokens), max(arrival) FROM turns WHERE arrival > ?", (seen.last_turn,)
        ).fetchone()
        self._counted = _Counted(
            seen.rollouts + rollouts,
            seen.turns + turns,
            seen.tokens + (tokens or 0),
            last_rollout or seen.last_rollout,
            last_turn or seen.last_turn,
        )

    def rollouts(self, *, available_by: int) -> int:
        """How many rollouts had arrived when this update was composed, or by now if it was not."""
        with self.snapshot():
            return self._one("SELECT count(*) FROM rollouts WHERE available_at <= ?", available_by)

    def decided(self, update: int) -> Decided:
        """How many rollouts this update was the first to train, how many left with it without a trained turn, and how
        many turns it drained from the queue into its pool, and left there."""
        query = (
            "SELECT min(CASE t.fate WHEN 'trained' THEN t.fate_update END), max(t.fate_update IS NULL), "
            "max(t.fate_update) FROM rollouts r JOIN turns t ON t.rollout = r.number "
            "WHERE r.id = ? AND t.reason IS NULL"
        )
        with self.snapshot():
            entry = self._entry(update)[0]
            names = {name for name, _ in (*entry.selected, *entry.stale, *entry.aged_out)}
            found = [self._db.execute(query, (name,)).fetchone() for name in names]
            before = self._one("SELECT watermark FROM updates WHERE number = ?", update - 1, default=0)
            read = (
                "SELECT count(*) FROM turns WHERE arrival BETWEEN ? AND ? AND NOT (fate = 'stale' AND fate_update = ?)"
            )
            drained = self._one(read, before + 1, entry.watermark, update)
            # what was read earlier has aged out: only the turns of a few updates need to be looked at
            oldest = update - entry.settings.max_pending_age
            above = self._one("SELECT watermark FROM updates WHERE number = ?", oldest - 1, default=0)
            left = "SELECT count(*) FROM turns WHERE arrival BETWEEN ? AND ? AND coalesce(fate_update, ?) > ?"
            pending = self._one(left, above + 1, entry.watermark, LAST, update)
        used = sum(first_trained == update for first_trained, _, _ in found)
        unused = sum(first is None and not left and last == update for first, left, last in found)
        return Decided(used, unused, drained, pending)

    def note(self, kind: str, event: dict[str, Any]) -> None:
        """Append what happened (a start, a wait, a lost environment) to the log of the run."""
        with self._transaction():
            self._append_event(kind, event)

    def _append_event(self, kind: str, event: dict[str, Any]) -> None:
        text = to_json_bytes(event)
        self._db.execute("INSERT INTO events (kind, json, digest) VALUES (?, ?, ?)", (kind, text, seal(text, kind)))


if TYPE_CHECKING:

    def _all_faces(store: Store) -> tuple[Queue, Questions, Calls, Ledger]:  # pyright: ignore[reportUnusedFunction] - checked, not called
        """A Store can be handed to every role as it is."""
        return store, store, store, store


def _config_record(config: Mapping[str, Any]) -> tuple[str, int, bytes, bytes]:
    kind: RecordKind = "config"
    text = to_json_bytes(dict(config))
    return kind, 0, text, seal(text, kind, 0)


def _rows_of(rollout: Rollout) -> list[tuple[Any, ...]]:
    """The columns of each turn from `turn` on, and its payload: all that put computes of it."""
    rows: list[tuple[Any, ...]] = []
    checked: list[Any] = []
    for turn in rollout.turns:
        shared = [getattr(turn, name) for name in _SHARED]
        if not rows or not all(map(is_, shared, checked)):  # most turns of a rollout share these values
            light = dict(zip(_SHARED, shared, strict=True)) | {"turn": turn.turn, "available_at": turn.version}
            # the lists are checked by encode_turn, available_at by _arrival_update
            turn_from_json(light, where=f"rollout {turn.rollout!r}")
            checked = shared
        elif type(turn.turn) is not int or turn.turn >= 2**53:
            raise TurnFormatError(
                f"rollout {turn.rollout!r}: field 'turn' is {turn.turn!r}; expected an integer, 0 or more"
            )
        payload = encode_turn(turn)
        measured = assess(turn)
        whole = (turn.tokens, measured.valid_tokens, turn.rollout_turns, turn.rollout_valid_tokens)
        digest = digest_of(payload)
        rows.append((turn.turn, turn.version, digest, measured.reason, measured.disagreement, *whole, payload))
    return rows


def _ending_of(rollout: Rollout) -> tuple[int | None, float | None]:
    """(success, reward) as the columns hold them; every turn says how its rollout ended."""
    first = rollout.turns[0]
    # SQLite knows neither NaN nor a negative zero
    reward = None if first.reward is None or isnan(first.reward) else first.reward + 0.0
    return None if first.success is None else int(first.success), reward


def _count_rows(pool: list[StoredTurn], composer: Composer, update: int) -> int:
    oldest = composer.oldest_version(update)
    return sum(turn.version >= oldest and (turn.reason is None or not composer.gated) for turn in pool)


def _check_complete(decision: Decision, pool: dict[Key, StoredTurn], *, method: str) -> None:
    """A user's own composer may have bugs; a turn that is lost or taken twice must not reach the journal."""
    parts = (decision.selected, decision.stale, decision.invalid, decision.aged_out, decision.pending)
    keys = [(candidate.rollout, candidate.turn) for part in parts for candidate in part]
    rows = len(decision.selected)
    if len(keys) != len(pool) or set(keys) != pool.keys() or {len(decision.weights), len(decision.passes)} != {rows}:
        raise StoreError(
            f"method {method!r} lost a turn of its pool, or returned one twice ({len(keys)} for {len(pool)}); a "
            "composer puts every turn of the pool into exactly one list, with a weight and a pass for each selected one"
        )
