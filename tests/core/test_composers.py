"""Composers: the guarantees of specification §4.2 as properties, and agreement with a literal Algorithm 1."""

import json
import warnings
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divopd import METHODS, Turn, make_composer
from divopd.composers import Candidate
from divopd.composers.adaptive import offline_bound
from divopd.errors import InputError, NothingToTrainWarning, UnknownNameError
from literal import LiteralDivOPD
from strategies import candidates, recordings, turn

UPDATE = 5
GATED = [name for name, method in METHODS.items() if method.composer.gated]
WIDE = [name for name, method in METHODS.items() if method.composer.keeps_pending]
SETTINGS = {
    "batch_size": st.integers(1, 12),
    "pool_multiplier": st.integers(1, 4),
    "cap": st.one_of(st.none(), st.integers(1, 5)),
    "max_staleness": st.integers(0, 3),
    "max_pending_age": st.integers(0, 4),
}

# drawn recordings have updates at which all turns are dead, as a run may have one
SOME_UPDATES_ARE_DEAD = pytest.mark.filterwarnings("ignore::divopd.errors.NothingToTrainWarning")


def eligible(pool: list[Candidate], *, delta: int = 2) -> list[Candidate]:
    return [c for c in pool if c.version >= UPDATE - delta and c.reason is None]


# ── every method ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("method", WIDE)
@given(pool=candidates(), batch=st.integers(1, 20))
def test_every_candidate_is_in_exactly_one_list(method: str, pool: list[Candidate], batch: int) -> None:
    """Nothing is lost, nothing is taken twice, no batch is too large, and weights have mean 1."""
    decision = make_composer(method, batch_size=batch).decide(pool, update=UPDATE)
    parts = (decision.selected, decision.stale, decision.invalid, decision.aged_out, decision.pending)
    assert sorted(c for part in parts for c in part) == sorted(pool)
    assert len(decision.selected) <= batch
    assert len(decision.weights) == len(decision.passes) == len(decision.selected)
    assert sum(decision.weights) == pytest.approx(len(decision.selected))
    assert all(c.version < UPDATE - 2 for c in decision.stale)
    assert all(c.version >= UPDATE - 2 for c in decision.selected + decision.pending)


@pytest.mark.parametrize("method", GATED)
@given(pool=candidates(), batch=st.integers(1, 20))
def test_a_gated_batch_is_short_only_if_the_valid_pool_is(method: str, pool: list[Candidate], batch: int) -> None:
    selected = make_composer(method, batch_size=batch).decide(pool, update=UPDATE).selected
    assert len(selected) == min(batch, len(eligible(pool)))
    assert all(c.reason is None for c in selected)


@SOME_UPDATES_ARE_DEAD
@given(turns=recordings(updates=6), numbers=st.fixed_dictionaries(SETTINGS), method=st.sampled_from(list(METHODS)))
def test_composing_goes_on_identically_from_a_saved_state(turns: list[Turn], numbers: dict, method: str) -> None:
    """A composer restored from its JSON state makes the batches the original makes."""
    original = make_composer(method, **numbers)
    queue = list(turns)
    for update in range(8):
        fresh = [queue.pop(0) for _ in range(min(original.room(update), len(queue)))]
        restored = make_composer(method, **numbers)
        restored.load_state_dict(json.loads(json.dumps(original.state_dict())))
        assert restored.room(update) == original.room(update)
        assert restored.compose(fresh, update=update) == original.compose(fresh, update=update)


@SOME_UPDATES_ARE_DEAD
@pytest.mark.parametrize("method", METHODS)
@given(turns=recordings(updates=8))
@settings(max_examples=min(30, settings().max_examples))
def test_nothing_is_selected_twice_ever(method: str, turns: list[Turn]) -> None:
    """Over many updates every turn leaves the composer at most once."""
    composer = make_composer(method, batch_size=7)
    queue, left = list(turns), Counter()
    for update in range(12):
        fresh = [queue.pop(0) for _ in range(min(composer.room(update), len(queue)))]
        batch = composer.compose(fresh, update=update)
        exits = [*batch.turns, *batch.stale, *(t for t, _ in batch.invalid), *batch.aged_out]
        left.update(t.key for t in exits)
    assert max(left.values(), default=1) == 1


@pytest.mark.parametrize("version", [0, 3])
def test_any_turn_that_was_composed_can_be_restored(version: int) -> None:
    """Fields left out, lists of another library's numbers, and ids that no recording allows survive the state."""
    scores = [np.float32(-0.5), np.float32(-1.25)]
    foreign: dict[str, Any] = {
        "prompt_ids": np.array([-100, 1]),
        "student_logprobs": np.array(scores),
        "teacher_logprobs": scores,
    }
    turns = [
        Turn("a", 0, "t", version, prompt_ids=[1], response_ids=[2, 3], student_logprobs=[-0.5, -1.25],
             teacher_logprobs=[-0.25, -0.5], action_mask=[1, 1]),
        Turn("env 7: try #2", 1, "t", version, response_ids=(2, 3), action_mask=[True, True], **foreign),
    ]  # fmt: skip
    original, restored = (make_composer("divopd", batch_size=2, max_staleness=9) for _ in range(2))
    original.compose([turn("0", 0), turn("0", 1), *turns], update=version)
    restored.load_state_dict(json.loads(json.dumps(original.state_dict())))
    for left, expected in zip(restored.compose([], update=version).turns, turns, strict=True):
        assert (left.key, left.version, left.available_at) == (expected.key, expected.version, expected.available_at)
        for name in ("prompt_ids", "response_ids", "student_logprobs", "teacher_logprobs", "action_mask"):
            assert [float(item) for item in getattr(left, name)] == [float(item) for item in getattr(expected, name)]


# ── a batch with nothing to train ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("method", METHODS)
def test_a_batch_without_a_valid_turn_is_told_once(method: str) -> None:
    """The counted reasons are in the warning; the same composer says it once, another one again."""
    for _ in range(2):
        composer = make_composer(method, batch_size=4)
        lost = [turn("a", 0, action_mask=None), turn("a", 1, action_mask=None), turn("b", 0, prompt_truncated=True)]
        with pytest.warns(NothingToTrainWarning, match=r"update 0: .* 3 .*no_action_mask 2, prompt_truncated 1"):
            composer.compose(lost, update=0)
        composer.compose([turn("c", 0, action_mask=None)], update=1)


@pytest.mark.parametrize("method", METHODS)
def test_a_batch_with_a_valid_turn_is_no_warning(method: str) -> None:
    """Nor is an empty queue, nor one in which all turns are stale."""
    composer = make_composer(method, batch_size=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert composer.compose([turn("a", 0), turn("a", 1, action_mask=None)], update=0).turns
        composer.compose([], update=1)
        composer.compose([turn("old", 0, action_mask=None)], update=9)


# ── Algorithm 1 ───────────────────────────────────────────────────────────────────────────────────────────────────


@SOME_UPDATES_ARE_DEAD
@given(turns=recordings(), numbers=st.fixed_dictionaries(SETTINGS))
@settings(max_examples=6 * settings().max_examples)
def test_divopd_is_algorithm_1(turns: list[Turn], numbers: dict) -> None:
    """Fast and literal composer agree on every list of every update: pending, expiry and invalid turns included."""
    literal = LiteralDivOPD(
        B=numbers["batch_size"],
        c=numbers["pool_multiplier"],
        k=numbers["cap"],
        delta=numbers["max_staleness"],
        W=numbers["max_pending_age"],
    )
    composer = make_composer("divopd", **numbers)
    ours, theirs = list(turns), list(turns)
    for update in range(14):
        fresh: list[Turn] = []
        room = composer.room(update)
        while ours and room:
            fresh.append(ours.pop(0))
            room -= fresh[-1].version >= composer.oldest_version(update)
        batch = composer.compose(fresh, update=update)
        expected = literal.update(update, theirs)
        assert batch.turns == expected["selected"]
        assert batch.stale == expected["stale"]
        assert [t for t, _ in batch.invalid] == expected["invalid"]
        assert batch.aged_out == expected["aged_out"]
    assert ours == theirs


@pytest.mark.parametrize("method", ["divopd", "divopd-base", "divopd-r"])
@given(pool=candidates(), batch=st.integers(1, 20), cap=st.integers(1, 5))
def test_coverage(method: str, pool: list[Candidate], batch: int, cap: int) -> None:
    """⌈B/k⌉ distinct rollouts whenever that many are in the valid pool; nobody gets two more than another could."""
    selected = make_composer(method, batch_size=batch, cap=cap).decide(pool, update=UPDATE).selected
    valid = Counter(c.rollout for c in eligible(pool))
    given_slots = Counter(c.rollout for c in selected)
    if len(selected) == batch:
        assert len(given_slots) >= min(-(-batch // cap), len(valid))
    most = max(given_slots.values(), default=0)
    if most > cap:  # a rollout got more than the cap only after all others had had the chance
        assert all(given_slots[r] >= min(most - 1, valid[r]) for r in valid)


@given(pool=candidates(), batch=st.integers(1, 20), cap=st.one_of(st.none(), st.integers(1, 5)))
def test_focus_and_base_allocate_alike(pool: list[Candidate], batch: int, cap: int | None) -> None:
    """divopd and divopd-base give the same rollouts the same number of slots, in the same order."""
    focus, base = (make_composer(name, batch_size=batch, cap=cap) for name in ("divopd", "divopd-base"))
    slots = [[c.rollout for c in composer.decide(pool, update=UPDATE).selected] for composer in (focus, base)]
    assert slots[0] == slots[1]


@pytest.mark.parametrize("method", ["divopd", "divopd-base", "divopd-focus", "top-b", "divopd-adaptive"])
@given(pool=candidates(), data=st.data())
def test_input_order_does_not_matter(method: str, pool: list[Candidate], data: st.DataObject) -> None:
    """Turns of one read may arrive in any order: the batch is the same."""
    composer = make_composer(method, batch_size=9)
    shuffled = data.draw(st.permutations(pool))
    assert composer.decide(shuffled, update=UPDATE).selected == composer.decide(pool, update=UPDATE).selected


def test_within_a_rollout_the_largest_disagreement_goes_first() -> None:
    """Ties go by turn; passes are numbered; the cap rises by one."""
    composer = make_composer("divopd", batch_size=6, cap=2)
    turns = [turn("a", i, gap=g) for i, g in enumerate([0.1, 0.9, 0.5, 0.9])] + [
        turn("b", i, gap=1.0) for i in range(3)
    ]
    batch = composer.compose(turns, update=0)
    assert [t.key for t in batch.turns] == [("a", 1), ("a", 3), ("b", 0), ("b", 1), ("a", 2), ("b", 2)]


def test_uniform_draws_are_uniform_and_seeded() -> None:
    """divopd-base depends on seed, update and rollout, and on nothing else."""
    pool = [turn("a", i) for i in range(10)]
    first = {}
    for seed in range(400):
        composer = make_composer("divopd-base", batch_size=1, pool_multiplier=10, seed=seed)
        first[seed] = composer.compose(pool, update=0).turns[0].turn
        assert (
            make_composer("divopd-base", batch_size=1, pool_multiplier=10, seed=seed).compose(pool, 0).turns[0].turn
            == first[seed]
        )
    counts = Counter(first.values())
    assert set(counts) == set(range(10))
    assert max(counts.values()) < 80  # 40 expected, standard deviation 6


def test_uniform_draws_differ_by_update_and_by_rollout() -> None:
    """One seed does not favour the same places of every rollout, nor those of one rollout at every update."""

    def first(rollout: str, update: int) -> int:
        pool = [turn(rollout, i, version=update) for i in range(10)]
        composer = make_composer("divopd-base", batch_size=1, pool_multiplier=10)
        return composer.compose(pool, update=update).turns[0].turn

    assert len({first("a", update) for update in range(20)}) > 1
    assert len({first(f"r{number}", 0) for number in range(20)}) > 1


# ── the other methods ─────────────────────────────────────────────────────────────────────────────────────────────


def test_vanilla_takes_arrival_order_and_dead_rows() -> None:
    """Without a gate an invalid turn takes a slot."""
    composer = make_composer("vanilla", batch_size=3)
    turns = [turn("a", 0), turn("a", 1, prompt_truncated=True), turn("b", 0)]
    batch = composer.compose(
        [
            turn("s", 0, version=0),
            *(turn(t.rollout, t.turn, version=5, prompt_truncated=t.prompt_truncated) for t in turns),
        ],
        update=7,
    )
    assert [t.key for t in batch.turns] == [("a", 0), ("a", 1), ("b", 0)]
    assert [t.key for t in batch.stale] == [("s", 0)]
    assert batch.invalid == []
    assert composer.room(8) == 3


@given(pool=candidates(), batch=st.integers(1, 20))
def test_top_b_is_the_largest_of_the_pool(pool: list[Candidate], batch: int) -> None:
    selected = make_composer("top-b", batch_size=batch).decide(pool, update=UPDATE).selected
    assert [c.disagreement for c in selected] == sorted((c.disagreement for c in eligible(pool)), reverse=True)[:batch]


@given(pool=candidates(), batch=st.integers(1, 20))
def test_focus_gives_every_rollout_equal_weight(pool: list[Candidate], batch: int) -> None:
    decision = make_composer("divopd-focus", batch_size=batch).decide(pool, update=UPDATE)
    totals: Counter[str] = Counter()
    for candidate, weight in zip(decision.selected, decision.weights, strict=True):
        totals[candidate.rollout] += weight  # type: ignore[assignment]
    assert len({round(total, 9) for total in totals.values()}) <= 1


def test_focus_caps_turns_and_tokens_of_a_task_in_the_first_pass() -> None:
    """Three turns a task, and none that would take the task above a quarter of the batch's tokens."""
    pool = [Candidate("a", i, "long", 0, 0, None, 9.0 - i, 100, 5) for i in range(4)]
    pool += [Candidate(f"b{i}", 0, f"t{i}", 0, 0, None, 1.0, 10, 5) for i in range(10)]
    decision = make_composer("divopd-focus", batch_size=8).decide(pool, update=0)  # 500 / 14 * 8 / 4 = 71 tokens a task
    assert [c.task for c, sweep in zip(decision.selected, decision.passes, strict=True) if sweep == 1] != []
    assert not any(c.task == "long" for c in decision.selected)
    same = [Candidate("a", i, "one", 0, 0, None, 9.0 - i, 1, 5) for i in range(8)] + pool[4:]
    decision = make_composer("divopd-focus", batch_size=16).decide(same, update=0)
    assert sum(c.task == "one" for c, s in zip(decision.selected, decision.passes, strict=True) if s == 1) == 3


def test_focus_sweeps_over_the_tasks_after_the_first_pass() -> None:
    """In every later pass each task gives one more turn, in the order of the first pass, whatever its tokens."""
    pool = [Candidate(f"r{task}", i, task, 0, 0, None, 9.0 - i, 10, 5) for task in "ab" for i in range(6)]
    pool += [Candidate("rc", i, "c", 0, 0, None, 9.0 - i, 1_000, 5) for i in range(2)]  # above its share of tokens
    decision = make_composer("divopd-focus", batch_size=12).decide(pool, update=0)
    order = list(dict.fromkeys(c.task for c in decision.selected if c.task != "c"))
    by_pass = [
        [c.task for c, n in zip(decision.selected, decision.passes, strict=True) if n == sweep] for sweep in (1, 2, 3)
    ]
    assert by_pass[0] == [order[0]] * 3 + [order[1]] * 3
    assert sorted(by_pass[1]) == sorted(by_pass[2]) == ["a", "b", "c"]
    assert by_pass[1] == by_pass[2]
    assert [task for task in by_pass[1] if task != "c"] == order
    assert [c.turn for c in decision.selected if c.task == "a"] == [0, 1, 2, 3, 4]


def test_turnopd_moves_from_tokens_to_turns() -> None:
    """Rows weigh (1-α)·|V|/rollout_valid_tokens + α/rollout_turns, scaled to mean 1; α is 1 from half of training on.

    A rollout counts by the rows of it that are present: of b two of four turns, and 8 of 16 valid tokens.
    """
    a = [turn("a", n, size=size, rollout_turns=2, rollout_valid_tokens=4) for n, size in ((0, 1), (1, 3))]
    b = [turn("b", n, size=size, rollout_turns=4, rollout_valid_tokens=16) for n, size in ((1, 2), (2, 6))]
    composers = [make_composer("turnopd", total_updates=10, max_staleness=9) for _ in range(3)]
    start, middle, late = (one.compose([*a, *b], update=n).weights for one, n in zip(composers, (0, 2, 5), strict=True))
    tokens, turns = [1 / 4, 3 / 4, 2 / 16, 6 / 16], [1 / 2, 1 / 2, 1 / 4, 1 / 4]
    assert start == pytest.approx([4 * part / 1.5 for part in tokens])
    assert late == pytest.approx([4 * part / 1.5 for part in turns])
    assert middle == pytest.approx([4 * (0.6 * x + 0.4 * y) / 1.5 for x, y in zip(tokens, turns, strict=True)])


def test_turnopd_weighs_by_the_batch_what_does_not_tell_of_its_rollout() -> None:
    """Rows of the rollout in the batch, and their valid tokens, stand in; a batch of dead rows has equal weights."""
    turns = [turn("a", 0, size=1), turn("a", 1, size=3), turn("b", 0, size=7)]
    start = make_composer("turnopd", total_updates=10).compose(turns, update=0)
    assert start.weights == pytest.approx([3 / 8, 9 / 8, 3 / 2])
    late = make_composer("turnopd", total_updates=10, max_staleness=9).compose(turns, update=5)
    assert late.weights == pytest.approx([3 / 4, 3 / 4, 3 / 2])
    told = [turn("a", 0, size=1, rollout_turns=0, rollout_valid_tokens=0), *turns[1:]]  # it says what cannot be
    assert make_composer("turnopd", total_updates=10).compose(told, update=0).weights == start.weights
    dead = [replace(one, prompt_truncated=True) for one in turns]
    with pytest.warns(NothingToTrainWarning):
        assert make_composer("turnopd", total_updates=10).compose(dead, update=0).weights == [1.0] * 3


@pytest.mark.parametrize("method", METHODS)
@given(pool=candidates(), batch=st.integers(1, 20), told=st.data())
def test_no_selection_looks_at_the_whole_rollout(
    method: str, pool: list[Candidate], batch: int, told: st.DataObject
) -> None:
    """`rollout_turns` and `rollout_valid_tokens` may say anything: the same turns are selected, in the same passes.

    Only a method that says so weighs rows by them.
    """
    number = st.none() | st.integers(0, 40)
    telling = [c._replace(rollout_turns=told.draw(number), rollout_valid_tokens=told.draw(number)) for c in pool]
    silent, spoken = (make_composer(method, batch_size=batch).decide(p, update=UPDATE) for p in (pool, telling))
    for name in ("selected", "stale", "invalid", "aged_out", "pending"):
        assert [c.key for c in getattr(spoken, name)] == [c.key for c in getattr(silent, name)]
    assert spoken.passes == silent.passes
    assert METHODS[method].weighs_by_rollout or spoken.weights == silent.weights


# ── adaptive ──────────────────────────────────────────────────────────────────────────────────────────────────────


@given(pool=candidates(), batch=st.integers(1, 20), cap=st.integers(1, 5))
def test_adaptive_is_divopd_without_pressure(pool: list[Candidate], batch: int, cap: int) -> None:
    """While no rollout is about to expire, the two are the same."""
    numbers = {"batch_size": batch, "cap": cap, "max_staleness": 50, "max_pending_age": 50}
    adaptive, divopd = make_composer("divopd-adaptive", **numbers), make_composer("divopd", **numbers)
    assert adaptive.decide(pool, update=UPDATE).selected == divopd.decide(pool, update=UPDATE).selected


@given(pool=candidates(), batch=st.integers(1, 20), cap=st.one_of(st.none(), st.integers(1, 5)))
def test_adaptive_serves_every_rollout_about_to_expire(pool: list[Candidate], batch: int, cap: int | None) -> None:
    """All urgent rollouts get a turn if there are slots for one each; otherwise every slot goes to another rollout."""
    composer = make_composer("divopd-adaptive", batch_size=batch, cap=cap)
    selected = composer.decide(pool, update=UPDATE).selected
    deadlines: dict[str, int] = {}
    for c in eligible(pool):
        last = min(c.version + 2, c.first_seen + 8 + 1)
        deadlines[c.rollout] = max(deadlines.get(c.rollout, 0), last)
    urgent = {rollout for rollout, deadline in deadlines.items() if deadline <= UPDATE}
    served = {c.rollout for c in selected}
    assert urgent <= served if len(urgent) <= batch else len(served) == batch


@st.composite
def urgent_pools(draw: st.DrawFn) -> tuple[list[Candidate], dict[str, Any]]:
    """A few rollouts, some at their deadline, and settings of a composer whose batch is small."""
    delta, age, pool = draw(st.integers(0, 2)), draw(st.integers(0, 2)), []
    for rollout in "abcde"[: draw(st.integers(1, 5))]:
        version = UPDATE - draw(st.integers(0, delta))
        for index in range(draw(st.integers(1, 6))):
            first_seen = UPDATE - draw(st.integers(0, age + 1))
            gap = draw(st.sampled_from([0.0, 1.0, 2.0]))
            pool.append(Candidate(rollout, index, "t", version, first_seen, None, gap, 5, 5))
    cap = draw(st.one_of(st.none(), st.integers(1, 5)))
    batch = draw(st.integers(1, max(1, len(pool))))
    return pool, {"batch_size": batch, "cap": cap, "max_staleness": delta, "max_pending_age": age}


def by_deadline(pool: list[Candidate], numbers: dict[str, Any], last: dict[str, int], *, cap: int) -> list[Candidate]:
    """divopd's batch when groups go by their deadlines: first-seen values are replaced by places in that order."""
    waited = {rollout: min(c.first_seen for c in pool if c.rollout == rollout) for rollout in last}
    order = sorted(waited, key=lambda rollout: (last[rollout], waited[rollout], rollout))
    moved = {c._replace(first_seen=order.index(c.rollout)): c for c in pool}
    composer = make_composer("divopd", **numbers | {"cap": cap, "max_pending_age": 99})
    return [moved[c] for c in composer.decide(list(moved), update=UPDATE).selected]


@given(drawn=urgent_pools())
@settings(max_examples=4 * settings().max_examples)
def test_adaptive_is_its_definition(drawn: tuple[list[Candidate], dict[str, Any]]) -> None:
    """Literally specification §4.4: divopd unless a deadline is now; else by deadline, the largest cap that serves."""
    pool, numbers = drawn
    delta, age, cap = numbers["max_staleness"], numbers["max_pending_age"], numbers["cap"]
    last = {c.rollout: UPDATE for c in pool}
    for c in pool:
        last[c.rollout] = max(last[c.rollout], min(c.version + delta, c.first_seen + age + 1))
    now = {rollout for rollout, deadline in last.items() if deadline == UPDATE}
    if now:
        largest = cap or max(c.turn for c in pool) + 1
        batches = {k: by_deadline(pool, numbers, last, cap=k) for k in range(1, largest + 1)}
        serving = [k for k, batch in batches.items() if now <= {c.rollout for c in batch}]
        expected = batches[max(serving, default=1)]
    else:
        expected = make_composer("divopd", **numbers).decide(pool, update=UPDATE).selected
    assert make_composer("divopd-adaptive", **numbers).decide(pool, update=UPDATE).selected == expected


def test_adaptive_takes_the_largest_cap_that_serves_all() -> None:
    """Three urgent rollouts of four turns and seven slots: 3 + 3 + 1."""
    pool = [Candidate(r, i, "t", UPDATE - 2, UPDATE, None, 1.0, 5, 5) for r in "abc" for i in range(4)]
    selected = make_composer("divopd-adaptive", batch_size=7, cap=4).decide(pool, update=UPDATE).selected
    assert Counter(c.rollout for c in selected) == {"a": 3, "b": 3, "c": 1}


@given(
    windows=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2)).map(lambda w: (w[0], w[0] + w[1])), max_size=6),
    batch=st.integers(1, 3),
)
def test_the_offline_bound_is_the_best_schedule(windows: list[tuple[int, int]], batch: int) -> None:
    """Earliest deadline first serves as many rollouts as trying out every schedule."""

    def best(position: int, free: tuple[int, ...]) -> int:
        if position == len(windows):
            return 0
        options = [best(position + 1, free)]
        for update in range(windows[position][0], min(windows[position][1] + 1, len(free))):
            if free[update]:
                options.append(1 + best(position + 1, (*free[:update], free[update] - 1, *free[update + 1 :])))
        return max(options)

    assert offline_bound(windows, batch_size=batch, updates=5) == best(0, (batch,) * 5)


# ── misuse ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_misuse_is_told() -> None:
    """Unknown names and impossible numbers are errors that say what was expected; nothing changes."""
    with pytest.raises(UnknownNameError, match="did you mean 'divopd-base'"):
        make_composer("divopd-bas")
    for wrong in ({"batch_size": 0}, {"cap": 0}, {"max_staleness": -1}, {"pool_multiplier": 0}, {"colour": 1}):
        with pytest.raises(InputError):
            make_composer("divopd", **wrong)
    composer = make_composer("divopd", batch_size=1, pool_multiplier=2)
    with pytest.raises(InputError, match="there is room for 2"):
        composer.compose([turn("a", i) for i in range(3)], update=0)
    with pytest.raises(InputError, match="passed twice"):
        composer.compose([turn("a", 0), turn("a", 0)], update=0)
    assert composer.room(0) == 2
    with pytest.raises(InputError, match="method 'vanilla'"):
        composer.load_state_dict(make_composer("vanilla").state_dict())
