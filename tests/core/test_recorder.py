"""The recorder of a pool: recordings that every command reads, and runs of what was really trained."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divopd import METHODS, Turn, make_composer
from divopd.audits.ledger import audit_ledger
from divopd.cli import main
from divopd.errors import InputError, StateError
from divopd.pool import Pool, Row, measure
from divopd.recorder import journal_recorded, read_batches
from divopd.replay import recording_of, replay
from divopd.store import Store
from divopd.synth import PRESETS, synthesize
from divopd.turns import read_turns, turn_to_json
from strategies import recordings, turn

NUMBERS: dict[str, Any] = {"batch_size": 6, "cap": 2, "max_staleness": 1, "max_pending_age": 1}
SOME_UPDATES_ARE_DEAD = pytest.mark.filterwarnings("ignore::divopd.errors.NothingToTrainWarning")


def train(pool: Pool, turns: list[Turn], updates: range) -> list[list[tuple[str, int]]]:
    """Put what arrives at each update and compose; the keys of every batch."""
    batches: list[list[tuple[str, int]]] = []
    for update in updates:
        pool.put([Row.of(one) for one in turns if one.available_at == update])
        batches.append([row.key for row in pool.compose(update, allow_short=True).rows])
    return batches


def journal(run: Path) -> list[list[tuple[str, int]]]:
    with Store.open_read_only(run) as store:
        return [store.journal(update).selected for update in range(store.updates)]


@SOME_UPDATES_ARE_DEAD
@given(turns=recordings(updates=6), method=st.sampled_from(list(METHODS)))
@settings(max_examples=min(12, settings().max_examples))
def test_a_recording_is_the_run(tmp_path_factory: pytest.TempPathFactory, turns: list[Turn], method: str) -> None:
    """Its turns are those that were put, a replay composes the same batches, and the run made of it has the same
    journal, which the audit recomputes."""
    folder = tmp_path_factory.mktemp("recorded")
    batches = train(Pool(method, record=folder / "t.jsonl", **NUMBERS), turns, range(8))
    if not turns:
        assert not (folder / "t.jsonl").read_bytes()
        return
    assert [turn_to_json(one) for one in read_turns(folder / "t.jsonl")] == [turn_to_json(one) for one in turns]
    again = replay(recording_of(read_turns(folder / "t.jsonl")), make_composer(method, **NUMBERS), updates=8)
    assert [[c.key for c in decision.selected] for decision in again] == batches
    assert journal_recorded(folder / "t.jsonl", run=folder / "run") == 8
    assert journal(folder / "run") == batches
    with Store.open_read_only(folder / "run") as store:
        assert audit_ledger(store).updates == 8


def test_a_measured_row_is_recorded_with_its_lists(tmp_path: Path) -> None:
    """Token ids that nobody told are zeros; the recording measures as the row did."""
    pool = Pool("divopd", batch_size=1, record=tmp_path / "t.jsonl")
    measured = measure([-0.5, -1.0], [-0.75, -3.0], [1, 1], [1, 0], prompt_tokens=3, rollout_turns=4)
    pool.put([Row("a", 2, "t", 0, measured, payload=object(), success=True)])
    pool.put([Row("a", 3, "t", 0, measure(None, [[1]], None, prompt_tokens=0), payload=object())])
    first, second = read_turns(tmp_path / "t.jsonl")
    assert (first.prompt_ids, first.response_ids, first.success, first.rollout_turns) == ([0] * 3, [0] * 2, True, 4)
    assert Row.of(first).measured == measured
    assert Row.of(second).measured.reason == "no_tokens"
    assert pool.compose(0).rows[0].measured.source is None  # let go of once it is written


def test_the_recording_follows_a_restored_run(tmp_path: Path) -> None:
    """What came after the checkpoint did not happen: lines are cut, and the run is that of one that never stopped."""
    turns = list(synthesize(PRESETS["webshop"], updates=8, seed=1))
    straight, broken = tmp_path / "straight.jsonl", tmp_path / "broken.jsonl"
    train(Pool("divopd", batch_size=16, record=straight), turns, range(8))
    pool = Pool("divopd", batch_size=16, record=broken)
    train(pool, turns, range(4))
    state = json.loads(json.dumps(pool.state_dict()))
    train(pool, turns, range(4, 6))
    with broken.open("ab") as file:
        file.write(b'{"rollout": "torn')  # killed while it wrote
    restored = Pool("divopd", batch_size=16, record=broken)
    restored.load_state_dict(state)
    train(restored, turns, range(4, 8))
    assert broken.read_bytes() == straight.read_bytes()
    assert read_batches(broken) == read_batches(straight)


def test_a_last_line_that_breaks_off_is_left_out(tmp_path: Path) -> None:
    """A recording of a killed process can be read at once; the same line in the middle is an error."""
    path = tmp_path / "t.jsonl"
    train(Pool("divopd", record=path, **NUMBERS), [turn("a", n) for n in range(4)], range(1))
    whole = path.read_bytes()
    for end in range(len(whole) - 300, len(whole), 13):
        path.write_bytes(whole[:end])
        assert len(read_turns(path)) in (3, 4)
    path.write_bytes(whole[:-40] + b"\n" + whole)
    with pytest.raises(InputError, match=r"jsonl:4: broken JSON"):
        read_turns(path)


def test_turns_of_a_rollout_may_arrive_apart(tmp_path: Path) -> None:
    """The run has them together; what was trained when is as it was."""
    random, path = Random(0), tmp_path / "t.jsonl"
    pool = Pool("divopd", record=path, batch_size=3, cap=1, pool_multiplier=2)
    rows = [Row.of(turn(f"r{n % 4}", n // 4, gap=random.random(), task=f"{n % 4}")) for n in range(16)]
    batches: list[list[tuple[str, int]]] = []
    for update in range(3):
        pool.put(rows[5 * update : 5 * update + 5])
        batches.append([row.key for row in pool.compose(update, allow_short=True).rows])
    assert journal_recorded(path, run=tmp_path / "run") == 3
    assert journal(tmp_path / "run") == batches


def test_skipped_updates_are_empty_batches(tmp_path: Path) -> None:
    """A pool that begins late, and leaves an update out."""
    pool = Pool("divopd", record=tmp_path / "t.jsonl", batch_size=2)
    pool.put([Row.of(turn("a", n, version=5)) for n in range(6)])
    batches = {update: [row.key for row in pool.compose(update).rows] for update in (5, 7)}
    assert journal_recorded(tmp_path / "t.jsonl", run=tmp_path / "run") == 8
    assert journal(tmp_path / "run") == [batches.get(update, []) for update in range(8)]


def test_a_row_that_was_trained_and_put_again_is_recorded_once(tmp_path: Path) -> None:
    """Long after, when it is dropped as stale: the recording stays readable, and the run has its first fate."""
    path = tmp_path / "t.jsonl"
    pool = Pool("divopd", record=path, batch_size=1, max_staleness=0)
    for update in range(3):
        pool.put([Row.of(turn(f"r{update}", 0, version=update)), Row.of(turn("r0", 0, version=0))])
        pool.compose(update)
    assert [one.rollout for one in read_turns(path)] == ["r0", "r1", "r2"]
    journal_recorded(path, run=tmp_path / "run")
    with Store.open_read_only(tmp_path / "run") as store:
        assert store.account()[:2] == (3, 3)


def test_misuse_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is put, and nothing is written, that a reader would refuse; a recording is never written over."""
    path = tmp_path / "t.jsonl"
    pool = Pool("divopd", record=path, batch_size=1)
    row = Row.of(turn("a", 0))
    for wrong, said in ((Row.of(turn("a b", 0)), "field 'rollout'"), (row.light(), "no lists to record")):
        with pytest.raises(InputError, match=said):
            pool.put([Row.of(turn("b", 0)), wrong])
        assert len(pool) == 0
        assert not path.exists() or not path.read_bytes()
    pool.put([row])
    pool.compose(0)
    with pytest.raises(InputError, match="one batch an update"):
        pool.compose(0, allow_short=True)
    with pytest.raises(InputError, match="holds a recording already"):
        Pool("divopd", record=path).put([Row.of(turn("b", 0))])
    for state in (Pool("divopd", batch_size=1).state_dict(), pool.state_dict() | {"recorded": [10**9, 0]}):
        with pytest.raises(StateError, match="not the recording"):
            Pool("divopd", batch_size=1, record=path).load_state_dict(state)
    assert len(read_turns(path)) == 1
    for words, said in (([], "--out RUN"), (["--out", str(tmp_path / "r"), "--method", "divopd"], "no method")):
        assert main(["replay", str(path), "--recorded", *words]) == 2
        assert said in capsys.readouterr().err
    path.with_name("t.batches.jsonl").write_text('{"update": 0}\n', encoding="utf-8")
    assert main(["replay", str(path), "--recorded", "--out", str(tmp_path / "r")]) == 2
    assert "not a batch that a pool recorded" in capsys.readouterr().err
    path.with_name("t.batches.jsonl").unlink()
    assert main(["replay", str(path), "--recorded", "--out", str(tmp_path / "r")]) == 2
    assert "no such file" in capsys.readouterr().err
