"""The file of a store: how it is made, how a foreign, damaged, locked or moved one is met."""

import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from store_processes import fill, make_rollout, make_test_composer

from divopd.audits.ledger import audit_ledger
from divopd.errors import ConflictError, DivopdError, NotAStoreError, StoreError
from divopd.store import Store
from divopd.store.schema import APPLICATION_ID, FORMAT, TABLES
from doubles.small_records import make_evaluation_record, make_update_record


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(tmp_path / "store.db") as store:
        yield store


def other_database(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


OUR_ID, OUR_FORMAT = f"PRAGMA application_id = {APPLICATION_ID}", f"PRAGMA user_version = {FORMAT}"
FOREIGN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing": (lambda path: None, "No such file"),
    "folder": (lambda path: path.mkdir(), "No such file"),
    "empty": (lambda path: path.write_bytes(b""), "is empty"),
    "binary": (lambda path: path.write_bytes(random.Random(0).randbytes(5000)), "not a store"),
    "json lines": (lambda path: path.write_text('{"rollout": "e.1"}\n'), "not a store"),
    "short": (lambda path: path.write_bytes(b"SQLite format 3\0"), "not a store"),
    "another database": (lambda path: other_database(path, "CREATE TABLE t (x)"), "not a divopd store"),
    "newer": (
        lambda path: other_database(path, OUR_ID, f"PRAGMA user_version = {FORMAT + 1}", *TABLES),
        f"a store of format {FORMAT + 1}; this divopd knows format {FORMAT}: upgrade divopd",
    ),
    "older": (
        lambda path: other_database(path, OUR_ID, "PRAGMA user_version = 2", "CREATE TABLE state (max_queued)"),
        f"a store of format 2; this divopd knows format {FORMAT}: read it with the version of divopd that wrote it",
    ),
    "other tables": (
        lambda path: other_database(path, OUR_ID, OUR_FORMAT, "CREATE TABLE t (x)"),
        "its tables",
    ),
    "a trigger": (
        lambda path: other_database(
            path,
            OUR_ID,
            OUR_FORMAT,
            *TABLES,
            "CREATE TRIGGER evil AFTER INSERT ON turns BEGIN DELETE FROM turns; END",
        ),
        "its tables",
    ),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_foreign_file_is_refused_and_left_alone(tmp_path: Path, kind: str) -> None:
    """What is no store of this format gets one line with a hint, and neither it nor its folder is changed."""
    make, message = FOREIGN[kind]
    path = tmp_path / "store.db"
    make(path)
    before = {file: file.read_bytes() if file.is_file() else None for file in tmp_path.rglob("*")}
    for opening in (Store.open, Store.open_read_only):
        with pytest.raises(NotAStoreError, match=message) as error:
            opening(path)
        assert "\n" not in str(error.value)
        assert str(path) in str(error.value)
    assert {file: file.read_bytes() if file.is_file() else None for file in tmp_path.rglob("*")} == before


def test_creating_replaces_nothing(tmp_path: Path) -> None:
    """A store is created under its name complete, or not at all; a file that is there stays as it is."""
    path = tmp_path / "store.db"
    path.write_text("precious")
    with pytest.raises(ConflictError, match="exists already"):
        Store.create(path)
    assert path.read_text() == "precious"
    assert os.listdir(tmp_path) == ["store.db"]
    with pytest.raises(StoreError, match="cannot create"):
        Store.create(tmp_path / "no" / "store.db")


def test_a_reader_sees_one_moment_and_changes_nothing(store: Store) -> None:
    """A read-only store follows a running one, and inside a snapshot time stands still."""
    fill(store, updates=1)
    with Store.open_read_only(store.path) as reader:
        assert not hasattr(reader, "put")
        with reader.snapshot():
            before = reader.account()
            store.put(make_rollout("new", version=1))
            assert reader.account() == before
        assert reader.account() == store.account()
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            reader._db.execute("DELETE FROM turns")


def test_a_locked_store_is_an_error_after_a_stated_wait(store: Store) -> None:
    """While another process holds the lock for too long, a put gives up with a StoreError and stores nothing."""
    store.lock_wait_s = 0.05
    holder = sqlite3.connect(store.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked"):
        store.put(make_rollout("e.1"))
    holder.close()
    assert store.put(make_rollout("e.1"))


def test_a_full_disk_is_an_error_and_loses_nothing(store: Store) -> None:
    """When the file cannot grow, put raises a StoreError; all that was there stays, and later it goes on."""
    store.put(make_rollout("e.1"))
    limit = store._db.execute("PRAGMA max_page_count = 1").fetchone()[0]  # no page more than it has
    with pytest.raises(StoreError, match="full"):
        store.put(make_rollout("large", turns=200))
    audit_ledger(store)
    store._db.execute(f"PRAGMA max_page_count = {limit + 10_000}")
    assert store.put(make_rollout("e.2"))
    assert not store.put(make_rollout("e.1"))
    audit_ledger(store)


def read_everything(path: Path) -> tuple[Any, ...]:
    with Store.open_read_only(path) as store:
        report = audit_ledger(store)
        batches = [store.batch(update) for update in range(store.updates)]
        records = store.update_records(), store.evaluations(), store.events()
        taught = [store.teacher_turns(name) for name in sorted({turn.rollout for turn in store.stored_turns()})]
        return report, repr(list(store.turns())), repr(batches), records, taught


def test_damage_is_detected_or_harmless(tmp_path: Path) -> None:
    """Flip bytes anywhere in a store, or cut it anywhere: an error of ours, or exactly what was there before."""
    original, damaged = tmp_path / "store.db", tmp_path / "damaged.db"
    with Store.create(original) as store:
        fill(store, rollouts=3, updates=2)
        store.note("start", {"epoch": 1})
        store.record(make_update_record(1))
        store.record_evaluation(make_evaluation_record(0))
    expected = read_everything(original)
    content = original.read_bytes()
    rng, detected = random.Random(1), 0
    for attempt in range(100):
        changed = bytearray(content)
        if attempt % 10 == 0:
            changed = changed[: rng.randrange(len(content))]
        else:
            for _ in range(rng.choice((1, 1, 4, 64))):
                changed[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        damaged.write_bytes(changed)
        try:
            assert read_everything(damaged) == expected
        except DivopdError:
            detected += 1
        for leftover in tmp_path.glob("damaged.db-*"):
            leftover.unlink()
    assert detected > 30


def test_a_copied_store_is_the_same_run(tmp_path: Path) -> None:
    """A recording is the file: closed, moved and opened elsewhere it goes on."""
    with Store.create(tmp_path / "store.db") as store:
        fill(store)
        expected = store.account()
    (tmp_path / "run").mkdir()
    shutil.move(tmp_path / "store.db", tmp_path / "run" / "store.db")
    with Store.open(tmp_path / "run") as store:
        assert store.account() == expected
        store.compose(make_test_composer(), update=3, epoch=store.begin_learner())
        audit_ledger(store)


def test_a_store_on_a_read_only_medium_is_read(tmp_path: Path) -> None:
    """A recording on a medium where nothing can be written can be audited all the same."""
    with Store.create(tmp_path / "store.db") as store:
        fill(store)
    mount = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" || exit 77; exec "$@"'
    script = "import sys; from divopd.cli import main; sys.exit(main(['audit', 'ledger', sys.argv[1]]))"
    command = ["sh", "-c", mount, str(tmp_path), sys.executable, "-c", script, str(tmp_path)]
    if not shutil.which("unshare"):
        pytest.skip("for want of mounts of one's own")
    done = subprocess.run(["unshare", "-rm", *command], capture_output=True, text=True, check=False)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("for want of mounts of one's own")
    assert done.returncode == 0, done.stderr
    assert "3 updates recomputed" in done.stdout


def test_a_second_connection_of_a_process_leaves_the_first_its_sight(tmp_path: Path) -> None:
    """Opening a store again, as a page beside a run does, must not drop the locks of the connections that are there."""
    Store.create(tmp_path / "store.db").close()
    child = "import sys; from divopd.store import Store; Store.open(sys.argv[1]).note('x', {})"
    with Store.open_read_only(tmp_path) as first, Store.open_read_only(tmp_path) as second:
        for events in range(3):
            assert [len(first.events()), len(second.events())] == [events, events]
            subprocess.run([sys.executable, "-c", child, str(tmp_path)], check=True)


def test_a_store_can_be_opened_while_another_process_moves_its_log_into_the_file(tmp_path: Path) -> None:
    """The first page says how many pages there are, and is written before those that are new."""
    with Store.create(tmp_path / "store.db") as store:
        for number in range(40):  # the file will have to grow
            store.put(make_rollout(f"r{number}"))
        more = "import sys; f = open(sys.argv[1], 'r+b'); f.seek(28); n = int.from_bytes(f.read(4), 'big')"
        more += "; f.seek(28); f.write((n + 9).to_bytes(4, 'big'))"
        subprocess.run([sys.executable, "-c", more, str(tmp_path / "store.db")], check=True)
        with Store.open_read_only(tmp_path) as reader:
            assert reader.backlog() == store.backlog() > 0
