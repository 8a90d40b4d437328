"""What a pool recorded, as every command sees it."""

from pathlib import Path

import pytest

from divopd import Pool, Row
from divopd.cli import main
from divopd.recorder import read_batches
from divopd.store import Store
from divopd.synth import PRESETS, synthesize
from divopd.turns import read_turns


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six updates of a pool, recorded."""
    folder = tmp_path_factory.mktemp("recorded")
    turns = list(synthesize(PRESETS["webshop"], updates=6, seed=0))
    pool = Pool("divopd", batch_size=32, record=folder / "t.jsonl")
    for update in range(6):
        pool.put([Row.of(one) for one in turns if one.available_at == update])
        pool.compose(update, allow_short=True)
    return folder


def test_every_command_reads_it(
    recorded: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """replay, report, why, explain and the audits, those aside that need seconds or weights."""
    monkeypatch.chdir(recorded)
    rollout = read_turns("t.jsonl")[0].rollout
    commands = [
        ["replay", "t.jsonl", "--recorded", "--out", "run"],
        ["replay", "t.jsonl", "--method", "vanilla", "divopd", "--verdict"],
        ["replay", "run", "--method", "divopd", "--batch-size", "32"],
        ["explain", "run", "4"],
        ["why", "run", rollout],
        ["report", "run", "--out", "page.html"],
        *(["audit", name, "run"] for name in ("ledger", "utilization", "selection", "retention", "kinds")),
    ]
    for command in commands:
        assert main(command) == 0, command
    assert "trained in update" in capsys.readouterr().out
    with Store.open_read_only("run") as store:
        journal = [store.journal(update).selected for update in range(store.updates)]
    assert journal == [one.entry.selected for one in read_batches(Path("t.jsonl"))]
