"""Composers: the guarantees of specification §4.2 as properties, and agreement with a literal Algorithm 1."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divopd import METHODS, Turn, make_composer
from divopd.composers import Candidate
from divopd.composers.adaptive import offline_bound
from divopd.composers.columns import STRETCH, select_by_columns
from divopd.composers.rollout_first import RolloutFirst
from divopd.errors import InputError, NothingToTrainWarning, UnknownNameError
from divopd.pool import Batch, Pool, Row
from divopd.turns import FateKind
from divopd.validity import Reason
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


def compose(turns: Iterable[Turn], *, update: int, method: str, **numbers: Any) -> Batch:
    """The batch of a new pool that holds these turns."""
    pool = Pool(method, **numbers)
    pool.put(map(Row.of, turns))
    return pool.compose(update, allow_short=True)


def keys(batch: Batch) -> list[tuple[str, int]]:
    return [row.key for row in batch.rows]


def dropped(batch: Batch, kind: FateKind) -> list[Turn]:
    return [row.payload for row, fate in batch.dropped if fate.kind == kind]


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


# ── Algorithm 1 ───────────────────────────────────────────────────────────────────────────────────────────────────


@SOME_UPDATES_ARE_DEAD
@given(turns=recordings(), numbers=st.fixed_dictionaries(SETTINGS))
@settings(max_examples=3 * settings().max_examples)
def test_divopd_is_algorithm_1(turns: list[Turn], numbers: dict) -> None:
    """Fast and literal composer agree on every list of every update: pending, expiry and invalid turns included."""
    literal = LiteralDivOPD(
        B=numbers["batch_size"],
        c=numbers["pool_multiplier"],
        k=numbers["cap"],
        delta=numbers["max_staleness"],
        W=numbers["max_pending_age"],
    )
    pool = Pool("divopd", **numbers)
    queue: list[Turn] = []
    for update in range(14):
        arrived = [turn for turn in turns if turn.available_at == update]
        queue += arrived
        pool.put(map(Row.of, arrived))
        batch = pool.compose(update, allow_short=True)
        expected = literal.update(update, queue)
        assert [row.payload for row in batch.rows] == expected["selected"]
        assert dropped(batch, "stale") == expected["stale"]
        assert dropped(batch, "invalid") == expected["invalid"]
        assert dropped(batch, "aged_out") == expected["aged_out"]
        assert batch.metrics["queued"] == len(queue)


@given(pool=candidates(), batch=st.integers(1, 20), cap=st.none() | st.integers(1, 5))
def test_arrays_select_what_lists_select(pool: list[Candidate], batch: int, cap: int | None) -> None:
    """Large pools are composed with arrays: the same turns, order and passes, and the rest in order."""
    valid = eligible(pool) or [Candidate("r", 0, "t", UPDATE, 0, None, 0.0, 1, 1)]
    composer = make_composer("divopd", batch_size=batch, cap=cap)
    expected = composer.select(valid, update=UPDATE)
    selection = select_by_columns(valid, size=batch, cap=cap)
    assert selection == expected
    assert selection.left == [c for c in valid if c not in expected.candidates]
    assert selection.first_seen == min(c.first_seen for c in valid)


REASONS: list[Reason | None] = [None, "misaligned"]


@pytest.mark.parametrize("cap", [4, None])
def test_a_large_pool_is_composed_like_a_small_one(cap: int | None) -> None:
    """More turns than are read at once, in any order and with equal disagreements: every list is the definition's."""
    random = Random(0)
    keys = [(f"r{number % 1500}", number // 1500) for number in range(3 * STRETCH)]
    pool = [
        Candidate(*key, "t", random.randint(2, 5), random.randint(0, 5), reason, random.randint(0, 40) / 8, 9, 3)
        for key in random.sample(keys, len(keys))
        for reason in random.choices(REASONS, [9, 1])
    ]
    composer = make_composer("divopd", batch_size=len(pool) // 4, cap=cap, max_pending_age=3)
    assert isinstance(composer, RolloutFirst)
    decision, valid = composer.decide(pool, update=UPDATE), eligible(pool)
    expected = RolloutFirst.select(composer, valid, update=UPDATE)  # with lists, whatever the size
    assert (decision.selected, decision.passes) == expected
    taken = {c.key for c in expected.candidates}
    left = [c for c in valid if c.key not in taken]
    assert decision.aged_out == [c for c in left if c.first_seen < UPDATE - 3]
    assert decision.pending == [c for c in left if c.first_seen >= UPDATE - 3]


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
    turns = [turn("a", i, gap=g) for i, g in enumerate([0.1, 0.9, 0.5, 0.9])] + [
        turn("b", i, gap=1.0) for i in range(3)
    ]
    batch = compose(turns, update=0, method="divopd", batch_size=6, cap=2)
    assert keys(batch) == [("a", 1), ("a", 3), ("b", 0), ("b", 1), ("a", 2), ("b", 2)]


def test_uniform_draws_are_uniform_and_seeded() -> None:
    """divopd-base depends on seed, update and rollout, and on nothing else."""
    pool = [turn("a", i) for i in range(10)]
    first = {}
    for seed in range(400):
        numbers = {"batch_size": 1, "pool_multiplier": 10, "seed": seed}
        first[seed], again = (compose(pool, update=0, method="divopd-base", **numbers).rows[0].turn for _ in range(2))
        assert again == first[seed]
    counts = Counter(first.values())
    assert set(counts) == set(range(10))
    assert max(counts.values()) < 80  # 40 expected, standard deviation 6


def test_uniform_draws_differ_by_update_and_by_rollout() -> None:
    """One seed does not favour the same places of every rollout, nor those of one rollout at every update."""

    def first(rollout: str, update: int) -> int:
        pool = [turn(rollout, i, version=update) for i in range(10)]
        return compose(pool, update=update, method="divopd-base", batch_size=1, pool_multiplier=10).rows[0].turn

    assert len({first("a", update) for update in range(20)}) > 1
    assert len({first(f"r{number}", 0) for number in range(20)}) > 1


# ── the other methods ─────────────────────────────────────────────────────────────────────────────────────────────


def test_vanilla_takes_arrival_order_and_dead_rows() -> None:
    """Without a gate an invalid turn takes a slot."""
    turns = [turn("a", 0), turn("a", 1, prompt_truncated=True), turn("b", 0)]
    turns = [turn("s", 0, version=0), *(replace(one, version=5) for one in turns)]
    batch = compose(turns, update=7, method="vanilla", batch_size=3)
    assert keys(batch) == [("a", 0), ("a", 1), ("b", 0)]
    assert dropped(batch, "stale") == turns[:1]
    assert dropped(batch, "invalid") == []


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
    numbers = {"method": "turnopd", "total_updates": 10, "max_staleness": 9}
    start, middle, late = (compose([*a, *b], update=n, **numbers).weights for n in (0, 2, 5))
    tokens, turns = [1 / 4, 3 / 4, 2 / 16, 6 / 16], [1 / 2, 1 / 2, 1 / 4, 1 / 4]
    assert start == pytest.approx([4 * part / 1.5 for part in tokens])
    assert late == pytest.approx([4 * part / 1.5 for part in turns])
    assert middle == pytest.approx([4 * (0.6 * x + 0.4 * y) / 1.5 for x, y in zip(tokens, turns, strict=True)])


def test_turnopd_weighs_by_the_batch_what_does_not_tell_of_its_rollout() -> None:
    """Rows of the rollout in the batch, and their valid tokens, stand in; a batch of dead rows has equal weights."""
    turns = [turn("a", 0, size=1), turn("a", 1, size=3), turn("b", 0, size=7)]
    numbers = {"method": "turnopd", "total_updates": 10, "max_staleness": 9}
    start = compose(turns, update=0, **numbers)
    assert start.weights == pytest.approx([3 / 8, 9 / 8, 3 / 2])
    assert compose(turns, update=5, **numbers).weights == pytest.approx([3 / 4, 3 / 4, 3 / 2])
    told = [turn("a", 0, size=1, rollout_turns=0, rollout_valid_tokens=0), *turns[1:]]  # it says what cannot be
    assert compose(told, update=0, **numbers).weights == start.weights
    dead = [replace(one, prompt_truncated=True) for one in turns]
    with pytest.warns(NothingToTrainWarning):
        assert compose(dead, update=0, **numbers).weights == [1.0] * 3


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
@settings(max_examples=2 * settings().max_examples)
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
    """Unknown names and impossible numbers are errors that say what was expected."""
    with pytest.raises(UnknownNameError, match="did you mean 'divopd-base'"):
        make_composer("divopd-bas")
    for wrong in ({"batch_size": 0}, {"cap": 0}, {"max_staleness": -1}, {"pool_multiplier": 0}, {"colour": 1}):
        with pytest.raises(InputError):
            make_composer("divopd", **wrong)


# ── what no composer looks at ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("method", METHODS)
@given(pool=candidates() | urgent_pools().map(lambda drawn: drawn[0]), batch=st.integers(1, 20), told=st.data())
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
