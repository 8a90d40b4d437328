"""What every store does, whatever it is made of: the SQLite file of a run, and the lists that other tests use."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from store_processes import fill, make_rollout, make_test_composer

from divopd.composers.arrival import Vanilla
from divopd.composers.composer import Candidate, Composer, Selection, Settings, candidate_of
from divopd.composers.rollout_first import DivOPD
from divopd.curricula import Outcome
from divopd.errors import ConflictError, FencedError, InputError, StoreError, TurnFormatError
from divopd.methods import METHODS, make_composer
from divopd.store import WRONG_ANSWER, Evaluations, Ledger, Questions, Queue, Store
from divopd.turns import Rollout, TeacherTurn, Turn
from doubles.memory_store import AnyStore, MemoryStore
from doubles.small_records import make_evaluation_record, make_update_record


@pytest.mark.parametrize("kind", [Store, MemoryStore])
@pytest.mark.parametrize("face", [Queue, Questions, Ledger, Evaluations])
def test_every_face_is_there(kind: type, face: type) -> None:
    """Whatever a role may ask is answered by a method of that name with these arguments."""
    asked = {name for part in face.__mro__ for name in vars(part) if not name.startswith("_")}
    assert asked
    for name in asked:
        wanted, got = inspect.getattr_static(face, name), inspect.getattr_static(kind, name)
        assert isinstance(got, property) == isinstance(wanted, property)
        if not isinstance(wanted, property):
            assert inspect.signature(got) == inspect.signature(wanted)


# ── explorers and teachers ────────────────────────────────────────────────────────────────────────────────────────


def test_numbers_are_given_once(store: AnyStore) -> None:
    """Explorers that ask for numbers get those that nobody had before."""
    assert [store.reserve(3), store.reserve(2), store.reserve(1)] == [range(3), range(3, 5), range(5, 6)]


def test_a_rollout_waits_for_the_teacher_until_it_is_put(store: AnyStore) -> None:
    """The newest is scored first; offered again it is neither kept nor counted twice, nor after it was put."""
    offered = [make_rollout(f"e.{number}") for number in range(3)]
    for rollout in offered:
        store.offer(rollout, generated_tokens=5)
    store.offer(offered[0], generated_tokens=5)
    assert store.unscored(2) == [offered[2], offered[1]]
    assert store.arrived() == (0, 0, 15, 0)
    assert store.put(offered[1])
    store.offer(offered[1], generated_tokens=5)
    assert store.unscored(9) == [offered[2], offered[0]]
    tokens = sum(turn.tokens for turn in offered[1].turns)
    assert store.arrived() == (1, len(offered[1].turns), 15, tokens)


def test_generated_tokens_are_counted_once(store: AnyStore) -> None:
    """With the offer of a rollout, or with its first put if it never had to wait for a teacher."""
    offered, scored_at_once = make_rollout("e.1"), make_rollout("e.2")
    store.offer(offered, generated_tokens=5)
    for rollout in (offered, scored_at_once, offered, scored_at_once):
        store.put(rollout, generated_tokens=7)
    store.offer(scored_at_once, generated_tokens=7)
    assert store.arrived().generated_tokens == 12


def test_a_rollout_is_put_once(store: AnyStore) -> None:
    """The same content again is a no-op, also much later and with another available_at."""
    rollout = make_rollout("e.1")
    assert store.put(rollout)
    assert not store.put(rollout)
    store.compose(make_test_composer(), update=0, epoch=store.begin_learner())
    assert not store.put(rollout, available_at=0)
    assert store.account().put == len(rollout.turns)


@pytest.mark.parametrize("change", [{"reward": 9.0}, {"prompt_ids": [1]}, {"teacher_mask": [0]}, {"version": 1}])
def test_other_content_under_a_known_id_is_a_conflict(store: AnyStore, change: dict[str, Any]) -> None:
    """A changed turn, a missing turn or an added turn is a ConflictError and changes nothing."""
    rollout = make_rollout("e.1", version=0, turns=3)
    store.put(rollout, available_at=2)
    before = store.arrived(), store.outcomes(after=0)
    changed = tuple(replace(turn, **change) for turn in rollout.turns)
    for turns in (changed, rollout.turns[:2], (*rollout.turns, replace(rollout.turns[2], turn=9))):
        with pytest.raises(ConflictError, match=r"e\.1"):
            store.put(Rollout("e.1", turns))
    assert (store.arrived(), store.outcomes(after=0)) == before


def test_a_put_that_is_refused_changes_nothing(store: AnyStore) -> None:
    """The rollout still waits for the teacher, and what it took is counted as before."""
    fill(store, updates=2)
    waiting = make_rollout("e.1")
    store.offer(waiting, generated_tokens=5)
    before = store.arrived()
    with pytest.raises(InputError):
        store.put(waiting, available_at=0)
    assert store.unscored(9) == [waiting]
    assert store.arrived() == before


TAUGHT = (TeacherTurn(3, (5, 6), "open the fridge", "It is open."), TeacherTurn(4, (), None, "Nothing \ud800."))


def test_turns_of_the_teacher_go_with_their_rollout_and_are_no_rows(store: AnyStore) -> None:
    """They come back when it waits and after it was put, and nobody who counts, reads or composes turns sees them."""
    plain, helped = make_rollout("e.1", turns=3), make_rollout("e.2", turns=3)
    plain, helped = replace(plain, teacher_turns=()), replace(helped, teacher_turns=TAUGHT)
    store.offer(helped, generated_tokens=5)
    assert store.unscored(9) == [helped]
    for rollout in (plain, helped):
        assert store.put(rollout)
        assert not store.put(rollout)
    assert [store.teacher_turns(name) for name in ("e.1", "e.2")] == [(), TAUGHT]
    assert (store.arrived().turns, store.backlog(), store.account().put) == (6, 6, 6)
    assert [len(outcome.turns) for outcome in store.outcomes(after=0)] == [3, 3]
    vanilla = make_composer("vanilla", batch_size=9)
    assert store.rows(vanilla, update=0) == 6
    epoch = store.begin_learner()
    batch = store.compose(vanilla, update=0, epoch=epoch)
    assert sorted(turn.key for turn in batch.turns) == [(name, turn) for name in ("e.1", "e.2") for turn in range(3)]
    store.acknowledge(0, epoch=epoch)
    store.settle(0, epoch=epoch)
    assert store.teacher_turns("e.2") == TAUGHT


def test_other_turns_of_the_teacher_are_another_content(store: AnyStore) -> None:
    """Under a known id they are a conflict, and those that were put first stay."""
    rollout = replace(make_rollout("e.1", turns=3), teacher_turns=TAUGHT)
    store.put(rollout)
    for taught in ((), TAUGHT[:1], (replace(TAUGHT[0], seen="It is shut."), TAUGHT[1])):
        with pytest.raises(ConflictError, match=r"e\.1"):
            store.put(replace(rollout, teacher_turns=taught))
    assert store.teacher_turns("e.1") == TAUGHT


def test_a_wrong_answer_is_noted_with_its_rollout(store: AnyStore) -> None:
    """Once, by the first put, which counts: a resume may score the same rollout again, rightly or wrongly."""
    scored = {name: make_rollout(name, turns=2) for name in ("e.1", "e.2")}
    bare = {
        name: replace(
            rollout,
            turns=tuple(replace(turn, teacher_logprobs=None) for turn in rollout.turns),
            wrong_answer="no JSON",
        )
        for name, rollout in scored.items()
    }
    assert [store.put(bare["e.1"]), store.put(scored["e.2"])] == [True, True]
    before = store.arrived(), store.outcomes(after=0)
    for again in (bare["e.1"], scored["e.1"], replace(bare["e.1"], wrong_answer=None), bare["e.2"], scored["e.2"]):
        assert not store.put(again)
    assert (store.arrived(), store.outcomes(after=0)) == before
    noted = {"rollout": "e.1", "task": scored["e.1"].task, "reason": "no JSON", "turns": 2, "update": 0}
    assert store.events() == [(1, WRONG_ANSWER, noted)]


def test_available_at_never_falls(store: AnyStore) -> None:
    """It is the next update unless stated, never lies before an earlier arrival's, nor before the policy that acted."""
    epoch = fill(store, updates=2)
    store.put(make_rollout("now", version=2))
    store.put(make_rollout("later", version=3), available_at=4)
    store.put(make_rollout("behind", version=2))
    assert [store.rollouts(available_by=update) for update in range(5)] == [6, 12, 13, 13, 15]
    with pytest.raises(InputError):
        store.put(make_rollout("past"), available_at=3)
    with pytest.raises(TurnFormatError):
        store.put(make_rollout("future", version=5))
    assert store.rollouts(available_by=9) == 15
    waiting = sum(len(make_rollout(name, version=v).turns) for name, v in (("later", 3), ("behind", 2)))
    store.compose(make_test_composer(), update=2, epoch=epoch)
    assert store.backlog() == waiting


def test_outcomes_are_read_in_order_of_arrival_from_a_cursor(store: AnyStore) -> None:
    """Every rollout is told once, in order, with what was measured of each turn; settling it changes nothing."""
    put = [make_rollout(f"e.{number}", version=number) for number in range(3)]
    unknown = replace(put[0].turns[0], rollout="nobody.knows", success=None)
    put.append(Rollout(unknown.rollout, (unknown,)))
    for rollout in reversed(put):
        store.put(rollout, available_at=3)
    expected = [
        Outcome(
            number,
            rollout.version,
            rollout.turns[0].success is True,
            tuple((c.disagreement, c.valid_tokens) for c in (candidate_of(t, first_seen=0) for t in rollout.turns)),
        )
        for number, rollout in enumerate(reversed(put), 1)
    ]
    assert {outcome.success for outcome in expected} == {True, False}
    assert store.outcomes(after=0) == expected
    assert [store.outcomes(after=number) for number in (1, 3, 4, 9)] == [expected[1:], expected[3:], [], []]
    epoch = store.begin_learner()
    for update in range(5):
        store.compose(make_test_composer(), update=update, epoch=epoch)
    store.acknowledge(4, epoch=epoch)
    assert store.settle(4, epoch=epoch) > 0
    assert store.outcomes(after=0) == expected


def test_the_backlog_is_what_no_update_has_read(store: AnyStore) -> None:
    """Turns count from their put to the update that reads them, also if they stay pending then."""
    store.put(make_rollout("e.1", turns=9), available_at=0)
    assert store.backlog() == 9
    composer = make_composer("divopd", batch_size=2, pool_multiplier=2)
    store.compose(composer, update=0, epoch=store.begin_learner())
    assert store.backlog() == 5


# ── the learner ───────────────────────────────────────────────────────────────────────────────────────────────────


class Counting(Composer):
    """Says how many rows it could choose from, each time it was asked."""

    seen: list[int]

    def select(self, pool: list[Candidate], *, update: int) -> Selection:
        self.seen.append(len(pool))
        return super().select(pool, update=update)  # pyright: ignore[reportAbstractUsage]


class CountingVanilla(Counting, Vanilla):
    """Without a gate: dead rows count."""


class CountingDivOPD(Counting, DivOPD):
    """With a gate."""


@pytest.mark.parametrize("kind", [CountingVanilla, CountingDivOPD])
def test_rows_are_what_a_composer_would_choose_from(store: AnyStore, kind: type[Counting]) -> None:
    """Asked before composing, without changing anything: stale turns never count, invalid ones only without a gate."""
    composer = kind(Settings("mine", batch_size=6, pool_multiplier=3, max_staleness=1, max_pending_age=2))
    composer.seen = []
    epoch, told = store.begin_learner(), list[int]()
    for update in range(8):
        for number in range(update % 3):
            rollout = make_rollout(f"e.{update}.{number}", version=max(update - number * 2, 0))
            store.put(rollout, available_at=update + 1 if update == 4 else None)
        told += [store.rows(composer, update=update), store.rows(composer, update=update)]
        store.compose(composer, update=update, epoch=epoch)
    assert told[::2] == told[1::2] == composer.seen
    assert 0 in told
    assert max(told) >= 6


@pytest.mark.parametrize("method", METHODS)
def test_a_batch_comes_back_identical(store: AnyStore, method: str) -> None:
    """Composed and served again: the same turns, weights, passes and digest; the turns are those that were put."""
    composer = make_composer(method, batch_size=5, pool_multiplier=3, cap=2, max_pending_age=1)
    epoch, composed = store.begin_learner(), []
    for update in range(4):
        for number in range(5):
            store.put(make_rollout(f"e.{update}.{number}", version=update))
        composed.append(store.compose(composer, update=update, epoch=epoch))
    assert [store.batch(update) for update in range(4)] == composed
    assert len({batch.digest for batch in composed}) == 4
    for update, batch in enumerate(composed):
        assert batch.update == batch.entry.update == update
        assert [turn.key for turn in batch.turns] == batch.entry.selected == [c.key for c in batch.candidates]
        for turn in batch.turns:
            assert replace(turn, available_at=0) == make_rollout(turn.rollout, version=turn.version).turns[turn.turn]
    for missing in (-1, 4):
        with pytest.raises(InputError):
            store.batch(missing)


@pytest.mark.parametrize("update", [0, 1, 3])
def test_only_the_next_update_is_composed(store: AnyStore, update: int) -> None:
    """An update is composed once and in order."""
    epoch = fill(store, updates=2)
    with pytest.raises(StoreError):
        store.compose(make_test_composer(), update=update, epoch=epoch)
    assert store.updates == 2


def test_a_second_learner_fences_the_first(store: AnyStore) -> None:
    """Once another learner has begun, the first can write nothing; what it tried has no effect."""
    old = fill(store, updates=2)
    new = store.begin_learner()
    before = (store.account(), store.updates)
    attempts: list[Callable[[], Any]] = [
        lambda: store.compose(make_test_composer(), update=2, epoch=old),
        lambda: store.acknowledge(1, epoch=old),
        lambda: store.settle(0, epoch=old),
    ]
    for attempt in attempts:
        with pytest.raises(FencedError):
            attempt()
    assert (store.account(), store.updates) == before
    with pytest.raises(StoreError):  # nothing was acknowledged
        store.settle(0, epoch=new)
    store.compose(make_test_composer(), update=2, epoch=new)


def test_settling_waits_for_the_checkpoint(store: AnyStore) -> None:
    """Tokens are dropped only after the acknowledgement, only of turns that left; later batches are still served."""
    epoch = fill(store)
    with pytest.raises(InputError):
        store.acknowledge(3, epoch=epoch)
    store.acknowledge(1, epoch=epoch)
    store.acknowledge(0, epoch=epoch)  # takes nothing back
    with pytest.raises(StoreError):
        store.settle(2, epoch=epoch)
    last, account = store.batch(2), store.account()
    gone = store.settle(0, epoch=epoch)
    assert gone > 0
    assert store.batch(1).turns
    assert store.settle(1, epoch=epoch) > 0
    assert store.settle(1, epoch=epoch) == 0
    for update in (0, 1):
        with pytest.raises(StoreError):
            store.batch(update)
    assert (store.batch(2), store.account()) == (last, account)


def test_every_rollout_is_decided_once(store: AnyStore) -> None:
    """Used by the first update that trains one of its valid turns, or unused by the one that lets go of the last."""
    composer = make_composer("divopd", batch_size=4, pool_multiplier=3, cap=2, max_staleness=1, max_pending_age=1)
    epoch, decided = store.begin_learner(), []
    for update in range(9):
        for number in range(6 if update < 4 else 0):
            store.put(make_rollout(f"e.{update}.{number}", version=update))
        entry = store.compose(composer, update=update, epoch=epoch).entry
        now = store.decided(update)
        assert now.used <= len({name for name, _ in entry.selected})
        decided.append(now)
    valid = [
        rollout
        for update in range(4)
        for rollout in (make_rollout(f"e.{update}.{number}", version=update) for number in range(6))
        if any(candidate_of(turn, first_seen=0).reason is None for turn in rollout.turns)
    ]
    used, unused, *_ = (sum(counts) for counts in zip(*decided, strict=True))
    assert (store.account().pending, store.account().queued) == (0, 0)
    assert used + unused == len(valid)
    assert used > 0
    assert unused > 0
    assert [store.decided(update) for update in range(9)] == decided  # looked at again, nothing has moved
    with pytest.raises(InputError):
        store.decided(9)


def test_a_rollout_is_not_decided_while_a_turn_of_it_waits(store: AnyStore) -> None:
    """The pool ends inside a rollout: its first turn ages out while its second, which was seen later, still waits."""
    first, last = (_without_doubt(name, surprise) for name, surprise in (("a", 3.0), ("b", 1.0)))
    composer = make_composer("top-b", batch_size=1, pool_multiplier=3, max_pending_age=0)
    store.put(first)
    store.put(last)
    epoch = store.begin_learner()
    aged_out, decided = [], []
    for update in range(3):
        aged_out.append(store.compose(composer, update=update, epoch=epoch).entry.aged_out)
        decided.append((store.decided(update).used, store.decided(update).unused))
    assert aged_out == [[], [("b", 0)], []]
    assert decided == [(1, 0), (0, 0), (1, 0)]


def _without_doubt(name: str, surprise: float) -> Rollout:
    """A rollout of two valid turns with this disagreement."""
    tokens: dict[str, Any] = {"prompt_ids": [1], "response_ids": [2], "action_mask": [1]}
    scores: dict[str, Any] = {"student_logprobs": [-0.5], "teacher_logprobs": [-0.5 - surprise]}
    return Rollout(name, tuple(Turn(name, number, "t", 0, **tokens, **scores) for number in range(2)))


def test_an_update_drains_what_it_reads_and_is_not_stale(store: AnyStore) -> None:
    """A turn that was stale when it was read was not drained; one that became stale while pending was."""
    composer = make_composer("vanilla-wide", batch_size=2, pool_multiplier=2, max_staleness=1)
    epoch = store.begin_learner()
    store.put(make_rollout("old", version=0, turns=9))
    store.compose(composer, update=0, epoch=epoch)  # a pool of 4, of which 2 stay pending
    store.compose(composer, update=1, epoch=epoch)  # 2 more are read
    store.put(make_rollout("new", version=2, turns=3))
    last = store.compose(composer, update=2, epoch=epoch)
    assert len(last.entry.stale) == 5  # the 2 that were pending, and 3 in the queue
    assert [store.decided(update).drained for update in range(3)] == [4, 2, 3]


def test_an_update_leaves_turns_pending(store: AnyStore) -> None:
    """What it read and neither selected nor let go; asked later, an update still says what it was then."""
    composer = make_composer("vanilla-wide", batch_size=2, pool_multiplier=4, max_staleness=9, max_pending_age=1)
    epoch = store.begin_learner()
    store.put(make_rollout("a", version=0, turns=9))
    left: list[int] = []
    for update in range(4):
        store.compose(composer, update=update, epoch=epoch)
        left.append(store.decided(update).pending)
    assert left == [6, 5, 1, 0]  # at update 2, 2 of the first 8 have been pending for too long
    assert [store.decided(update).pending for update in range(4)] == left


# ── records ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_first_record_of_an_update_counts(store: AnyStore) -> None:
    """A learner that serves a journalled batch again records it again: the store keeps what was true the first time."""
    first, again = make_update_record(0, turns_put=9), make_update_record(0, turns_put=90)
    assert store.record(first)
    assert not store.record(again)
    assert not store.record(first)
    assert store.record(make_update_record(1))
    assert store.update_records() == {0: first, 1: make_update_record(1)}


def test_the_first_evaluation_of_a_version_counts(store: AnyStore) -> None:
    """The same for evaluations, which are numbered by policy version and do not touch the records of updates."""
    assert store.record_evaluation(make_evaluation_record(3, success_rate=55.0))
    assert store.record_evaluation(make_evaluation_record(0))
    assert not store.record_evaluation(make_evaluation_record(3, success_rate=5.0))
    assert list(store.evaluations().items()) == [
        (0, make_evaluation_record(0)),
        (3, make_evaluation_record(3, success_rate=55.0)),
    ]
    assert store.update_records() == {}


def test_records_are_read_from_a_cursor(store: AnyStore) -> None:
    """Who looks often asks for what is new only."""
    for update in (2, 0, 1, 3):
        store.record(make_update_record(update))
    assert list(store.update_records()) == [0, 1, 2, 3]
    assert list(store.update_records(first=2)) == [2, 3]
    assert list(store.update_records(first=1, last=2)) == [1, 2]
    assert store.update_records(first=4) == {}


def test_notes_are_kept_in_order_and_read_from_a_cursor(store: AnyStore) -> None:
    """What happened comes back with its number; after it only what was noted later."""
    store.note("start", {"epoch": 1})
    store.note("wait", {"seconds": 2})
    assert store.events() == [(1, "start", {"epoch": 1}), (2, "wait", {"seconds": 2})]
    assert store.events(after=1) == [(2, "wait", {"seconds": 2})]
    assert store.events(after=2) == []
