"""The file a store lives in: its tables, how it is created whole, how a foreign or damaged one is refused."""

import os
import sqlite3
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Literal

from divopd.errors import ConflictError, NotAStoreError, StoreError

FORMAT = 4
APPLICATION_ID = 0x64697664  # "divd", at byte 68 of the file
MAGIC = b"SQLite format 3\0"
HEADER = ("application_id", "user_version")
STORE_NAME = "store.db"  # inside the folder of a run
LOCK_WAIT_S = 60.0  # every transaction is short: a lock held for longer means a stopped process

TABLES = (
    """CREATE TABLE state (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        epoch INTEGER NOT NULL,                 -- of the learner that may write; older ones are fenced
        acknowledged_updates INTEGER NOT NULL,  -- so many updates are in a durable checkpoint
        settled_updates INTEGER NOT NULL,       -- so many updates have had their payloads dropped
        started_rollouts INTEGER NOT NULL,      -- numbers given to explorers
        generated_tokens INTEGER NOT NULL       -- by explorers, in rollouts that ended
    ) STRICT""",
    """CREATE TABLE unscored (                   -- rollouts that wait for the teacher
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        content BLOB NOT NULL,
        digest BLOB NOT NULL
    ) STRICT""",
    """CREATE TABLE rollouts (
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        task TEXT NOT NULL,
        version INTEGER NOT NULL,               -- when the rollout began; every turn has its own
        available_at INTEGER NOT NULL,
        success INTEGER,                        -- how it ended; here because settling drops what its turns say of it
        reward REAL,
        turns INTEGER NOT NULL,                 -- the declared number: a torn put cannot pass for a short rollout
        digest BLOB NOT NULL,                   -- of the content: the same rollout put again has the same
        seal BLOB NOT NULL                      -- of the digest and what put added to it
    ) STRICT""",
    """CREATE TABLE turns (
        arrival INTEGER PRIMARY KEY AUTOINCREMENT,  -- never reused
        rollout INTEGER NOT NULL REFERENCES rollouts (number),
        turn INTEGER NOT NULL,
        version INTEGER NOT NULL,               -- of the policy that generated this turn
        digest BLOB NOT NULL,
        reason TEXT,
        disagreement REAL NOT NULL,
        tokens INTEGER NOT NULL,
        valid_tokens INTEGER NOT NULL,
        rollout_turns INTEGER,                  -- of the whole rollout, as the turn says it: for row weights
        rollout_valid_tokens INTEGER,
        first_seen INTEGER,
        fate TEXT NOT NULL DEFAULT 'queued',
        fate_update INTEGER,
        UNIQUE (rollout, turn)
    ) STRICT""",
    "CREATE INDEX pending ON turns (arrival) WHERE fate = 'pending'",
    "CREATE TABLE payloads (arrival INTEGER PRIMARY KEY REFERENCES turns (arrival), payload BLOB NOT NULL) STRICT",
    "CREATE TABLE settings (digest BLOB PRIMARY KEY, json BLOB NOT NULL) STRICT",
    """CREATE TABLE updates (
        number INTEGER PRIMARY KEY,
        watermark INTEGER NOT NULL,             -- the last arrival read
        settings BLOB NOT NULL REFERENCES settings (digest),
        record BLOB NOT NULL,                   -- JSON: keys in order, weights, passes, exits with reasons
        digest BLOB NOT NULL                    -- of this row and, through the digest before it, of all rows before
    ) STRICT""",
    """CREATE TABLE records (
        kind TEXT,                              -- 'update' or 'evaluation'
        number INTEGER,                         -- the update, or the policy version that was evaluated
        json BLOB NOT NULL,
        digest BLOB NOT NULL,
        PRIMARY KEY (kind, number)
    ) STRICT""",
    """CREATE TABLE events (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        kind TEXT NOT NULL,
        json BLOB NOT NULL,
        digest BLOB NOT NULL
    ) STRICT""",
)


def store_path(run: Path | str) -> Path:
    """The store of a run: RUN is its folder, or the store file itself."""
    run = Path(run)
    return run / STORE_NAME if run.is_dir() else run


def is_store(path: Path | str) -> bool:
    """Whether a file looks like a store rather than like a recording of JSON lines. Opening it checks the rest."""
    try:
        with Path(path).open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def create_file(path: Path, records: Sequence[tuple[str, int, bytes, bytes]] = ()) -> None:
    """Make a store with nothing but these records.

    It appears under its name complete and synced, or not at all; nothing is overwritten.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        _remove(partial)  # of a process that had this number and was killed
        _fill(partial, records)
        _sync(partial)
        os.link(partial, path)  # unlike a rename it refuses to replace what is there
        _sync(path.parent)
    except FileExistsError:
        raise ConflictError(f"{path} exists already; open it, or choose another place for the new store") from None
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"{path}: cannot create a store there ({error}); is it a folder with free space?") from None
    finally:
        _remove(partial)


def connect(path: Path, *, mode: Literal["rw", "ro"]) -> sqlite3.Connection:
    """Open a store after checking that the file is one. The file is not touched before its header has been read."""
    _check_header(path)
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    log = path.with_name(f"{path.name}-wal")
    if mode == "ro" and not os.access(path.parent, os.W_OK) and not (log.exists() and log.stat().st_size):
        uri += "&immutable=1"  # on a read-only medium SQLite cannot make its lock file, and needs none
    with translated_errors(path):
        connection = sqlite3.connect(uri, uri=True, timeout=LOCK_WAIT_S, isolation_level=None)
        try:
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA cell_size_check = ON")
            connection.execute("PRAGMA foreign_keys = ON")
            schema = "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL AND name <> 'sqlite_sequence'"
            if [sql for (sql,) in connection.execute(schema)] != list(TABLES):
                raise NotAStoreError(f"{path}: its tables are not those of a divopd store of format {FORMAT}")
            connection.execute("PRAGMA busy_timeout = 0")  # from here on transactions wait in their own way
        except BaseException:
            connection.close()
            raise
    return connection


@contextmanager
def translated_errors(path: Path) -> Generator[None]:
    """Turn SQLite's errors into ours."""
    try:
        yield
    except sqlite3.ProgrammingError:  # a closed store, or another thread's: the caller's mistake
        raise
    except sqlite3.OperationalError as error:  # locked, disk full, I/O error: the store itself may be sound
        raise StoreError(f"{path}: {error}; what was acknowledged is kept, retry when the cause is gone") from None
    except (sqlite3.Error, UnicodeDecodeError) as error:  # text that is no text, also in SQLite's own messages
        raise NotAStoreError(f"{path}: the store is damaged ({error}); restore it from a copy") from None


def _fill(partial: Path, records: Sequence[tuple[str, int, bytes, bytes]]) -> None:
    with closing(sqlite3.connect(partial, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")  # it is synced once, when it is complete
        # the tables first, in the plain journal mode: its commit tells of a failed write, the closing of a WAL does not
        connection.execute("BEGIN")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {FORMAT}")
        for statement in TABLES:
            connection.execute(statement)
        connection.execute("INSERT INTO state VALUES (1, 0, 0, 0, 0, 0)")
        connection.executemany("INSERT INTO records (kind, number, json, digest) VALUES (?, ?, ?, ?)", records)
        connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode = WAL")


def _remove(partial: Path) -> None:
    for suffix in ("", "-journal", "-wal", "-shm"):
        with suppress(OSError):  # none there, or one that harms nobody
            partial.with_name(partial.name + suffix).unlink()


def _check_header(path: Path) -> None:
    """Refuse what is no store of ours, without leaving a file beside it.

    SQLite itself must read the file: closing a descriptor of our own would drop the locks of all connections that this
    process has to it, and they would go blind or worse as soon as another process closes the store.
    """
    try:
        size = path.stat().st_size
    except OSError as error:
        raise NotAStoreError(
            f"{path}: cannot be read ({error.strerror}); expected a run's folder or its {STORE_NAME}"
        ) from None
    if not size:
        raise NotAStoreError(f"{path}: the file is empty; expected a run's {STORE_NAME}")
    try:
        # immutable: as it is, no log and no lock file
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            [[application], [found]] = (connection.execute(f"PRAGMA {name}").fetchone() for name in HEADER)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        if "malformed" in str(error):  # SQLITE_CORRUPT, whose number Python 3.10 does not tell
            return  # or another process is just moving its log into the file: opening it with the log tells which
        raise NotAStoreError(
            f"{path}: not a store; expected a run's {STORE_NAME} (a recording of JSON lines is no store)"
        ) from None
    if application != APPLICATION_ID:
        raise NotAStoreError(f"{path}: a database, but not a divopd store; expected a run's {STORE_NAME}")
    if found != FORMAT:
        advice = "upgrade divopd to read it" if found > FORMAT else "read it with the version of divopd that wrote it"
        raise NotAStoreError(f"{path}: a store of format {found}; this divopd knows format {FORMAT}: {advice}")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
