"""What the store of a run does in one process, beyond what every store does (test_contract.py)."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from store_processes import fill, make_rollout, make_test_composer

from divopd.audits.ledger import audit_ledger
from divopd.composers import Composer
from divopd.composers.arrival import Vanilla
from divopd.composers.composer import Candidate, Decision, Selection, Settings
from divopd.errors import FencedError, InputError, NotAStoreError, StoreError, TurnFormatError
from divopd.methods import METHODS, make_composer
from divopd.metrics import batch_figures, figures_of_shares
from divopd.store import Store, StoreViews
from divopd.store.payload import digest_of
from divopd.store.session import seal
from divopd.turns import Fate, Rollout, TeacherTurn
from divopd.validity import why_invalid
from doubles.small_records import make_update_record


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(tmp_path / "store.db") as store:
        yield store


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
    assert {turn.fate for turn in store.turns_of("later")} == {Fate("queued")}


def test_arrival_numbers_are_never_reused(store: Store) -> None:
    """Even when the newest rows are taken out of the file, their numbers are not given again."""
    store.put(make_rollout("e.1", turns=3))
    with sqlite3.connect(store.path) as outside:
        for table in ("payloads", "turns", "rollouts"):
            outside.execute(f"DELETE FROM {table}")
    outside.close()
    store.put(make_rollout("e.2", turns=1))
    assert [turn.arrival for turn in store.turns_of("e.2")] == [4]


def make_helped(store: Store) -> Rollout:
    """A rollout with a turn of the teacher, in the store."""
    rollout = replace(make_rollout("e.1", turns=2), teacher_turns=(TeacherTurn(2, (7,), "go", "You are there."),))
    store.put(rollout)
    return rollout


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM records",
        "UPDATE records SET json = CAST(replace(CAST(json AS TEXT), 'You', 'Who') AS BLOB)",
        "UPDATE records SET number = number + 1",
    ],
)
def test_turns_of_the_teacher_are_as_they_were_put_or_not_believed(store: Store, damage: str) -> None:
    """A record that is missing, changed or another rollout's is found by `check`."""
    make_helped(store)
    store.check()
    outside_the_store(store, damage)
    with pytest.raises(NotAStoreError):
        store.check()


@pytest.mark.parametrize(
    "content",
    [
        {"format": 2, "turns": []},
        {"format": 1, "turns": [{"turn": "2", "response_ids": [], "action": None, "seen": ""}]},
        {"format": 1, "turns": [{"turn": 2, "response_ids": [2**40], "action": None, "seen": ""}]},
        {"format": 1, "turns": [{"turn": 2, "response_ids": [], "action": 3, "seen": ""}]},
        {"format": 1, "turns": [{"turn": 2, "response_ids": [], "action": "go", "seen": None}]},
        [],
        None,
    ],
)
def test_strange_turns_of_the_teacher_are_refused(store: Store, content: Any) -> None:
    """A record that is whole but not of this format is one line, not turns that somebody then shows."""
    make_helped(store)
    text = json.dumps(content).encode()
    with closing(sqlite3.connect(store.path)) as outside, outside:
        outside.execute("UPDATE records SET json = ?, digest = ?", (text, seal(text, "teacher_turns", 1)))
    with pytest.raises(NotAStoreError, match="damaged"):
        store.teacher_turns("e.1")


def test_a_rollout_without_turns_of_the_teacher_has_none(store: Store) -> None:
    """As in every store of before they were kept, whose rollouts have the digests that they would have today."""
    rollout = replace(make_rollout("e.1", turns=2), teacher_turns=())
    store.put(rollout)
    assert store.teacher_turns("e.1") == ()
    with closing(sqlite3.connect(store.path)) as outside:
        assert outside.execute("SELECT count(*) FROM records").fetchone() == (0,)
        [digest] = outside.execute("SELECT digest FROM rollouts").fetchone()
        tokens = outside.execute("SELECT digest FROM turns ORDER BY turn").fetchall()
    parts = [b"e.1", rollout.task.encode(), b"0", *(p for n, (d,) in enumerate(tokens) for p in (b"%d 0" % n, d))]
    assert digest == digest_of(*parts)


# ── learning ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("method", METHODS)
def test_a_batch_comes_back_identical_from_the_file(tmp_path: Path, method: str) -> None:
    """Composed, and served to another process later: the same turns, weights, passes and digest."""
    composer = make_composer(method, batch_size=5, pool_multiplier=3, cap=2, max_pending_age=1)
    composed = []
    with Store.create(tmp_path / "store.db") as store:
        epoch = store.begin_learner()
        for update in range(4):
            for number in range(5):
                store.put(make_rollout(f"e.{update}.{number}", version=update))
            composed.append(store.compose(composer, update=update, epoch=epoch))
    with Store.open_read_only(tmp_path) as reader:
        assert [reader.batch(update) for update in range(4)] == composed
        audit_ledger(reader)


def test_the_digest_of_a_batch_covers_those_before_it(tmp_path: Path) -> None:
    """Two runs whose last entries are equal and whose first are not have other digests of both."""
    digests = []
    for seed in (0, 1):
        with Store.create(tmp_path / f"{seed}.db") as store:
            store.put(make_rollout("e.1", turns=4))
            epoch = store.begin_learner()
            store.compose(make_composer("vanilla", batch_size=2, seed=seed), update=0, epoch=epoch)
            last = store.compose(make_composer("vanilla", batch_size=2), update=1, epoch=epoch)
            digests.append((store.batch(0).digest, last.digest, last.entry))
    (first, last, entry), (other_first, other_last, other_entry) = digests
    assert entry == other_entry
    assert first != other_first
    assert last != other_last


def test_a_learner_is_told_what_is_wrong(store: Store) -> None:
    """Who was replaced, which update is next, what has to come before settling."""
    old = fill(store, updates=2)
    with pytest.raises(StoreError, match="asked to compose update 3, but the next one is 2"):
        store.compose(make_test_composer(), update=3, epoch=old)
    with pytest.raises(StoreError, match="checkpoints hold 0 updates; acknowledge the update first"):
        store.settle(0, epoch=old)
    with pytest.raises(InputError, match="no update 2"):
        store.acknowledge(2, epoch=old)
    new = store.begin_learner()
    with pytest.raises(FencedError, match=f"learner {old} was replaced by learner {new}"):
        store.acknowledge(1, epoch=old)


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


def test_settling_leaves_the_ledger(store: Store) -> None:
    """The tokens of turns that left are gone; fates, keys, the journal and how rollouts ended stay, and add up."""
    epoch = fill(store)
    with StoreViews.open(store.path) as page:
        listed = page.rollout_page(first=0, count=100)
    assert {row.success for row in listed.rows} == {True, False}
    journal, fates = [store.journal(update) for update in range(3)], {t.key: t.fate for t in store.stored_turns()}
    left = [turn for turn in store.stored_turns() if turn.fate.update in (0, 1)]
    store.acknowledge(1, epoch=epoch)
    assert store.settle(1, epoch=epoch) == len(left)
    with pytest.raises(StoreError, match="were dropped when update 0 was settled"):
        store.batch(0)
    assert [store.is_settled(turn) for turn in store.stored_turns()] == [t in left for t in store.stored_turns()]
    assert [store.journal(update) for update in range(3)] == journal
    assert {turn.key: turn.fate for turn in store.stored_turns()} == fates
    assert audit_ledger(store).settled == len(left)
    with StoreViews.open(store.path) as page:
        assert page.rollout_page(first=0, count=100) == listed


# ── versions, endings and records ─────────────────────────────────────────────────────────────────────────────────


def test_the_version_of_a_turn_counts_not_its_rollouts(store: Store) -> None:
    """Staleness, ages and a batch's figures look at the turn: the turns of one rollout may be of several versions."""
    composer = make_composer("divopd", batch_size=8, cap=8, max_staleness=1)
    valid = [turn for turn in make_rollout("e.1", version=0, turns=12).turns if why_invalid(turn) is None]
    store.put(Rollout("e.1", tuple(valid)), available_at=3)
    versions = dict(zip([turn.turn for turn in valid], (2, 3, 1, 2), strict=False))
    for turn, version in versions.items():  # as a policy that changes on the way would act
        outside_the_store(store, f"UPDATE turns SET version = {version} WHERE turn = {turn}")
    epoch = store.begin_learner()
    for update in range(3):
        assert store.compose(composer, update=update, epoch=epoch).turns == []
    assert store.rows(composer, update=3) == 3
    batch = store.compose(composer, update=3, epoch=epoch)
    fresh = {turn: version for turn, version in versions.items() if version >= 2}
    assert {turn.turn: turn.version for turn in batch.turns} == fresh
    assert {turn for _, turn in batch.entry.stale} == {turn.turn for turn in valid} - fresh.keys()
    with StoreViews.open(store.path) as page:
        assert page.ages() == {0: 1, 1: 2}
        [share] = page.shares(first=3, last=3)[3]
        assert figures_of_shares([share], update=3) == batch_figures(batch.candidates, update=3)
        [tally] = page.rollout_tallies(available_before=4)
        assert tally.version == 3
        [row] = page.rollout_page(first=0, count=1).rows
        assert row.version == 0


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), -0.0, 0, 7, None])
def test_a_reward_that_sqlite_does_not_know_is_no_damage(store: Store, reward: float | None) -> None:
    """Whatever number an environment gives, the rollout is as it was put; a page shows NaN as unknown."""
    turns = tuple(replace(turn, reward=reward, success=None) for turn in make_rollout("e.1", turns=2).turns)
    store.put(Rollout("e.1", turns))
    store.check()
    with StoreViews.open(store.path) as page:
        [row] = page.rollout_page(first=0, count=1).rows
    assert (row.success, row.reward) == (None, None if reward is None or reward != reward else reward)
    assert store.outcomes(after=0)[0].success is False


def test_a_record_keeps_what_is_not_finite(store: Store) -> None:
    """A loss that exploded is a figure like any other."""
    record = make_update_record(0, loss=float("inf"))
    assert store.record(record)
    assert store.update_records() == {0: record}


@pytest.mark.parametrize(
    ("kind", "what"), [("update", "the record of update 7"), ("evaluation", "the evaluation of version 7")]
)
@pytest.mark.parametrize("content", [{}, {"update": 7, "version": 7, "rows": "many"}, [], None, {"update": "Infinity"}])
def test_a_record_of_another_version_is_named(store: Store, kind: str, what: str, content: Any) -> None:
    """It is whole, but means nothing to this version of divopd: one line with the store and the update."""
    text = json.dumps(content).replace('"Infinity"', "Infinity").encode()
    connection = sqlite3.connect(store.path)
    connection.execute("INSERT INTO records VALUES (?, 7, ?, ?)", (kind, text, seal(text, kind, 7)))
    connection.commit()
    connection.close()
    with pytest.raises(NotAStoreError, match="records are not those of this version of divopd") as error:
        store.update_records() if kind == "update" else store.evaluations()
    assert str(store.path) in str(error.value)
    assert what in str(error.value)
    assert store.update_records(first=8) == {}


def outside_the_store(store: Store, statement: str) -> None:
    connection = sqlite3.connect(store.path)
    connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.parametrize("method", METHODS)
def test_the_rows_of_a_past_moment_are_known(store: Store, method: str) -> None:
    """A resumed run asks how many rows there were when so many turns had arrived, composed since or not."""
    composer = make_composer(method, batch_size=4, pool_multiplier=3, cap=2, max_staleness=1, max_pending_age=1)
    epoch, moments, turns = store.begin_learner(), [], 0
    for update in range(6):
        for number in range(3):
            moments.append((update, turns, store.rows(composer, update=update)))
            rollout = make_rollout(f"p.{update}.{number}", version=update)
            store.put(rollout)
            turns += len(rollout.turns)
        moments.append((update, turns, store.rows(composer, update=update)))
        if update < 5:  # the last one has not been composed yet
            store.compose(composer, update=update, epoch=epoch)
    assert [(update, put, store.rows(composer, update=update, arrived=put)) for update, put, _ in moments] == moments
