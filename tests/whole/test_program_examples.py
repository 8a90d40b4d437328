"""The two example agents train, and their report shows what each call was and what became of it."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from divopd.cli import main
from divopd.store import Store, read_attempts

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tool_agent", "node_agent"])
def test_an_example_agent_trains(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A few updates of the embedded student; every row has its call, and `why` and the page tell of it."""
    if name == "node_agent" and shutil.which("node") is None:
        pytest.skip("for want of node")
    if name == "tool_agent":
        pytest.importorskip("openai", reason="for want of the extra dev")
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{'/usr/bin:/bin:/usr/local/bin'}")
    run = tmp_path / "run"
    assert main(["train", f"examples/{name}/train.yaml", "--out", str(run)]) == 0
    with Store.open_read_only(run) as store:
        assert store.updates == 3
        rows = list(store.stored_turns())
        broke = [event["reason"] for _, kind, event in store.events() if kind == "rollout_broke"]
        calls = {
            (row.rollout, row.turn): read_attempts(store, int(row.rollout[1:]))[-1].calls[row.turn] for row in rows
        }
    assert not broke
    assert all(
        record is not None and record["mask"].count(1) == len(record["completion_ids"]) for record in calls.values()
    )
    trained = next(row for row in rows if row.fate.kind == "trained")
    capsys.readouterr()
    assert main(["why", str(run), trained.rollout, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert "of agent main" in told["calls"][trained.turn]["sentence"]
    assert "was trained in update" in next(turn["sentence"] for turn in told["turns"] if turn["turn"] == trained.turn)
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "of agent main: " in page
