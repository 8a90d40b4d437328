"""The pool: the batches of a store and of a replay, without either; every row leaves once; the state is small."""

import json
import pickle
import warnings
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divopd import METHODS, Turn, make_composer
from divopd.errors import ConflictError, InputError, NothingToTrainWarning, NotReady, StateError
from divopd.pool import Batch, Measured, Pool, Row, measure
from divopd.replay import recording_of, replay
from divopd.store import Store
from divopd.turns import Fate, Rollout, group_into_rollouts
from divopd.validity import REASONS
from strategies import recordings, turn

NUMBERS = st.fixed_dictionaries(
    {
        "batch_size": st.integers(1, 12),
        "pool_multiplier": st.integers(1, 4),
        "cap": st.one_of(st.none(), st.integers(1, 5)),
        "max_staleness": st.integers(0, 3),
        "max_pending_age": st.integers(0, 4),
        "seed": st.integers(0, 3),
    }
)
# drawn recordings have updates at which all turns are dead, as a run may have one
SOME_UPDATES_ARE_DEAD = pytest.mark.filterwarnings("ignore::divopd.errors.NothingToTrainWarning")
UPDATES = 10
SEEDED = st.integers(0, 2**16).map(Random)  # faster than st.randoms(), which records every draw


def shuffled(turns: list[Turn], random: Random) -> list[Rollout]:
    """Rollouts in order of arrival, those of one update in any order; some tell what their whole rollout has."""
    rollouts = group_into_rollouts(turns)
    for place, rollout in enumerate(rollouts):
        if place % 2:
            told = {"rollout_turns": len(rollout.turns) + 2, "rollout_valid_tokens": 3 * len(rollout.turns) + 1}
            rollouts[place] = replace(rollout, turns=tuple(replace(one, **told) for one in rollout.turns))
    random.shuffle(rollouts)
    return sorted(rollouts, key=lambda rollout: rollout.turns[0].available_at)


def arriving(rollouts: list[Rollout], update: int) -> list[Row]:
    return [Row.of(one) for rollout in rollouts for one in rollout.turns if one.available_at == update]


def fates(batch: Batch) -> list[tuple[tuple[str, int], Fate]]:
    return [(row.key, fate) for row, fate in batch.dropped]


def saved(pool: Pool, **options: Any) -> dict[str, Any]:
    """A state as it comes back from a checkpoint."""
    return json.loads(json.dumps(pool.state_dict(**options)))


# ── the same batches ──────────────────────────────────────────────────────────────────────────────────────────────


@SOME_UPDATES_ARE_DEAD
@pytest.mark.parametrize("method", METHODS)
@given(turns=recordings(updates=8), numbers=NUMBERS, random=SEEDED)
@settings(max_examples=min(4, settings().max_examples))
def test_pool_store_and_replay_compose_the_same_batches(
    method: str, turns: list[Turn], numbers: dict[str, Any], random: Random
) -> None:
    """Rows, weights, passed-over and dropped rows are equal at every update, in whatever order rollouts arrive."""
    rollouts = shuffled(turns, random)
    composer, pool = make_composer(method, **numbers), Pool(method, **numbers)
    recording = recording_of([one for rollout in rollouts for one in rollout.turns])
    with TemporaryDirectory() as folder, Store.create(Path(folder) / "store.db", synchronous="NORMAL") as store:
        epoch = store.begin_learner()
        for update, decision in enumerate(replay(recording, composer, updates=UPDATES)):
            for rollout in rollouts:
                if rollout.turns[0].available_at == update:
                    store.put(rollout)
            pool.put(arriving(rollouts, update))
            assert pool.rows(update) == store.rows(composer, update=update)
            batch, journaled = (
                pool.compose(update, allow_short=True),
                store.compose(composer, update=update, epoch=epoch),
            )
            keys = [row.key for row in batch.rows]
            assert keys == journaled.entry.selected == [c.key for c in decision.selected]
            assert batch.weights == journaled.weights == decision.weights
            dropped = Counter(fate.kind for _, fate in batch.dropped)
            assert dropped == Counter(
                stale=len(decision.stale), invalid=len(decision.invalid), aged_out=len(decision.aged_out)
            )
            assert [key for key, fate in fates(batch) if fate.kind == "stale"] == journaled.entry.stale
            assert [
                (*key, fate.reason) for key, fate in fates(batch) if fate.kind == "invalid"
            ] == journaled.entry.invalid
            assert [key for key, fate in fates(batch) if fate.kind == "aged_out"] == journaled.entry.aged_out
            assert batch.metrics["pending"] == len(decision.pending)


@SOME_UPDATES_ARE_DEAD
@given(turns=recordings(updates=6), numbers=NUMBERS, method=st.sampled_from(list(METHODS)))
def test_composing_goes_on_identically_from_a_saved_state(
    turns: list[Turn], numbers: dict[str, Any], method: str
) -> None:
    """A pool restored at any update makes the batches of the original; so does one that was pickled."""
    original = Pool(method, **numbers)
    for update in range(8):
        original.put([Row.of(one) for one in turns if one.available_at == update])
        restored = Pool(method, **numbers)
        restored.load_state_dict(saved(original))
        copied = pickle.loads(pickle.dumps(original))
        expected = original.compose(update, allow_short=True)
        for other in (restored, copied):
            batch = other.compose(update, allow_short=True)
            assert (batch.rows, batch.weights, fates(batch), batch.metrics) == (
                expected.rows,
                expected.weights,
                fates(expected),
                expected.metrics,
            )
            assert saved(other) == saved(original)


# ── every row leaves once ─────────────────────────────────────────────────────────────────────────────────────────


@SOME_UPDATES_ARE_DEAD
@pytest.mark.parametrize("method", METHODS)
@given(turns=recordings(updates=8), again=SEEDED)
@settings(max_examples=min(8, settings().max_examples))
def test_no_row_is_trained_twice_however_often_it_is_put(method: str, turns: list[Turn], again: Random) -> None:
    """Rows are put again at any later time, also long after they left: they are never in a batch again."""
    pool, trained, dropped = Pool(method, batch_size=7), Counter[tuple[str, int]](), Counter[tuple[str, int]]()
    for update in range(12):
        arrived = [one for one in turns if one.available_at <= update]
        fresh = [one for one in arrived if one.available_at == update]
        rows = [Row.of(one) for one in fresh + again.sample(arrived, len(arrived) // 3)]
        again.shuffle(rows)
        pool.put(rows)
        batch = pool.compose(update, allow_short=True)
        trained.update(row.key for row in batch.rows)
        dropped.update(key for key, fate in fates(batch) if fate.kind != "stale")
    assert max((trained + dropped).values(), default=1) == 1


def test_memory_does_not_grow_with_the_run() -> None:
    """What left is forgotten once its version is stale: the pool of a long run is as large as that of a short one."""
    pool, sizes = Pool("divopd", batch_size=8), []
    for update in range(300):
        pool.put([Row.of(turn(f"r{update}", number, version=update)) for number in range(12)])
        pool.compose(update)
        sizes.append(len(json.dumps(pool.state_dict())))
    assert max(sizes[200:]) <= 1.2 * max(sizes[:20])
    assert pool.put([Row.of(turn("r3", 0, version=3))]) == 1  # forgotten, so it is new …
    assert pool.compose(300, allow_short=True).dropped[-1][1] == Fate("stale", 300)  # … and never trained again


def test_a_row_put_again_changes_nothing_and_other_numbers_are_a_conflict() -> None:
    """While it waits, and after it was trained; a put that is refused puts nothing."""
    pool = Pool("divopd", batch_size=2)
    first, second, third = (Row.of(turn("a", number)) for number in range(3))
    assert pool.put([first, second, first]) == 2
    assert pool.put([second]) == 0
    other = Row.of(turn("a", 1, gap=0.75))
    with pytest.raises(ConflictError, match="rollout 'a' turn 1 was put before"):
        pool.put([third, other])
    assert len(pool) == 2
    assert len(pool.compose(0).rows) == 2
    assert pool.put([first, second]) == 0
    with pytest.raises(ConflictError):
        pool.put([other])
    assert [pool.fate("a", number) for number in range(3)] == [Fate("trained", 0), Fate("trained", 0), None]


def test_payloads_come_back_as_they_were_put() -> None:
    """Whatever they are; the row in a batch, or among the dropped ones, has the very object."""
    pool, payloads = Pool("divopd", batch_size=1), [object(), np.zeros(3)]
    pool.put([replace(Row.of(turn("a", 0)), payload=payloads[0])])
    pool.put([replace(Row.of(turn("a", 1, action_mask=None)), payload=payloads[1])])
    batch = pool.compose(0)
    assert batch.rows[0].payload is payloads[0]
    assert batch.dropped[0][0].payload is payloads[1]
    assert batch.dropped[0][1] == Fate("invalid", 0, "no_action_mask")


# ── ready or not ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("method", "rows"), [("divopd", 3), ("vanilla", 4)])
def test_a_short_batch_is_an_explicit_choice(method: str, rows: int) -> None:
    """Too few rows raise and change nothing; an invalid row is no row for a gate."""
    pool = Pool(method, batch_size=5)
    pool.put([Row.of(turn("a", number, prompt_truncated=number == 3)) for number in range(4)])
    before = saved(pool)
    with pytest.raises(NotReady, match=f"{rows} rows for a batch of 5") as caught:
        pool.compose(0)
    assert (caught.value.rows, caught.value.full, pool.ready(0)) == (rows, False, False)
    assert saved(pool) == before
    pool.put([Row.of(turn("b", number)) for number in range(2)])
    assert pool.ready(0)
    assert len(pool.compose(0).rows) == 5
    pool.compose(1, allow_short=True)
    assert pool.compose(2, allow_short=True).rows == []


def test_a_full_pool_says_that_waiting_does_not_help() -> None:
    """A gate that drops nearly all of a full pool: more rows would not be read, so the error says so."""
    pool = Pool("divopd", batch_size=2, pool_multiplier=2)
    pool.put([Row.of(turn("a", number, prompt_truncated=number > 0)) for number in range(9)])
    with pytest.raises(NotReady, match=r"3 more are invalid \(prompt_truncated 3\); the pool is full") as caught:
        pool.compose(0)
    assert caught.value.full
    assert pickle.loads(pickle.dumps(caught.value)).full
    assert len(pool.compose(0, allow_short=True).rows) == 1


@pytest.mark.parametrize("method", METHODS)
def test_a_batch_without_a_valid_row_is_told_once(method: str) -> None:
    """The counted reasons are in the warning; the same pool says it once, another one again."""
    for _ in range(2):
        pool = Pool(method, batch_size=4)
        lost = [turn("a", 0, action_mask=None), turn("a", 1, action_mask=None), turn("b", 0, prompt_truncated=True)]
        pool.put(map(Row.of, lost))
        with pytest.warns(NothingToTrainWarning, match=r"update 0: .* 3 .*no_action_mask 2, prompt_truncated 1"):
            pool.compose(0, allow_short=True)
        pool.put([Row.of(turn("c", 0, action_mask=None))])
        pool.compose(1, allow_short=True)


@pytest.mark.parametrize("method", METHODS)
def test_a_batch_with_a_valid_row_is_no_warning(method: str) -> None:
    """Nor is an empty pool, nor one in which all rows are stale."""
    pool = Pool(method, batch_size=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pool.put(map(Row.of, [turn("a", 0), turn("a", 1, action_mask=None)]))
        assert pool.compose(0, allow_short=True).rows
        pool.compose(1, allow_short=True)
        pool.put([Row.of(turn("old", 0, action_mask=None))])
        pool.compose(9, allow_short=True)


# ── state ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_state_of_192_pending_rows_is_small() -> None:
    """Under 100 kB although a row has 10,000 tokens, with ids and tasks as long as those of real frameworks."""
    pool = Pool("divopd", batch_size=64)
    task = "pick_heat_then_place_in_recep-Apple-None-Fridge-10/trial_T20190906_182435_622538"
    for update in range(3):
        for number in range(32):
            rollout = f"7d3f9c1e-8a52-4b6f-9d0e-{update:04d}{number:08d}-0"
            rows = [measure([-0.731] * 500, [-1.234] * 500, [1] * 500, prompt_tokens=9500) for _ in range(8)]
            pool.put(
                Row(rollout, turn, f"{task}/{number}", update, one, [0.0] * 10_000) for turn, one in enumerate(rows)
            )
        batch = pool.compose(update)
    assert batch.metrics["pending"] == 192
    assert len(json.dumps(pool.state_dict())) < 100_000


def test_a_restore_without_payloads_lists_what_is_missing_and_takes_it_again() -> None:
    """Rows put again get their payload back and are not new; those that are not come with payload None."""
    pool, restored = (Pool("divopd", batch_size=1, pool_multiplier=2) for _ in range(2))
    pool.put([replace(Row.of(turn("a", number)), payload=f"tokens {number}") for number in range(4)])
    pool.compose(0)
    restored.load_state_dict(saved(pool))
    assert restored.missing() == [("a", 1), ("a", 2), ("a", 3)]
    assert restored.put([replace(Row.of(turn("a", 2)), payload="tokens 2")]) == 0
    assert restored.missing() == [("a", 1), ("a", 3)]
    got = [row for update in (0, 1, 2) for row in restored.compose(update).rows]
    assert [(row.turn, row.payload) for row in got] == [(1, None), (2, "tokens 2"), (3, None)]
    assert restored.missing() == []


def test_payloads_are_saved_if_asked() -> None:
    """`encode` and `decode` see every payload that waits, also one that is None."""
    pool, restored = (Pool("divopd", batch_size=1) for _ in range(2))
    pool.put([replace(Row.of(turn("a", number)), payload=[b"\x00\xff", None][number % 2]) for number in range(3)])
    state = saved(pool, encode=lambda payload: payload and payload.hex())
    restored.load_state_dict(state, decode=lambda text: text and bytes.fromhex(text))
    assert restored.missing() == []
    assert [row.payload for update in range(3) for row in restored.compose(update).rows] == [
        b"\x00\xff",
        None,
        b"\x00\xff",
    ]
    restored.load_state_dict(state)
    assert len(restored.missing()) == 3


SETTINGS = {**asdict(Pool("divopd").settings), "cap": 3, "seed": 5}
OTHER: dict[str, Any] = {
    "method": "vanilla",
    "batch_size": 65,
    "pool_multiplier": 5,
    "cap": None,
    "max_staleness": 3,
    "max_pending_age": 9,
    "seed": 6,
    "total_updates": 9,
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_state_of_other_settings_is_refused(name: str) -> None:
    """The error names the setting; the pool goes on as it was."""
    pool = Pool(**{**SETTINGS, name: OTHER[name]})
    pool.put([Row.of(turn("kept", 0))])
    with pytest.raises(StateError, match=f"has {name} {SETTINGS[name]!r}, this pool has {OTHER[name]!r}"):
        pool.load_state_dict(saved(Pool(**SETTINGS)))
    assert len(pool) == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: state.pop("pending"),
        lambda state: state.update(format=7),
        lambda state: state["queued"][0].pop(),
        lambda state: state["queued"][0].__setitem__(0, 99),
        lambda state: state["queued"][0].__setitem__(6, "much"),
        lambda state: state["queued"].append(state["queued"][0]),
        lambda state: state.update(settings=None),
    ],
)
def test_what_is_no_state_is_refused(damage: Any) -> None:
    """A damaged or foreign state is a StateError, and nothing has changed."""
    pool = Pool("divopd")
    pool.put([Row.of(turn("a", 0))])
    state = saved(pool)
    damage(state)
    with pytest.raises(StateError):
        pool.load_state_dict(state)
    assert (len(pool), pool.missing()) == (1, [])


# ── misuse ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_misuse_is_told() -> None:
    """Updates that go backwards, versions from the future, rows that are none: an InputError, and nothing changes."""
    pool, good = Pool("divopd", batch_size=1), Row.of(turn("a", 0, version=1))
    pool.put([good])
    with pytest.raises(InputError, match="is of version 1; expected at most the update's number"):
        pool.compose(0)
    assert len(pool.compose(1).rows) == 1
    with pytest.raises(InputError, match="update 1 was composed"):
        pool.compose(0)
    wrong = [
        replace(good, rollout=7),
        replace(good, turn=-1),
        replace(good, turn="0"),
        replace(good, version=0.5),
        replace(good, measured=replace(good.measured, disagreement=float("nan"))),
        replace(good, measured=replace(good.measured, reason="tired")),
        replace(good, measured=None),
    ]
    for row in wrong:
        with pytest.raises(InputError, match=r"expected|known"):
            pool.put([Row.of(turn("b", 0)), row])
    assert len(pool) == 0
    with pytest.raises(InputError):
        Pool("divopd", colour=1)


def test_numbers_of_other_libraries_become_plain_ones() -> None:
    """Turn and version as numpy has them: the state is JSON all the same."""
    pool = Pool("divopd", batch_size=1)
    turn, version = np.array([3, 0])
    pool.put([Row("a", turn, "t", version, measure([-1.0], [-2.0], [1], prompt_tokens=1))])
    assert saved(pool)["queued"][0][1] == 3


# ── measuring ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Foreign:
    """An array of a library that has neither `tolist` nor length."""

    def __init__(self, values: list[float]) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.values, dtype=dtype)


LISTS = st.none() | st.lists(st.sampled_from([-0.5, -1.25, 0.0, float("nan"), -float("inf"), 3.0]), max_size=3)
MASKS = st.none() | st.lists(st.integers(0, 1), max_size=3)


@given(student=LISTS, teacher=LISTS, mask=MASKS, teacher_mask=MASKS, prompt=st.integers(0, 2), cut=st.booleans())
def test_measuring_is_the_gate_on_any_lists(
    student: Any, teacher: Any, mask: Any, teacher_mask: Any, prompt: int, cut: bool
) -> None:
    """Reason, disagreement and counts are those of a turn with these lists, and nothing raises."""
    size = 2
    measured = measure(
        student, teacher, mask, teacher_mask, prompt_tokens=prompt, prompt_truncated=cut, response_tokens=size
    )
    whole = Turn("a", 0, "t", 0, 0, [1] * prompt, cut, [2] * size, student, teacher, mask, teacher_mask)
    assert measured == Row.of(whole).measured


@pytest.mark.parametrize(
    "kind",
    [
        list,
        tuple,
        np.array,
        lambda values: np.array(values, dtype=np.float32),
        lambda values: [np.float32(value) for value in values],
        Foreign,
    ],
    ids=["list", "tuple", "float64", "float32", "scalars", "__array__"],
)
def test_any_librarys_lists_measure_alike(kind: Any) -> None:
    student, teacher, mask, usable = [-0.5, -1.25, -2.0], [-0.75, -0.25, -4.0], [1, 1, 0], [1, 1, 1]
    measured = measure(kind(student), kind(teacher), kind(mask), kind(usable), prompt_tokens=np.array([7])[0])
    assert measured == Measured(None, -0.75, tokens=10, valid_tokens=2)
    assert Measured(*json.loads(json.dumps(measured.numbers))) == measured


@pytest.mark.parametrize(
    ("lists", "reason"),
    [
        ((None, None, None), "no_tokens"),
        (([], [], []), "no_tokens"),
        ((None, [-1.0], [1]), "no_student_logprobs"),
        (([-1.0], None, [1]), "no_teacher_logprobs"),
        (([-1.0], [-1.0], None), "no_action_mask"),
        (([-1.0], [-1.0, -1.0], [1, 1]), "misaligned"),
        (([[-1.0]], [-1.0], [1]), "misaligned"),
        ((["a"], [-1.0], [1]), "misaligned"),
        ((-1.0, [-1.0], [1]), "misaligned"),
        ((np.array(-1.0), [-1.0], [1]), "misaligned"),
        (([-1.0], [-1.0], object()), "misaligned"),
        (([None], [-1.0], [1]), "not_finite"),
        (([-1.0], [-1.0], [1], [0]), "no_valid_token"),
    ],
)
def test_measuring_never_raises(lists: tuple[Any, ...], reason: str) -> None:
    """Without the length of the response, the longest list counts; what is no list of numbers is misaligned."""
    measured = measure(*lists, prompt_tokens=3)
    assert measured.reason == reason
    assert reason in REASONS
    assert measured.disagreement == measured.valid_tokens == 0
