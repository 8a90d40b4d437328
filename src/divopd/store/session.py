"""One connection to the file of a store: transactions, moments to read at, and the checksums of what is written."""

import json
import sqlite3
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from divopd.errors import NotAStoreError
from divopd.store.payload import digest_of
from divopd.store.schema import LOCK_WAIT_S, translated_errors

_JITTER = Random()  # so that no writer always comes too late; its own, because a run's randomness is part of its state
Self = TypeVar("Self", bound="Session")
Content = TypeVar("Content")


class Session:
    """A store that is open. It belongs to the thread and the process that opened it."""

    lock_wait_s = LOCK_WAIT_S

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._db = connection

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
        """Take the lock, or a moment to read at; while another process has the lock, ask again soon.

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

    def _json(self, text: bytes, digest: bytes, *key: object) -> Any:
        return self._unsealed(json.loads, text, digest, *key)

    def _unsealed(self, decode: Callable[[bytes], Content], content: bytes, digest: bytes, *key: object) -> Content:
        """The decoded content, if it is the one that was written under this key."""
        try:
            if seal(content, *key) != digest:
                raise ValueError
            return decode(content)
        except (ValueError, KeyError, TypeError, RecursionError):
            raise NotAStoreError(f"{self.path}: a record in it is damaged; restore it from a copy") from None


def seal(content: bytes, *key: object) -> bytes:
    """A checksum over a record and its key, so that a record moved to another key is noticed."""
    return digest_of(content, *(str(part).encode() for part in key))


def rollout_digest(
    name: str, task: str, version: int, turns: Iterable[tuple[int, int, bytes]], *, taught: bytes
) -> bytes:
    """A checksum over the whole content of a rollout; `turns` are (number, version, digest of the tokens).

    `taught` are the turns of the teacher as bytes; most rollouts have none.
    When it became available is no part of it: a second put of the same rollout may not know that.
    """
    parts = [name.encode(), task.encode(), str(version).encode()]
    for number, turn_version, digest in turns:
        parts += [f"{number} {turn_version}".encode(), digest]
    return digest_of(*parts, *([taught] if taught else []))


def entry_digest(before: bytes, update: int, watermark: int, settings: bytes, record: bytes) -> bytes:
    """A checksum over a journal entry and, through the digest before it, over all entries before."""
    return digest_of(before, f"{update} {watermark}".encode(), settings, record)
