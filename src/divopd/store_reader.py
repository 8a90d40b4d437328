"""Reading a store: batches, fates, the account, the recording. Nothing here changes a file."""

import json
import sqlite3
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any, Literal, TypeVar

from divopd.composers.composer import Candidate, Composer
from divopd.errors import InputError, LedgerError, NotAStoreError, StoreError
from divopd.journal import (
    Account,
    Decided,
    JournaledBatch,
    JournalEntry,
    Key,
    ResumePoint,
    Spent,
    StoredTurn,
    decode_entry,
)
from divopd.payload import MAX_PAYLOAD_BYTES, decode_rollout, decode_turn, digest_of
from divopd.store_schema import LOCK_WAIT_S, connect, store_path, translated_errors
from divopd.turns import ROLLOUT_ID, Fate, Rollout, Turn
from divopd.validity import REASONS

CHUNK = 256  # rows read at a time where all turns are visited
FigureKind = Literal["update", "evaluation"]
_JITTER = Random()  # so that no writer always comes too late; its own, because a run's randomness is part of its state
Self = TypeVar("Self", bound="StoreReader")
Content = TypeVar("Content")

_LIGHT = """t.arrival, r.id, t.turn, r.task, r.version, r.available_at, t.reason, t.disagreement, t.tokens,
    t.valid_tokens, t.first_seen, t.fate, t.fate_update"""
_FATES = frozenset(Account._fields[1:])
# CROSS JOIN fixes the order of the loops: the first table leads
BY_ARRIVAL = f"SELECT {_LIGHT} FROM turns t CROSS JOIN rollouts r ON r.number = t.rollout "
_BY_ROLLOUT = f"SELECT {_LIGHT} FROM rollouts r CROSS JOIN turns t ON t.rollout = r.number "
# a blob above the limit is never brought into memory
_PAYLOAD = f"""SELECT t.digest, CASE WHEN length(p.payload) <= {MAX_PAYLOAD_BYTES} THEN p.payload END
    FROM turns t LEFT JOIN payloads p ON p.arrival = t.arrival WHERE t.arrival = ?"""


def read_fresh(
    queue: Iterable[StoredTurn], *, composer: Composer, update: int, pending: Iterable[StoredTurn | Candidate]
) -> list[StoredTurn]:
    """The reader of SPEC §4.2 step 2: turns in arrival order until the pool is full or none is left.

    Stale turns on the way are read too, but take no room: the composer reports them. `queue` starts at the first
    unread turn and is read no further than needed.
    """
    oldest = composer.oldest_version(update)
    room = composer.pool_size - sum(turn.version >= oldest for turn in pending)
    fresh: list[StoredTurn] = []
    for turn in queue if room > 0 else ():
        if turn.available_at > update:
            break
        fresh.append(turn)
        room -= turn.version >= oldest
        if room == 0:
            break
    return fresh


class StoreReader:
    """The store of a run, a running one or a stranger's, for reading only."""

    lock_wait_s = LOCK_WAIT_S

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._db = connection

    @staticmethod
    def open_read_only(run: Path | str) -> "StoreReader":
        """Open the store of a run: its folder, or the store file itself.

        The store is never changed; SQLite may leave an empty store.db-wal beside it.
        """
        path = store_path(run)
        return StoreReader(path, connect(path, mode="ro"))

    def close(self) -> None:
        self._db.close()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def snapshot(self) -> Generator[None]:
        """Everything read inside sees the store at one moment, whatever others write meanwhile."""
        if self._db.in_transaction:
            yield
        else:
            with self._transaction("BEGIN"):
                yield

    # ── updates ───────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def updates(self) -> int:
        """How many updates are journalled; also the index of the next one."""
        with self.snapshot():
            return self._one("SELECT max(number) FROM updates", default=-1) + 1

    def journal(self, update: int) -> JournalEntry:
        """What was decided at an update."""
        with self.snapshot():
            return self._entry(update)[0]

    def batch(self, update: int) -> JournaledBatch:
        """A journalled batch, whole and in order: the same every time it is asked for."""
        with self.snapshot():
            entry, digest = self._entry(update)
            chosen = self.find(entry.selected)
            turns = [self._whole(turn) for turn in chosen]
        return JournaledBatch(entry, digest.hex(), turns, [turn.candidate(update=update) for turn in chosen])

    def resume_point(self) -> ResumePoint:
        """Where a learner that holds the last acknowledged checkpoint goes on."""
        with self.snapshot():
            return ResumePoint(self._one("SELECT acknowledged_updates FROM state"), self.updates)

    def pool(self, composer: Composer, *, update: int) -> list[Candidate]:
        """What `compose` could choose from now, stale turns left out: by it a learner knows whether to wait."""
        oldest = composer.oldest_version(update)
        with self.snapshot():
            pool = self._read_pool(composer, update)
        return [turn.candidate(update=update) for turn in pool if turn.version >= oldest]

    def pending_after(self, update: int) -> list[StoredTurn]:
        """The turns that an update left pending, in arrival order."""
        condition = "WHERE t.first_seen <= ? AND (t.fate_update IS NULL OR t.fate_update > ?) ORDER BY t.arrival"
        with self.snapshot():
            self._check_journaled(update)
            return self._stored(BY_ARRIVAL + condition, update, update)

    def rollouts(self, *, available_by: int) -> int:
        """How many rollouts had arrived when this update was composed, or by now if it was not."""
        with self.snapshot():
            return self._one("SELECT count(*) FROM rollouts WHERE available_at <= ?", available_by)

    def backlog(self) -> int:
        """Turns in the queue that no update has read yet."""
        with self.snapshot():
            return self._one("SELECT count(*) FROM turns WHERE arrival > ?", self._watermark())

    def unscored(self, limit: int) -> list[Rollout]:
        """Rollouts that wait for the teacher, the newest first: after a long absence the older ones are stale."""
        query = "SELECT id, content, digest FROM unscored ORDER BY number DESC LIMIT ?"
        with self.snapshot():
            rows = self._db.execute(query, (limit,)).fetchall()
        return [self._unsealed(decode_rollout, content, digest, name) for name, content, digest in rows]

    def spent(self) -> Spent:
        """What explorers and teacher have done so far."""
        query = "SELECT (SELECT count(*) FROM rollouts), count(*), sum(tokens) FROM turns"
        with self.snapshot():
            rollouts, turns, scored = self._db.execute(query).fetchone()
            return Spent(rollouts, turns, self._one("SELECT generated_tokens FROM state"), scored or 0)

    def decided(self, update: int) -> Decided:
        """How many rollouts this update was the first to train, and how many left with it without a trained turn."""
        query = (
            "SELECT min(CASE t.fate WHEN 'trained' THEN t.fate_update END), max(t.fate_update IS NULL), "
            "max(t.fate_update) FROM rollouts r JOIN turns t ON t.rollout = r.number "
            "WHERE r.id = ? AND t.reason IS NULL"
        )
        with self.snapshot():
            entry = self._entry(update)[0]
            names = {name for name, _ in (*entry.selected, *entry.stale, *entry.aged_out)}
            lots = [self._db.execute(query, (name,)).fetchone() for name in names]
        used = sum(first_trained == update for first_trained, _, _ in lots)
        return Decided(used, sum(first is None and not left and last == update for first, left, last in lots))

    # ── turns ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def turns(self) -> Iterator[Turn]:
        """Every turn with its tokens, in arrival order: the recording. A StoreError if some were settled."""
        for turn in self.stored_turns():
            yield self.whole(turn)

    def stored_turns(self) -> Iterator[StoredTurn]:
        """Every turn without its tokens, in arrival order."""
        after = 0
        while True:
            with self.snapshot():
                chunk = self._stored(BY_ARRIVAL + f"WHERE t.arrival > ? ORDER BY t.arrival LIMIT {CHUNK}", after)
            if not chunk:
                return
            yield from chunk
            after = chunk[-1].arrival

    def turns_of(self, rollout: str) -> list[StoredTurn]:
        """The turns of one rollout, without tokens, in turn order."""
        with self.snapshot():
            found = self._stored(_BY_ROLLOUT + "WHERE r.id = ? ORDER BY t.turn", rollout)
        if not found:
            raise InputError(f"{self.path}: no rollout {rollout!r} in it; `divopd explain RUN UPDATE` shows some ids")
        return found

    def find(self, keys: Iterable[Key]) -> list[StoredTurn]:
        """The turns of these keys, which the journal knows, without tokens."""
        query = _BY_ROLLOUT + "WHERE r.id = ? AND t.turn = ?"
        with self.snapshot():
            found = {key: self._stored(query, *key) for key in keys}
        for (rollout, turn), rows in found.items():
            if not rows:
                raise NotAStoreError(
                    f"{self.path}: rollout {rollout!r} turn {turn} is in the journal, not in the store"
                )
        return [rows[0] for rows in found.values()]

    def whole(self, turn: StoredTurn) -> Turn:
        """A turn with its tokens; a StoreError if they were dropped by settle."""
        with self.snapshot():
            return self._whole(turn)

    def is_settled(self, turn: StoredTurn) -> bool:
        """Whether the tokens of the turn were dropped, after a checkpoint, because it had left."""
        with self.snapshot():
            settled = self._one("SELECT settled_updates FROM state")
        return turn.fate.update is not None and turn.fate.update < settled

    def fates(self, rollout: str) -> dict[int, Fate]:
        """What became of every turn of a rollout."""
        return {turn.turn: turn.fate for turn in self.turns_of(rollout)}

    def account(self) -> Account:
        """put = trained + invalid + stale + aged_out + pending + queued."""
        with self.snapshot():
            put = self._one("SELECT sum(turns) FROM rollouts", default=0)
            counts = dict(self._db.execute("SELECT fate, count(*) FROM turns GROUP BY fate").fetchall())
        return Account(put, *(counts.get(fate, 0) for fate in Account._fields[1:]))

    def check(self) -> None:
        """Look for damage: pages, rollouts with fewer turns than declared, contents that differ from their digest."""
        with self.snapshot():
            problem = self._one("PRAGMA integrity_check(1)")
            if problem != "ok":
                raise NotAStoreError(f"{self.path}: the store is damaged ({problem}); restore it from a copy")
            rows = self._db.execute(
                "SELECT r.id, r.task, r.version, r.available_at, r.turns, r.digest, r.seal, t.turn, t.digest "
                "FROM rollouts r LEFT JOIN turns t ON t.rollout = r.number ORDER BY r.number, t.turn"
            )
            for (name, task, version, available_at, declared, *digests), group in groupby(
                rows, key=lambda row: row[:7]
            ):
                turns = [row[7:] for row in group if row[7] is not None]
                if len(turns) != declared:
                    raise LedgerError(
                        f"rollout {name!r} declared {declared} turns, but the store has {len(turns)} of them"
                    )
                digest = rollout_digest(name, task, version, turns)
                if digests != [digest, seal(digest, available_at)]:
                    raise NotAStoreError(f"{self.path}: rollout {name!r} is not as it was put; restore it from a copy")

    # ── notes beside the ledger ───────────────────────────────────────────────────────────────────────────────────

    def figures(self, kind: FigureKind) -> dict[int, dict[str, Any]]:
        """All recorded figures of a kind, by update or by policy version."""
        query = "SELECT number, json, digest FROM figures WHERE kind = ? ORDER BY number"
        with self.snapshot():
            rows = self._db.execute(query, (kind,))
            return {number: self._json(text, digest, kind, number) for number, text, digest in rows}

    def events(self) -> list[tuple[str, dict[str, Any]]]:
        """All events in the order in which they were recorded."""
        with self.snapshot():
            rows = self._db.execute("SELECT kind, json, digest FROM events ORDER BY number")
            return [(kind, self._json(text, digest, kind)) for kind, text, digest in rows]

    # ── inside a transaction ──────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def _transaction(self, begin: str = "BEGIN IMMEDIATE") -> Generator[None]:
        with translated_errors(self.path):
            self._begin(begin)
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _begin(self, begin: str) -> None:
        """Take the lock, or a place in time to read from; when it is taken, ask again soon.

        SQLite's own waiting sleeps ever longer, up to 100 ms, and so wastes the time of several writers.
        """
        deadline = time.monotonic() + self.lock_wait_s
        while True:
            try:
                self._db.execute(begin)
                self._db.execute("SELECT one FROM state").fetchone()
                return
            except sqlite3.OperationalError as error:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                if str(error) != "database is locked" or time.monotonic() > deadline:
                    raise
            time.sleep(_JITTER.uniform(0.0003, 0.001))

    def _one(self, query: str, *values: Any, default: Any = None) -> Any:
        """The only value of a query; the default when there is none, or when it is NULL."""
        rows = self._db.execute(query, values).fetchall()
        return default if not rows or rows[0][0] is None else rows[0][0]

    def _stored(self, query: str, *values: Any) -> list[StoredTurn]:
        return [_stored_turn(row) for row in self._db.execute(query, values)]

    def _json(self, text: bytes, digest: bytes, *about: object) -> Any:
        return self._unsealed(json.loads, text, digest, *about)

    def _unsealed(self, decode: Callable[[bytes], Content], content: bytes, digest: bytes, *about: object) -> Content:
        """The decoded content, if it is the one that was written about this."""
        try:
            if seal(content, *about) != digest:
                raise ValueError
            return decode(content)
        except (ValueError, KeyError, TypeError, RecursionError):
            raise NotAStoreError(f"{self.path}: a record in it is damaged; restore it from a copy") from None

    def _check_journaled(self, update: int) -> None:
        if not 0 <= update < self.updates:
            raise InputError(f"{self.path}: no update {update} in it; it has {self.updates} updates, counted from 0")

    def _watermark(self) -> int:
        return self._one("SELECT watermark FROM updates ORDER BY number DESC LIMIT 1", default=0)

    def _read_pool(self, composer: Composer, update: int) -> list[StoredTurn]:
        """Pending turns, then those read now, each in arrival order."""
        pending = self._stored(BY_ARRIVAL + "WHERE t.fate = 'pending' ORDER BY t.arrival")
        queue = self._db.execute(BY_ARRIVAL + "WHERE t.arrival > ? ORDER BY t.arrival", (self._watermark(),))
        fresh = read_fresh(map(_stored_turn, queue), composer=composer, update=update, pending=pending)
        queue.close()
        return pending + fresh

    def _entry(self, update: int) -> tuple[JournalEntry, bytes]:
        self._check_journaled(update)
        query = (
            "SELECT u.watermark, s.json, u.record, u.digest FROM updates u JOIN settings s ON s.digest = u.settings "
        )
        row = self._db.execute(query + "WHERE u.number = ?", (update,)).fetchone()
        before = self._one("SELECT digest FROM updates WHERE number = ?", update - 1, default=b"")
        try:
            watermark, settings, record, digest = row or (0, b"", b"", b"")
            if digest != entry_digest(before, update, watermark, settings, record):
                raise ValueError("its digest does not fit")
            return decode_entry(settings, record, update=update, watermark=watermark), digest
        except ValueError as error:
            raise NotAStoreError(
                f"{self.path}: the journal of update {update} is damaged ({error}); restore it from a copy"
            ) from None

    def _whole(self, turn: StoredTurn) -> Turn:
        where = f"{self.path}: rollout {turn.rollout!r} turn {turn.turn}"
        digest, payload = self._db.execute(_PAYLOAD, (turn.arrival,)).fetchone()
        if payload is None and self.is_settled(turn):
            raise StoreError(f"{where}: its tokens were dropped when update {turn.fate.update} was settled")
        if payload is None or digest_of(payload) != digest:
            raise NotAStoreError(f"{where}: its tokens are missing or damaged; restore the store from a copy")
        identity = {"rollout": turn.rollout, "turn": turn.turn, "task": turn.task, "version": turn.version}
        return decode_turn(payload, **identity, available_at=turn.available_at)


def rollout_digest(name: str, task: str, version: int, turns: Iterable[tuple[int, bytes]]) -> bytes:
    """Stands for the whole content of a rollout; not for when it became available, which a second put may not know."""
    parts = [name.encode(), task.encode(), str(version).encode()]
    for number, digest in turns:
        parts += [str(number).encode(), digest]
    return digest_of(*parts)


def seal(content: bytes, *about: object) -> bytes:
    """Stands for a content together with what is said about it."""
    return digest_of(content, *(str(part).encode() for part in about))


def entry_digest(before: bytes, update: int, watermark: int, settings: bytes, record: bytes) -> bytes:
    """Stands for a journal entry and, through the digest before it, for all entries before."""
    return digest_of(before, f"{update} {watermark}".encode(), settings, record)


def _stored_turn(row: tuple[Any, ...]) -> StoredTurn:
    *light, kind, update = row
    rollout, reason = row[1], row[6]
    if not ROLLOUT_ID.fullmatch(rollout) or kind not in _FATES or not (reason is None or reason in REASONS):
        raise NotAStoreError(f"the store holds a turn {light!r} with fate {kind!r}, which no put can have written")
    return StoredTurn(*light, fate=Fate(kind, update, reason if kind == "invalid" else None))
