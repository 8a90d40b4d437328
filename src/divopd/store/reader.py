"""Reading a store: batches, fates, the account, the recording, records and notes. Nothing here changes a file."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby, takewhile
from pathlib import Path
from typing import Any, Literal, TypeVar

from divopd.errors import InputError, LedgerError, NotAStoreError, StoreError
from divopd.records import EvaluationRecord, UpdateRecord, decode_evaluation, decode_update
from divopd.store.journal import Account, JournaledBatch, JournalEntry, Key, StoredTurn, decode_entry
from divopd.store.payload import MAX_PAYLOAD_BYTES, decode_teacher_turns, decode_turn, digest_of
from divopd.store.schema import connect, store_path
from divopd.store.session import Session, entry_digest, rollout_digest, seal
from divopd.turns import ROLLOUT_ID, Fate, TeacherTurn, Turn
from divopd.validity import REASONS

CHUNK = 256  # rows read at a time where all turns are visited
LAST = 2**63 - 1  # the largest number that SQLite knows
# what a row of the table `records` is: its number is the update, the policy version, the rollout's number, or 0; the
# second four are of work that is under way (leases.py), the last five of programs (calls.py)
RecordKind = Literal[
    "update",
    "evaluation",
    "teacher_turns",
    "config",
    "lease",
    "question",
    "question_lease",
    "answer",
    "attempt",
    "call_intent",
    "call",
    "attempt_end",
    "attempt_counts",
]
Record = TypeVar("Record")

_LIGHT = """t.arrival, r.id, t.turn, r.task, t.version, r.available_at, t.reason, t.disagreement, t.tokens,
    t.valid_tokens, t.rollout_turns, t.rollout_valid_tokens, t.first_seen, t.fate, t.fate_update"""
_FATES = frozenset(Account._fields[1:])
# CROSS JOIN fixes the order of the loops: the first table leads
BY_ARRIVAL = f"SELECT {_LIGHT} FROM turns t CROSS JOIN rollouts r ON r.number = t.rollout "
_BY_ROLLOUT = f"SELECT {_LIGHT} FROM rollouts r CROSS JOIN turns t ON t.rollout = r.number "
# what is asked for comes as one JSON list, so that a whole batch is one query
_BY_KEY = f"""SELECT {_LIGHT} FROM json_each(?) k CROSS JOIN rollouts r ON r.id = json_extract(k.value, '$[0]')
    CROSS JOIN turns t ON t.rollout = r.number AND t.turn = json_extract(k.value, '$[1]')"""
# a blob above the limit is never brought into memory
_PAYLOADS = f"""SELECT t.arrival, t.digest, CASE WHEN length(p.payload) <= {MAX_PAYLOAD_BYTES} THEN p.payload END
    FROM json_each(?) k CROSS JOIN turns t ON t.arrival = k.value LEFT JOIN payloads p ON p.arrival = t.arrival"""


def available(queue: Iterable[StoredTurn], *, update: int) -> Iterator[StoredTurn]:
    """The turns of a queue that an update may read: all up to the first that arrived after it."""
    return takewhile(lambda turn: turn.available_at <= update, queue)


class StoreReader(Session):
    """The store of a run, a running one or a stranger's, for reading only."""

    @staticmethod
    def open_read_only(run: Path | str) -> "StoreReader":
        """Open the store of a run: its folder, or the store file itself.

        The store is never changed; SQLite may leave an empty store.db-wal beside it.
        """
        path = store_path(run)
        return StoreReader(path, connect(path, mode="ro"))

    # ── updates ───────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def updates(self) -> int:
        """How many updates are journalled; also the number of the next one."""
        with self.snapshot():
            return self._one("SELECT max(number) FROM updates", default=-1) + 1

    def journal(self, update: int) -> JournalEntry:
        """What was decided at an update."""
        with self.snapshot():
            return self._entry(update)[0]

    def batch(self, update: int) -> JournaledBatch:
        """A journalled batch, whole and in order: the same every time it is asked for.

        A StoreError if some of its tokens were settled.
        """
        with self.snapshot():
            entry, digest = self._entry(update)
            chosen = self.find(entry.selected)
            turns = self._whole_turns(chosen)
        return JournaledBatch(entry, digest.hex(), turns, [turn.candidate(update=update) for turn in chosen])

    def pending_after(self, update: int) -> list[StoredTurn]:
        """The turns that an update left pending, in arrival order."""
        condition = "WHERE t.first_seen <= ? AND (t.fate_update IS NULL OR t.fate_update > ?) ORDER BY t.arrival"
        with self.snapshot():
            self._check_journaled(update)
            return self._stored(BY_ARRIVAL + condition, update, update)

    def backlog(self) -> int:
        """Turns in the queue that no update has read yet."""
        with self.snapshot():
            return self._one("SELECT count(*) FROM turns WHERE arrival > ?", self._watermark())

    # ── turns ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def turns(self) -> Iterator[Turn]:
        """Every turn with its tokens, in arrival order: the recording. A StoreError if some were settled."""
        for chunk in self._chunks():
            with self.snapshot():
                turns = self._whole_turns(chunk)
            yield from turns

    def stored_turns(self) -> Iterator[StoredTurn]:
        """Every turn without its tokens, in arrival order."""
        for chunk in self._chunks():
            yield from chunk

    def _chunks(self) -> Iterator[list[StoredTurn]]:
        after = 0
        while True:
            with self.snapshot():
                chunk = self._stored(BY_ARRIVAL + f"WHERE t.arrival > ? ORDER BY t.arrival LIMIT {CHUNK}", after)
            if not chunk:
                return
            yield chunk
            after = chunk[-1].arrival

    def turns_of(self, rollout: str) -> list[StoredTurn]:
        """The turns of one rollout, without tokens, in turn order."""
        with self.snapshot():
            found = self._stored(_BY_ROLLOUT + "WHERE r.id = ? ORDER BY t.turn", rollout)
        if not found:
            raise InputError(f"{self.path}: no rollout {rollout!r} in it; `divopd explain RUN UPDATE` shows some ids")
        return found

    def teacher_turns(self, rollout: str) -> tuple[TeacherTurn, ...]:
        """The turns of a rollout in which the teacher acted: none in most, nor in runs of before they were kept."""
        with self.snapshot():
            number = self._one("SELECT number FROM rollouts WHERE id = ?", rollout)
            content = self._taught(number)
        return decode_teacher_turns(content)

    def find(self, keys: Iterable[Key]) -> list[StoredTurn]:
        """The turns of these keys, which the journal knows, without tokens."""
        wanted = list(dict.fromkeys(keys))
        with self.snapshot():
            found = {turn.key: turn for turn in self._stored(_BY_KEY, json.dumps(wanted))}
        for rollout, turn in wanted:
            if (rollout, turn) not in found:
                raise NotAStoreError(
                    f"{self.path}: rollout {rollout!r} turn {turn} is in the journal, not in the store"
                )
        return [found[key] for key in wanted]

    def whole(self, turn: StoredTurn) -> Turn:
        """A turn with its tokens; a StoreError if they were dropped by settle."""
        with self.snapshot():
            return self._whole_turns([turn])[0]

    def is_settled(self, turn: StoredTurn) -> bool:
        """Whether the tokens of the turn were dropped, after a checkpoint, because it had left."""
        with self.snapshot():
            settled = self._one("SELECT settled_updates FROM state")
        return turn.fate.update is not None and turn.fate.update < settled

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
                "SELECT r.number, r.id, r.task, r.version, r.available_at, r.success, r.reward, r.turns, r.digest, "
                "r.seal, t.turn, t.version, t.digest "
                "FROM rollouts r LEFT JOIN turns t ON t.rollout = r.number ORDER BY r.number, t.turn"
            )
            for rollout, group in groupby(rows, key=lambda row: row[:10]):
                number, name, task, version, *put, declared, digest, sealed = rollout
                turns = [row[10:] for row in group if row[10] is not None]
                if len(turns) != declared:
                    raise LedgerError(
                        f"rollout {name!r} declared {declared} turns, but the store has {len(turns)} of them"
                    )
                whole = rollout_digest(name, task, version, turns, taught=self._taught(number))
                if (digest, sealed) != (whole, seal(digest, *put)):
                    raise NotAStoreError(f"{self.path}: rollout {name!r} is not as it was put; restore it from a copy")

    # ── records and notes ─────────────────────────────────────────────────────────────────────────────────────────

    def update_records(self, *, first: int = 0, last: int | None = None) -> dict[int, UpdateRecord]:
        """What updates showed and cost, from the first to the last of these, both included, or to the newest."""
        return self._records("update", decode_update, first=first, last=last)

    def evaluations(self) -> dict[int, EvaluationRecord]:
        """The evaluations so far, by policy version."""
        return self._records("evaluation", decode_evaluation)

    def events(self, *, after: int = 0) -> list[tuple[int, str, dict[str, Any]]]:
        """(number, kind, event) of what happened, in order; only what was noted after the event of that number."""
        query = "SELECT number, kind, json, digest FROM events WHERE number > ? ORDER BY number"
        with self.snapshot():
            rows = self._db.execute(query, (after,)).fetchall()
        return [(number, kind, self._json(text, digest, kind)) for number, kind, text, digest in rows]

    def sealed_config(self) -> dict[str, Any] | None:
        """The configuration with which the run began; None for a store of a replay, or of before it was sealed."""
        kind: RecordKind = "config"
        with self.snapshot():
            rows = self._db.execute("SELECT json, digest FROM records WHERE kind = ?", (kind,)).fetchall()
        return self._json(*rows[0], kind, 0) if rows else None

    def _records(
        self,
        kind: RecordKind,
        decode: Callable[[Mapping[str, Any]], Record],
        *,
        first: int = 0,
        last: int | None = None,
    ) -> dict[int, Record]:
        query = "SELECT number, json, digest FROM records WHERE kind = ? AND number BETWEEN ? AND ? ORDER BY number"
        with self.snapshot():
            rows = self._db.execute(query, (kind, first, LAST if last is None else last)).fetchall()
        records: dict[int, Record] = {}
        for number, text, digest in rows:
            data = self._json(text, digest, kind, number)
            try:
                records[number] = decode(data)
            except ValueError as error:
                what = f"update {number}" if kind == "update" else f"the evaluation of version {number}"
                raise NotAStoreError(
                    f"{self.path}: the record of {what} cannot be read ({error}); its records are not those of this "
                    "version of divopd: read it with the one that wrote it"
                ) from None
        return records

    def plain_records(self, kind: RecordKind, first: int, last: int) -> dict[int, Any]:
        """The records of a kind between two numbers, as JSON, in order."""
        query = "SELECT number, json, digest FROM records WHERE kind = ? AND number BETWEEN ? AND ? ORDER BY number"
        with self.snapshot():
            rows = self._db.execute(query, (kind, first, last)).fetchall()
        return {number: self._json(text, digest, kind, number) for number, text, digest in rows}

    def record_numbers(self, kind: RecordKind) -> set[int]:
        """The numbers under which there is a record of this kind."""
        with self.snapshot():
            return {number for (number,) in self._db.execute("SELECT number FROM records WHERE kind = ?", (kind,))}

    # ── inside a transaction ──────────────────────────────────────────────────────────────────────────────────────

    def _stored(self, query: str, *values: Any) -> list[StoredTurn]:
        return [stored_turn(row) for row in self._db.execute(query, values)]

    def _check_journaled(self, update: int) -> None:
        if not 0 <= update < self.updates:
            raise InputError(f"{self.path}: no update {update} in it; it has {self.updates} updates, counted from 0")

    def _watermark(self) -> int:
        return self._one("SELECT watermark FROM updates ORDER BY number DESC LIMIT 1", default=0)

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

    def _taught(self, number: int | None) -> bytes:
        """The turns of the teacher in the rollout of this number, as they were put."""
        kind: RecordKind = "teacher_turns"
        row = self._db.execute("SELECT json, digest FROM records WHERE kind = ? AND number = ?", (kind, number))
        for content, digest in row.fetchall():  # one, or none
            self._unsealed(decode_teacher_turns, content, digest, kind, number)
            return content
        return b""

    def _whole_turns(self, turns: Sequence[StoredTurn]) -> list[Turn]:
        rows = self._db.execute(_PAYLOADS, (json.dumps([turn.arrival for turn in turns]),))
        wanted = {turn.arrival: turn for turn in turns}
        # one after another, in whatever order: SQLite would copy payloads to sort them, a list of them leaves the cache
        whole = {arrival: self._whole(wanted[arrival], *content) for arrival, *content in rows}
        return [whole[arrival] for arrival in wanted]

    def _whole(self, turn: StoredTurn, digest: bytes, payload: bytes | None) -> Turn:
        if payload is None or digest_of(payload) != digest:
            where = f"{self.path}: rollout {turn.rollout!r} turn {turn.turn}"
            if payload is None and self.is_settled(turn):
                raise StoreError(f"{where}: its tokens were dropped when update {turn.fate.update} was settled")
            raise NotAStoreError(f"{where}: its tokens are missing or damaged; restore the store from a copy")
        identity = {"rollout": turn.rollout, "turn": turn.turn, "task": turn.task, "version": turn.version}
        return decode_turn(payload, **identity, available_at=turn.available_at)


def stored_turn(row: tuple[Any, ...]) -> StoredTurn:
    rollout, reason, kind, update = row[1], row[6], row[-2], row[-1]
    if not _is_rollout_id(rollout) or kind not in _FATES or not (reason is None or reason in REASONS):
        raise NotAStoreError(
            f"the store holds a turn {list(row[:-2])!r} with fate {kind!r}, which no put can have written"
        )
    return StoredTurn._make((*row[:-2], _fate(kind, update, reason if kind == "invalid" else None)))


_fate = lru_cache(maxsize=256)(Fate)  # most of those that are read together are alike


@lru_cache(maxsize=4096)  # turns of one rollout come together
def _is_rollout_id(rollout: str) -> bool:
    return ROLLOUT_ID.fullmatch(rollout) is not None
