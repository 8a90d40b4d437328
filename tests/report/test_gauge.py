"""Queue pressure: each situation is recognised and gets the advice that fits it."""

from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from divopd.composers.composer import Settings
from divopd.records import QueueFigures, UpdateRecord
from divopd.report.gauge import QueuePressure, queue_pressure
from divopd.store import Store
from divopd.turns import Fate
from doubles.small_records import make_update_record
from fake_runs import make_run


def record(
    number: int, *, elapsed_s: float, rows: int = 64, dead_share: float = 0.0, waited_s: float = 0.0, **queue: int
) -> UpdateRecord:
    """An update after which the queue is empty and nothing expired, but for what `queue` says of it."""
    like = make_update_record(number)
    calm = QueueFigures(
        rollouts_put=0,
        turns_put=0,
        queued=0,
        stale=0,
        aged_out=0,
        invalid=0,
        rollouts_used=10,
        rollouts_unused=0,
        drained=None,
    )
    batch = replace(like.batch, rows=rows, dead_share=dead_share)
    return replace(like, elapsed_s=elapsed_s, waited_s=waited_s, batch=batch, queue=replace(calm, **queue))


def updates(count: int = 10, *, arriving: int, rollouts: int, **figures: Any) -> list[UpdateRecord]:
    """Equal updates of ten seconds; `arriving` turns of `rollouts` rollouts come with each."""
    return [
        record(n - 1, elapsed_s=10.0 * n, turns_put=arriving * n, rollouts_put=rollouts * n, **figures)
        for n in range(1, count + 1)
    ]


def judge(method: str = "divopd", *, max_backlog: int | None = None, cap: int = 4, **flow: Any) -> QueuePressure:
    pressure = queue_pressure(updates(**flow), Settings(method, cap=cap), max_backlog=max_backlog)
    assert pressure is not None
    return pressure


def test_too_many_turns_are_told_as_in_the_issue() -> None:
    """Load, the share of rollouts that will expire, and three remedies with the cap that fits."""
    pressure = judge(arriving=147, rollouts=17, stale=83, rollouts_unused=7)
    assert pressure.verdict == "overfull"
    assert pressure.sentence == (
        "turns arrive 2.3× faster than they are trained; 41 % of rollouts will expire unused; "
        "raise the batch size, lower the cap to 3, or set explorer.max_backlog"
    )
    assert pressure.expiring_turns == pytest.approx(83 / 147)


@pytest.mark.parametrize(
    ("method", "cap", "max_backlog", "advice"),
    [
        ("divopd", 3, None, "raise the batch size or set explorer.max_backlog"),  # the cap is as low as it helps
        ("divopd", 3, 500, "raise the batch size"),
        ("divopd-adaptive", 4, 500, "raise the batch size"),  # it lowers its cap by itself
        ("divopd-base", 4, 500, "raise the batch size or lower the cap to 3"),
        ("vanilla", 4, 500, "raise the batch size or use a method that gives every rollout a slot first (divopd)"),
    ],
)
def test_advice_is_what_the_method_can_follow(method: str, cap: int, max_backlog: int | None, advice: str) -> None:
    pressure = judge(method, cap=cap, max_backlog=max_backlog, arriving=147, rollouts=17, stale=83, rollouts_unused=7)
    assert pressure.sentence.endswith(f"; {advice}")


def test_more_rollouts_than_slots_want_a_cap_of_one() -> None:
    """The cap is never advised below 1."""
    assert "lower the cap to 1" in judge(arriving=800, rollouts=100, rollouts_unused=90).advice


def test_expiring_turns_alone_need_no_change() -> None:
    """Where every rollout has a trained turn, a composer that chooses lets turns expire on purpose."""
    pressure = judge(arriving=128, rollouts=10, stale=64)
    assert (pressure.verdict, pressure.advice) == ("selective", ())
    assert "50 % of the turns expire" in pressure.sentence


def test_a_starving_learner_wants_explorers() -> None:
    """The learner waits, or takes more than arrives."""
    for pressure in (judge(arriving=64, rollouts=10, waited_s=4.0), judge(arriving=48, rollouts=8)):
        assert pressure.verdict == "starving"
        assert pressure.advice[0].startswith("add explorers")
    assert "waits 40 % of its time" in judge(arriving=64, rollouts=10, waited_s=4.0).situation


def test_turns_too_old_on_arrival_want_more_staleness() -> None:
    """Waiting and expiring at once means that rollouts take longer than their turns stay fresh."""
    pressure = judge(arriving=100, rollouts=10, waited_s=4.0, stale=36)
    assert pressure.verdict == "late"
    assert "raise composer.max_staleness above 2" in pressure.advice


def test_balance_is_left_alone() -> None:
    """Turns that the gate drops are no load."""
    pressure = judge(arriving=94, rollouts=10, invalid=30)
    assert (pressure.verdict, pressure.load, pressure.advice) == ("balanced", 1.0, ())


def test_dead_rows_change_no_load() -> None:
    """The same turns with a gate that drops 30 of 94, and without it, where they are dead rows: the same load."""
    gated = judge(arriving=188, rollouts=10, invalid=60, rows=64, rollouts_unused=1)
    ungated = judge("vanilla", arriving=188, rollouts=10, rows=94, dead_share=30 / 94, rollouts_unused=1)
    assert gated.load == ungated.load == 2.0


def test_invalid_turns_of_an_old_backlog_are_no_negative_load() -> None:
    """Ten turns arrive while the gate drops sixty that have waited: the valid share of what is read counts."""
    made = [
        replace(one, queue=replace(one.queue, queued=1000 - 54 * one.update))  # 64 are read each time, 4 of them valid
        for one in updates(count=5, arriving=10, rollouts=1, rows=4, invalid=60)
    ]
    pressure = queue_pressure(made, Settings("divopd"), max_backlog=None)
    assert pressure is not None
    assert pressure.load == pytest.approx(10 * 4 / 64 / 4)


@given(flows=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99)), min_size=2, max_size=25))
def test_a_load_is_between_nothing_and_all_that_arrives(flows: list[tuple[int, int, int]]) -> None:
    """Whatever arrives, is read and is dropped, update by update."""
    made, put, queued = [], 0, 0
    for number, (arrives, wanted, bad) in enumerate(flows):
        put, queued = put + arrives, queued + arrives
        read = min(wanted, queued)
        queued -= read
        invalid = min(bad, read)
        counts = {"turns_put": put, "rollouts_put": number, "queued": queued, "invalid": invalid}
        made.append(record(number, elapsed_s=10.0 * number, rows=read - invalid, **counts))
    pressure = queue_pressure(made, Settings("divopd"), max_backlog=None)
    assert pressure is not None
    recent = made[-21:]
    arrived = (recent[-1].queue.turns_put - recent[0].queue.turns_put) / (len(recent) - 1)
    assert 0 <= pressure.load <= arrived


@pytest.mark.parametrize("method", ["vanilla", "gate-only", "divopd", "top-b"])
def test_unused_rollouts_are_counted_exactly(tmp_path: Path, method: str) -> None:
    """Every rollout with a valid turn is decided once: at its first trained turn, or when its last one is gone."""
    run = make_run(tmp_path / "run", method=method, rollouts=12, rates=(0.0,) * 5)
    by_rollout: dict[str, list[Fate]] = defaultdict(list)
    with Store.open_read_only(run) as store:
        for turn in store.stored_turns():
            if turn.reason is None:
                by_rollout[turn.rollout].append(turn.fate)
        records = store.update_records()
    used, unused = Counter[int](), Counter[int]()
    for fates in by_rollout.values():
        trained = [fate.update for fate in fates if fate.kind == "trained" and fate.update is not None]
        gone = [fate.update for fate in fates if fate.update is not None]
        if trained:
            used[min(trained)] += 1
        elif len(gone) == len(fates):
            unused[max(gone)] += 1
    assert sum(unused.values()) > 0
    assert len(records) == 12
    for update, one in records.items():
        assert (one.queue.rollouts_used, one.queue.rollouts_unused) == (used[update], unused[update])


def test_only_recent_updates_count_and_one_is_too_few() -> None:
    calm = updates(50, arriving=64, rollouts=10)
    storm = [
        record(50 + n, elapsed_s=500.0 + 10 * n, turns_put=3200 + 640 * n, rollouts_put=500 + 10 * n)
        for n in range(1, 31)
    ]
    pressure = queue_pressure(calm + storm, Settings("divopd"), max_backlog=None)
    assert pressure is not None
    assert pressure.load == 10.0
    assert queue_pressure(calm[:1], Settings("divopd"), max_backlog=None) is None
