"""Cost, time and kinds of tasks: what a run spent, on what, and for which tasks."""

from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from store_processes import make_rollout

from divopd.audits.cost import audit_cost
from divopd.audits.kinds import audit_kinds
from divopd.audits.timing import audit_time, time_of
from divopd.store import Store
from doubles.small_records import make_update_record
from fake_runs import make_run


def test_tasks_that_name_no_kind_are_one_kind(tmp_path: Path) -> None:
    """Without a stored configuration a task's name says its kind; names without a / are no kinds of their own."""
    with Store.create(tmp_path / "store.db", synchronous="NORMAL") as store:
        for number, task in enumerate(("7-3", "7-4", "9-1", "boil/2", "boil/3")):
            store.put(make_rollout(f"r{number}", task=task))
    assert {kind: counted.rollouts for kind, counted in audit_kinds(tmp_path).items()} == {"all": 3, "boil": 2}


def test_kinds_of_tasks_add_up(small_run: Path) -> None:
    """Shares of turns and rows sum to one; kinds are those of the evaluation; every rollout is counted once."""
    kinds = audit_kinds(small_run)
    assert sum(kind.arrived for kind in kinds.values()) == pytest.approx(1)
    assert sum(kind.trained for kind in kinds.values()) == pytest.approx(1)
    assert any(kind.success_rate is not None for kind in kinds.values())
    with Store.open_read_only(small_run) as store:
        assert sum(kind.rollouts for kind in kinds.values()) == len({turn.rollout for turn in store.stored_turns()})


def test_the_cost_of_a_run_adds_up(small_run: Path) -> None:
    """Scored tokens by fate sum to all; the learner's two kinds of seconds to the clock; explorers have theirs."""
    audit = audit_cost(small_run)
    assert sum(audit.scored_by_fate.values()) == audit.scored_tokens
    assert audit.scored_by_fate["trained"] + audit.scored_by_fate["dead"] == audit.trained_tokens
    assert audit.learner_s + audit.waited_s == pytest.approx(audit.elapsed_s)
    assert audit.explorer_s is not None
    assert audit.explorer_s > audit.learner_s / 10
    assert 0 <= audit.never_trained_share < 1


def test_dead_rows_cost_and_are_not_trained(tmp_path: Path) -> None:
    """Vanilla's dead rows are whole rows of an update's cost; the ratio of scored to trained counts valid tokens."""
    run = make_run(tmp_path / "run", method="vanilla")
    with Store.open_read_only(run) as store:
        turns = list(store.stored_turns())
    rows = [turn for turn in turns if turn.fate.kind == "trained"]
    dead = [turn for turn in rows if turn.reason is not None]
    assert dead
    audit = audit_cost(run)
    assert audit.scored_by_fate["dead"] == sum(turn.tokens for turn in dead)
    assert audit.scored_by_fate["trained"] == sum(turn.tokens for turn in rows) - sum(turn.tokens for turn in dead)
    assert audit.trained_tokens == sum(turn.tokens for turn in rows)
    scored, trained = (sum(turn.valid_tokens for turn in some) for some in (turns, rows))
    assert audit.scored_per_trained == pytest.approx(scored / trained)
    assert audit.never_trained_share == pytest.approx(1 - trained / scored)
    [kind] = audit_kinds(run).values()
    assert kind.used == len({t.rollout for t in rows if t.reason is None}) / kind.rollouts
    assert kind.used < len({turn.rollout for turn in rows}) / kind.rollouts


def test_on_the_virtual_clock_an_update_takes_what_its_tokens_cost(small_run: Path) -> None:
    """Seconds lie on the line of `costs`, one second and 2e-5 a token; updates and waits make up the whole clock."""
    audit = audit_time(small_run)
    assert audit.correlation == pytest.approx(1)
    assert audit.step_s == [pytest.approx(1 + 2e-5 * tokens) for tokens in audit.tokens]
    assert audit.constant_share == pytest.approx(1 / fmean(audit.step_s))
    assert audit.estimate_s == pytest.approx(audit.elapsed_s)
    assert set(audit.stages_s) == {"pack", "forward", "backward", "step"}
    assert audit.measured_correlation is not None


def test_seconds_are_compared_with_tokens_and_with_the_clock() -> None:
    """Three updates by hand: 6, 12 and 9 seconds for 100, 300 and 200 tokens, and 9 of 39 seconds are neither."""
    base = make_update_record(0)
    assert base.learner is not None
    made = [
        replace(
            base,
            update=update,
            elapsed_s=13.0 * (update + 1),
            waited_s=1.0,
            batch=replace(base.batch, tokens=tokens),
            learner=replace(base.learner, seconds={"forward": forward, "backward": 0.5}),
            spent=replace(base.spent, learner_s=learner_s),
        )
        for update, (tokens, learner_s, forward) in enumerate(((100, 6.0, 0.3), (300, 18.0, 0.2), (200, 27.0, 0.1)))
    ]
    audit = time_of(made)
    assert (audit.tokens, audit.step_s) == ([100, 300, 200], [6.0, 12.0, 9.0])
    assert audit.correlation == pytest.approx(1)
    assert audit.measured_correlation == pytest.approx(-0.5)
    assert audit.constant_share == pytest.approx(3 / 9)
    assert (audit.estimate_s, audit.elapsed_s) == (30.0, 39.0)
    assert audit.difference == pytest.approx(-9 / 39)
    assert audit.stages_s == {"forward": pytest.approx(0.6), "backward": pytest.approx(1.5)}
    assert time_of([base, replace(base, update=1)]).correlation is None  # equally many tokens tell nothing
