"""The layer "model" of the promises: the SQLite store and the in-memory one do the same, whatever is asked of them."""

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from store_processes import make_rollout

from divopd.audits.ledger import audit_ledger
from divopd.errors import DivopdError
from divopd.methods import METHODS, make_composer
from divopd.store import Answer, JournaledBatch, Question, Store
from divopd.turns import Rollout
from doubles.memory_store import MemoryStore

Load = tuple[int, int, int]  # rollouts, turns in each, updates that their policy lags behind
loads = st.tuples(st.integers(0, 4), st.integers(1, 5), st.integers(0, 4))
methods = st.sampled_from(list(METHODS))
caps = st.none() | st.integers(1, 2)


class Twins(RuleBasedStateMachine):
    """A store on disk and one in memory."""

    store: Store
    twin: MemoryStore

    def both(self, action: Callable[[Any], Any]) -> Any:
        results: list[Any] = []
        for store in (self.store, self.twin):
            try:
                results.append(action(store))
            except DivopdError as error:
                results.append(type(error))
        assert results[0] == results[1]
        return results[0]


class TwoStores(Twins):
    """Every rule does the same to both stores; results and errors must be equal, and so must all that can be read.

    The rules are few and each does much: hypothesis leaves some of them out of every history.
    """

    @initialize(history=st.lists(loads, min_size=2, max_size=8), method=methods)
    def start(self, history: list[Load], method: str) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.store = Store.create(self.folder / "store.db", synchronous="NORMAL")
        self.twin = MemoryStore()
        self.rollouts: list[Rollout] = []
        self.epochs = [self.both(lambda store: store.begin_learner())]
        for load in history:
            self.update(load, None, method, 2, 4)

    def do_put(self, rollout: Rollout, available_at: int | None = None) -> Any:
        return self.both(lambda store: store.put(rollout, available_at=available_at))

    @rule(load=loads, ahead=st.sampled_from([None, None, None, -1, 0, 1]))
    def put(self, load: Load, ahead: int | None) -> None:
        (count, turns, lag), now = load, self.store.updates
        version = max(now - lag, 0) + (ahead == 1)
        for _ in range(count):
            name, task = f"e1.{len(self.rollouts)}", f"task {lag}"
            rollout = make_rollout(name, version=version, turns=turns, task=task)
            if self.do_put(rollout, None if ahead is None else now + ahead) is True:
                self.rollouts.append(rollout)

    @rule(load=loads, ahead=st.sampled_from([None, None, None, 1]), method=methods, cap=caps, size=st.integers(1, 6))
    def update(self, load: Load, ahead: int | None, method: str, cap: int | None, size: int) -> None:
        self.put(load, ahead)
        numbers = {
            "batch_size": size,
            "pool_multiplier": 2,
            "cap": cap,
            "max_staleness": 3,
            "max_pending_age": 2 - size % 3,
        }
        composer, update = make_composer(method, **numbers), self.store.updates
        self.both(lambda store: store.rows(composer, update=update))
        for epoch in self.epochs[-2:]:  # the fenced learner tries too
            self.both(lambda store, e=epoch: store.compose(composer, update=update, epoch=e).entry)
        self.both(lambda store: store.decided(update))
        self.serve(update)

    @rule(back=st.integers(1, 8))
    def serve_again(self, back: int) -> None:
        self.serve(max(self.store.updates - back, 0))

    def serve(self, update: int) -> None:
        self.both(lambda store: served(store.batch(update)))

    @rule(what=st.sampled_from(["again", "other content", "wrong update"]), pick=st.integers(0, 30))
    def misuse(self, what: Literal["again", "other content", "wrong update"], pick: int) -> None:
        if what == "wrong update":
            composer, update = make_composer("divopd"), self.store.updates + (1 if pick % 2 else -1)
            self.both(lambda store: store.compose(composer, update=update, epoch=self.epochs[-1]).entry)
        elif self.rollouts:
            known = self.rollouts[pick % len(self.rollouts)]
            changed = (*known.turns[:-1], replace(known.turns[-1], reward=2.0))
            self.do_put(known if what == "again" else replace(known, turns=changed))

    @rule(back=st.integers(0, 3), learner=st.integers(1, 2), what=st.sampled_from(["a", "s", "as"]))
    def acknowledge_and_settle(self, back: int, learner: int, what: str) -> None:
        epoch, update = self.epochs[-learner:][0], self.store.updates - back
        if "a" in what:
            self.both(lambda store: store.acknowledge(update, epoch=epoch))
        if "s" in what:
            self.both(lambda store: store.settle(update, epoch=epoch))

    @rule(how=st.sampled_from(["second learner", "reopen"]))
    def restart(self, how: Literal["second learner", "reopen"]) -> None:
        if how == "second learner":
            self.epochs.append(self.both(lambda store: store.begin_learner()))
        else:
            self.store.close()
            self.store = Store.open(self.folder, synchronous="NORMAL")

    @invariant()
    def equal(self) -> None:
        if not hasattr(self, "store"):
            return
        assert self.store.account() == self.twin.account()
        assert self.store.account().adds_up
        self.both(lambda store: (store.updates, store.backlog(), store.arrived(), store.outcomes(after=0)))
        assert {turn.key: turn.fate for turn in self.store.stored_turns()} == self.twin.fate

    def teardown(self) -> None:
        if hasattr(self, "store"):
            audit_ledger(self.store)
            self.store.close()
            shutil.rmtree(self.folder)


class SharedWork(Twins):
    """Teachers that share what waits: both stores give the same work to the same of them, whatever time it is."""

    @initialize()
    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.twin, self.now, self.offered, self.numbers = MemoryStore(), 0.0, list[Rollout](), 0
        Store.create(self.folder / "store.db").close()
        self.reopen()

    def reopen(self) -> None:
        self.store = Store.open(self.folder, synchronous="NORMAL")
        self.store.clock = self.twin.clock = lambda: self.now

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.reopen()

    @rule(count=st.integers(1, 3), seconds=st.sampled_from([0, 3, 11, -5]))
    def offer(self, count: int, seconds: int) -> None:
        """Work comes, and time passes; now and then a clock is set back."""
        self.now += seconds
        for _ in range(count):
            self.numbers += 1
            self.offered.append(make_rollout(f"o.{self.numbers}", turns=1))
            self.both(lambda store: store.offer(self.offered[-1], generated_tokens=3))
            question = Question(self.numbers, "t", [1, 2], temperature=0.5, max_tokens=3, seed=self.numbers)
            self.both(lambda store, q=question: store.ask(f"explorer-{q.number % 2}", [q]))

    @rule(
        holders=st.lists(st.sampled_from("abc"), min_size=1, max_size=4),
        work=st.tuples(st.integers(1, 3), st.integers(0, 3), st.sampled_from("nrs")),
        seconds=st.sampled_from([0, 0, 3, 11]),
    )
    def teach(self, holders: list[str], work: tuple[int, int, str], seconds: int) -> None:
        """Teachers come one after the other, and time passes between them."""
        for holder in holders:
            self.teach_once(holder, *work)
            self.now += seconds

    def teach_once(self, holder: str, count: int, done: int, end: str) -> None:
        """A teacher claims, finishes some of it, and dies, works on or sets the rest aside."""
        claimed = self.both(lambda store: store.claim(holder, count, seconds=10))
        asked = self.both(lambda store: store.claim_questions(holder, count, seconds=10))
        for rollout in claimed[:done]:
            self.both(lambda store, r=rollout: store.put_scored(r))
        for question in asked[:done]:
            self.both(lambda store, q=question: store.answer(q.number, Answer([len(holder)], [-1.0])))
        if end == "r":
            self.both(lambda store: store.renew(holder, seconds=10))
        elif end == "s":
            self.both(lambda store: store.set_aside(holder, seconds=4))

    @rule(pick=st.integers(0, 30), forget=st.booleans())
    def hear(self, pick: int, forget: bool) -> None:
        """An explorer looks for answers, and forgets them or all that it asked; a late score comes from somewhere."""
        numbers = [pick % (self.numbers + 1), self.numbers]
        self.both(lambda store: store.answers(numbers))
        if forget:
            self.both(lambda store: store.forget_questions(numbers))
            self.both(lambda store: store.forget_asker(f"explorer-{pick % 2}"))
        if self.offered:
            late = self.offered[pick % len(self.offered)]
            turns = tuple(replace(turn, teacher_logprobs=[-1.0 - pick] * len(turn.response_ids)) for turn in late.turns)
            self.both(lambda store: store.put_scored(replace(late, turns=turns)))

    @invariant()
    def nothing_is_lost(self) -> None:
        """What was offered waits, or was put once, with the scores that came first."""
        if hasattr(self, "store"):
            waiting = {rollout.id for rollout in self.both(lambda store: store.unscored(99))}
            put = {turn.key: turn.teacher_logprobs for turn in self.store.turns()}
            assert put == {t.key: t.teacher_logprobs for r in self.twin.rollout.values() for t in r.turns}
            assert {rollout.id for rollout in self.offered} == waiting | {name for name, _ in put}

    def teardown(self) -> None:
        if hasattr(self, "store"):
            audit_ledger(self.store)
            self.store.close()
            shutil.rmtree(self.folder)


def served(batch: JournaledBatch) -> tuple[Any, ...]:
    """All of a batch but its digest, which each store computes in its own way."""
    return batch.entry, repr(batch.turns), batch.candidates


def examples(more: int) -> settings:
    """So many more runs of 15 steps than the profile has examples."""
    return settings(
        max_examples=settings().max_examples + more,
        stateful_step_count=15,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )


TestTwoStores = TwoStores.TestCase
TestTwoStores.settings = examples(10)
TestSharedWork = SharedWork.TestCase
TestSharedWork.settings = examples(20)
