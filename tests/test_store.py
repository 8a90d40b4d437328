"""What a store does with good input, bad input, foreign files and damage, in one process."""

import os
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from divopd.audits.ledger import audit_ledger
from divopd.composers import METHODS, Composer, make_composer
from divopd.composers.arrival import Vanilla
from divopd.composers.composer import Candidate, Decision, Selection, Settings
from divopd.errors import (
    ConflictError,
    DivopdError,
    FencedError,
    InputError,
    NotAStoreError,
    QueueFullError,
    StoreError,
    TurnFormatError,
)
from divopd.store import Store
from divopd.store_schema import APPLICATION_ID, FORMAT, TABLES
from divopd.turns import Fate, Rollout, Turn
from store_processes import make_rollout, make_test_composer


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with Store.create(tmp_path / "store.db") as store:
        yield store


def fill(store: Store, *, rollouts: int = 6, updates: int = 3) -> int:
    """Some rollouts and updates; returns the epoch of the learner."""
    epoch = store.begin_learner()
    for update in range(updates):
        for number in range(rollouts):
            store.put(make_rollout(f"e.{update}.{number}", version=update))
        store.compose(make_test_composer(), update=update, epoch=epoch)
    return epoch


# ── putting ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt_ids", [-1]),
        ("prompt_ids", [2**31]),
        ("prompt_ids", [1.0]),
        ("response_ids", None),
        ("student_logprobs", ["x"]),
        ("action_mask", [2]),
        ("teacher_mask", [-1]),
        ("turn", -1),
        ("version", -1),
        ("task", 7),
        ("reward", "high"),
        ("success", 1),
        ("rollout", "../../etc/passwd"),
        ("rollout", "a b"),
        ("rollout", "x" * 129),
        ("rollout", "r\n"),
    ],
)
def test_a_turn_with_impossible_values_is_refused(store: Store, field: str, value: Any) -> None:
    """Ids, masks and names that cannot be are refused with the field's name, and nothing is stored."""
    turn = replace(make_rollout("e.1", turns=1).turns[0], **{field: value})
    with pytest.raises(TurnFormatError):
        store.put(Rollout(turn.rollout, (turn,)))
    assert store.account().put == 0


def test_a_rollout_is_put_once(store: Store) -> None:
    """The same content again is a no-op, also much later and with another available_at."""
    rollout = make_rollout("e.1")
    assert store.put(rollout)
    assert not store.put(rollout)
    store.compose(make_test_composer(), update=0, epoch=store.begin_learner())
    assert not store.put(rollout, available_at=0)
    assert store.account().put == len(rollout.turns)


@pytest.mark.parametrize("change", [{"reward": 9.0}, {"prompt_ids": [1]}, {"teacher_mask": [0]}])
def test_other_content_under_a_known_id_is_a_conflict(store: Store, change: dict[str, Any]) -> None:
    """A changed turn, a missing turn or an added turn is a ConflictError and changes nothing."""
    rollout = make_rollout("e.1", turns=3)
    store.put(rollout)
    changed = (*rollout.turns[:2], replace(rollout.turns[2], **change))
    for turns in (changed, rollout.turns[:2], (*rollout.turns, replace(rollout.turns[2], turn=9))):
        with pytest.raises(ConflictError, match=r"e\.1"):
            store.put(Rollout("e.1", turns))
    assert [store.whole(turn) for turn in store.turns_of("e.1")] == list(rollout.turns)


def test_arrival_and_available_at_agree(store: Store) -> None:
    """available_at is the next update unless stated, never falls, and never lies before the policy that acted."""
    epoch = fill(store, updates=2)
    store.put(make_rollout("now", version=2))
    store.put(make_rollout("later", version=3), available_at=4)
    store.put(make_rollout("behind", version=2))
    assert [store.turns_of(name)[0].available_at for name in ("e.0.0", "e.1.0", "now", "later", "behind")] == [
        0,
        1,
        2,
        4,
        4,
    ]
    with pytest.raises(InputError, match="available_at is 3"):
        store.put(make_rollout("past"), available_at=3)
    with pytest.raises(TurnFormatError, match="version 5 is above available_at 4"):
        store.put(make_rollout("future", version=5))
    store.compose(make_test_composer(), update=2, epoch=epoch)
    assert store.fates("later") == {turn.turn: Fate("queued") for turn in store.turns_of("later")}


def test_a_full_queue_makes_an_explorer_wait(tmp_path: Path) -> None:
    """A bounded queue is never overfilled: a put waits for the learner, and gives up after the time it was given."""
    composer = make_test_composer()
    with Store.create(tmp_path / "store.db", max_queued=10) as store:
        epoch = store.begin_learner()
        assert store.put(make_rollout("long", turns=12))  # an empty queue takes any rollout
        started = time.monotonic()
        with pytest.raises(QueueFullError, match=r"full for 0\.1 s"):
            store.put(make_rollout("e.1", turns=1), wait_s=0.1)
        assert time.monotonic() - started < 5
        assert not store.put(make_rollout("long", turns=12), wait_s=0)  # known already: no room needed

        def put() -> None:
            with Store.open(tmp_path) as other:
                assert other.put(make_rollout("e.1", turns=1), wait_s=60)

        waiting = threading.Thread(target=put)
        waiting.start()
        time.sleep(0.1)
        store.compose(composer, update=0, epoch=epoch)
        waiting.join(timeout=60)
        assert store.fates("e.1") == {0: Fate("queued")}


def test_arrival_numbers_are_never_reused(store: Store) -> None:
    """Even when the newest rows are taken out of the file, their numbers are not given again."""
    store.put(make_rollout("e.1", turns=3))
    with sqlite3.connect(store.path) as outside:
        for table in ("payloads", "turns", "rollouts"):
            outside.execute(f"DELETE FROM {table}")
    outside.close()
    store.put(make_rollout("e.2", turns=1))
    assert [turn.arrival for turn in store.turns_of("e.2")] == [4]


# ── learning ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("method", METHODS)
def test_a_batch_comes_back_identical(tmp_path: Path, method: str) -> None:
    """Composed, served again, and served after a reopening: the same turns, weights, passes and digest."""
    composer = make_composer(method, batch_size=5, pool_multiplier=3, cap=2, max_pending_age=1)
    composed = []
    with Store.create(tmp_path / "store.db") as store:
        epoch = store.begin_learner()
        for update in range(4):
            for number in range(5):
                store.put(make_rollout(f"e.{update}.{number}", version=update))
            composed.append(store.compose(composer, update=update, epoch=epoch))
        assert [store.batch(update) for update in range(4)] == composed
    with Store.open_read_only(tmp_path) as reader:
        assert [reader.batch(update) for update in range(4)] == composed
        audit_ledger(reader)
    for batch in composed:
        assert [turn.key for turn in batch.turns] == batch.entry.selected == [c.key for c in batch.candidates]
        assert all(
            turn == make_rollout(turn.rollout, version=turn.version).turns[turn.turn] for turn in strip(batch.turns)
        )


def strip(turns: list[Turn]) -> list[Turn]:
    return [replace(turn, available_at=0) for turn in turns]


def test_a_second_learner_fences_the_first(store: Store) -> None:
    """Once another learner has begun, the first can write nothing; what it tried has no effect."""
    old = fill(store, updates=2)
    new = store.begin_learner()
    before = (store.account(), store.resume_point())
    attempts: list[Callable[[], Any]] = [
        lambda: store.compose(make_test_composer(), update=2, epoch=old),
        lambda: store.acknowledge(1, epoch=old),
        lambda: store.settle(0, epoch=old),
    ]
    for attempt in attempts:
        with pytest.raises(FencedError, match=f"learner {old} was replaced by learner {new}"):
            attempt()
    assert (store.account(), store.resume_point()) == before
    store.compose(make_test_composer(), update=2, epoch=new)


@pytest.mark.parametrize("update", [0, 1, 3])
def test_only_the_next_update_is_composed(store: Store, update: int) -> None:
    """An update is composed once and in order."""
    epoch = fill(store, updates=2)
    with pytest.raises(StoreError, match="the next one is 2"):
        store.compose(make_test_composer(), update=update, epoch=epoch)


class Twice(Vanilla):
    """A user's composer that selects its first turn twice."""

    def select(self, pool: list[Candidate], *, update: int) -> Selection:
        selected, passes = super().select(pool, update=update)
        return Selection([*selected, pool[0]], [*passes, 1])


class Forgetful(Vanilla):
    """A user's composer that loses what it does not select."""

    def decide(self, pool: Any, *, update: int) -> Decision:
        return super().decide(pool[:1], update=update)


@pytest.mark.parametrize("broken", [Twice, Forgetful])
def test_a_broken_composer_cannot_break_the_ledger(store: Store, broken: type[Composer]) -> None:
    """A turn that a composer returns twice or loses is a StoreError before anything is journalled."""
    store.put(make_rollout("e.1", turns=4))
    before = store.account()
    with pytest.raises(StoreError, match="exactly one list"):
        store.compose(broken(Settings("mine", batch_size=3)), update=0, epoch=store.begin_learner())
    assert (store.account(), store.updates) == (before, 0)


def test_the_pool_tells_what_could_be_composed(store: Store) -> None:
    """A learner sees how many turns it would have, without changing anything."""
    composer = make_test_composer()
    assert store.pool(composer, update=0) == []
    store.put(make_rollout("e.1", turns=3))
    assert [c.key for c in store.pool(composer, update=0)] == [("e.1", 0), ("e.1", 1), ("e.1", 2)]
    assert store.pool(composer, update=7) == []  # stale by then
    assert store.account().queued == 3


def test_settling_waits_for_the_checkpoint(store: Store) -> None:
    """Tokens are dropped only after the acknowledgement, only of turns that left; the ledger stays."""
    epoch = fill(store)
    with pytest.raises(StoreError, match="checkpoints hold 0 updates"):
        store.settle(0, epoch=epoch)
    with pytest.raises(InputError, match="no update 3"):
        store.acknowledge(3, epoch=epoch)
    store.acknowledge(1, epoch=epoch)
    with pytest.raises(StoreError, match="acknowledge the update first"):
        store.settle(2, epoch=epoch)
    last, account = store.batch(2), store.account()
    left = sum(turn.fate.update in (0, 1) for turn in store.stored_turns())
    assert store.settle(1, epoch=epoch) == left
    assert store.settle(1, epoch=epoch) == 0
    with pytest.raises(StoreError, match="were dropped when update 0 was settled"):
        store.batch(0)
    assert store.journal(0).selected
    assert (store.batch(2), store.account()) == (last, account)
    assert audit_ledger(store).settled == left
    assert store.resume_point() == (2, 3)


def test_acknowledging_an_older_update_takes_nothing_back(store: Store) -> None:
    """A learner that resumed from an older checkpoint acknowledges again; the resume point never falls."""
    epoch = fill(store)
    store.acknowledge(2, epoch=epoch)
    store.acknowledge(0, epoch=epoch)
    assert store.resume_point() == (3, 3)


def test_figures_and_events_are_kept(store: Store) -> None:
    """Figures are kept by number, the last recorded counts; events in their order."""
    store.record_figures("update", 1, {"loss": 1.5})
    store.record_figures("update", 1, {"loss": float("inf")})
    store.record_figures("evaluation", 1, {"success": 40})
    store.record_event("start", {"epoch": 1})
    store.record_event("wait", {"seconds": 2})
    assert store.figures("update") == {1: {"loss": float("inf")}}
    assert store.figures("evaluation") == {1: {"success": 40}}
    assert store.events() == [("start", {"epoch": 1}), ("wait", {"seconds": 2})]


# ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────────


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
        "upgrade divopd",
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
        return report, repr(list(store.turns())), repr(batches), store.figures("update"), store.events()


def test_damage_is_detected_or_harmless(tmp_path: Path) -> None:
    """Flip bytes anywhere in a store, or cut it anywhere: an error of ours, or exactly what was there before."""
    original, damaged = tmp_path / "store.db", tmp_path / "damaged.db"
    with Store.create(original) as store:
        fill(store, rollouts=3, updates=2)
        store.record_event("start", {"epoch": 1})
        store.record_figures("update", 1, {"loss": 0.5})
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
    child = "import sys; from divopd.store import Store; Store.open(sys.argv[1]).record_event('x', {})"
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
