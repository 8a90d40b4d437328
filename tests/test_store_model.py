"""The layer "model" of the promises: the SQLite store and the in-memory one do the same, whatever is asked of them."""

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from divopd.audits.ledger import audit_ledger
from divopd.composers import METHODS, make_composer
from divopd.errors import DivopdError
from divopd.store import Store
from divopd.turns import Rollout
from memory_store import MemoryStore
from store_processes import make_rollout


class TwoStores(RuleBasedStateMachine):
    """Every rule does the same to both stores; results and errors must be equal, and so must all that can be read."""

    @initialize(bound=st.none() | st.integers(3, 20))
    def start(self, bound: int | None) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.store = Store.create(self.folder / "store.db", max_queued=bound, synchronous="NORMAL")
        self.twin = MemoryStore(max_queued=bound)
        self.put_already: list[Rollout] = []
        self.epochs = [self.both(lambda store: store.begin_learner())]

    def both(self, action: Callable[[Any], Any]) -> Any:
        results: list[Any] = []
        for store in (self.store, self.twin):
            try:
                results.append(action(store))
            except DivopdError as error:
                results.append(type(error))
        assert results[0] == results[1]
        return results[0]

    def do_put(self, rollout: Rollout, available_at: int | None = None) -> Any:
        wait = {Store: {"wait_s": 0.0}, MemoryStore: {}}
        return self.both(lambda store: store.put(rollout, available_at=available_at, **wait[type(store)]))

    @rule(
        count=st.integers(1, 3),
        turns=st.integers(1, 5),
        lag=st.integers(0, 3),
        ahead=st.sampled_from([None, None, None, None, -1, 0, 1]),
    )
    def put(self, count: int, turns: int, lag: int, ahead: int | None) -> None:
        now = self.store.updates
        version = max(now - lag, 0) + (ahead == 1)
        for _ in range(count):
            rollout = make_rollout(f"e1.{len(self.put_already)}", version=version, turns=turns, task=f"task {lag}")
            if self.do_put(rollout, None if ahead is None else now + ahead) is True:
                self.put_already.append(rollout)

    @precondition(lambda self: self.put_already)
    @rule(data=st.data())
    def put_again(self, data: st.DataObject) -> None:
        assert self.do_put(data.draw(st.sampled_from(self.put_already))) is False

    @precondition(lambda self: self.put_already)
    @rule(data=st.data())
    def put_other_content(self, data: st.DataObject) -> None:
        known = data.draw(st.sampled_from(self.put_already))
        changed = replace(known.turns[-1], reward=2.0)
        self.do_put(replace(known, turns=(*known.turns[:-1], changed)))

    @rule(method=st.sampled_from(list(METHODS)), cap=st.none() | st.integers(1, 2), size=st.integers(1, 4))
    def compose(self, method: str, cap: int | None, size: int) -> None:
        numbers = {"batch_size": size, "pool_multiplier": 2, "cap": cap, "max_staleness": 2, "max_pending_age": 1}
        update = self.store.updates
        entry_of = {Store: lambda batch: batch.entry, MemoryStore: lambda entry: entry}
        for epoch in self.epochs[-2:]:
            composer = make_composer(method, **numbers)
            self.both(lambda s, e=epoch, c=composer: entry_of[type(s)](s.compose(c, update=update, epoch=e)))

    @rule(off=st.sampled_from([-1, 1]))
    def compose_the_wrong_update(self, off: int) -> None:
        composer, update = make_composer("divopd"), self.store.updates + off
        self.both(lambda store: store.compose(composer, update=update, epoch=self.epochs[-1]))

    @rule(data=st.data(), back=st.integers(0, 2))
    def acknowledge_and_settle(self, data: st.DataObject, back: int) -> None:
        epoch, update = data.draw(st.sampled_from(self.epochs[-2:])), self.store.updates - back
        if data.draw(st.booleans()):
            self.both(lambda store: store.acknowledge(update, epoch=epoch))
        if data.draw(st.booleans()):
            self.both(lambda store: store.settle(update, epoch=epoch))

    @rule()
    def second_learner(self) -> None:
        self.epochs.append(self.both(lambda store: store.begin_learner()))

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = Store.open(self.folder, synchronous="NORMAL")

    @precondition(lambda self: self.store.updates)
    @rule(data=st.data())
    def serve_again(self, data: st.DataObject) -> None:
        update = data.draw(st.integers(0, self.store.updates - 1))
        assert self.store.journal(update) == self.twin.entries[update]
        turns_of = {Store: lambda s: repr(s.batch(update).turns), MemoryStore: lambda s: repr(s.turns(update))}
        self.both(lambda store: turns_of[type(store)](store))  # repr: a NaN is not equal to itself

    @invariant()
    def equal(self) -> None:
        if not hasattr(self, "store"):
            return
        assert self.store.account() == self.twin.account()
        assert self.store.account().adds_up
        assert self.store.resume_point() == self.twin.resume_point()
        assert {turn.key: turn.fate for turn in self.store.stored_turns()} == self.twin.fate

    def teardown(self) -> None:
        if hasattr(self, "store"):
            if self.store.path.exists():
                audit_ledger(self.store)
            self.store.close()
            shutil.rmtree(self.folder)


TestTwoStores = TwoStores.TestCase
TestTwoStores.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
