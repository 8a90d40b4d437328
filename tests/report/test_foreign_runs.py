"""Whoever reads a run runs no code that the run names."""

from pathlib import Path

import pytest

from divopd.audits.kinds import audit_kinds
from divopd.cli import main
from divopd.report.page.server import Runs, answer
from fake_runs import make_run

EVIL = """
from pathlib import Path
Path(__file__).with_suffix(".imported").touch()
class Env:
    def reset(self, task): raise SystemExit
    def step(self, action): raise SystemExit
    @staticmethod
    def tasks(split): return ["a"]
    @staticmethod
    def kind(task): return "evil"
"""
VIEWS = ("learning", "updates", "health", "flow", "experience", "depths", "ages", "batches", "rollouts")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of somebody else: its environment is a file that comes with it and does harm when it is imported."""
    (tmp_path / "evil.py").write_text(EVIL, encoding="utf-8")
    environment = {"name": f"{tmp_path / 'evil.py'}:Env", "settings": {}}
    return make_run(tmp_path / "run", config={"environment": environment})


def is_imported(run: Path) -> bool:
    return (run.parent / "evil.imported").exists()


@pytest.mark.parametrize(
    "words",
    [
        *(["audit", name, "RUN"] for name in ("ledger", "utilization", "selection", "retention", "cost", "time")),
        *(["audit", name, "RUN"] for name in ("stability", "geometry", "kinds")),
        ["why", "RUN", "r.0.0.0"],
        ["explain", "RUN", "0"],
        ["replay", "RUN"],
        ["compare", "RUN"],
        ["report", "RUN", "--out", "page.html"],
        ["export", "RUN", "turns.jsonl"],
    ],
    ids=" ".join,
)
def test_no_reader_imports_the_environment_of_a_run(
    words: list[str], run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command that reads a run."""
    monkeypatch.chdir(run.parent)
    main([str(run) if word == "RUN" else word for word in words])
    assert not is_imported(run)


def test_the_page_does_not_either(run: Path) -> None:
    """`divopd watch`: all of its views."""
    runs = Runs(run)
    for parts in (["news"], ["runs"], ["comparison"], *(["run", "run", view] for view in VIEWS)):
        answer(runs, parts, {})
    answer(runs, ["run", "run", "rollout", "r.0.0.0"], {})
    answer(runs, ["run", "run", "batch", "0"], {})
    assert not is_imported(run)


def test_kinds_are_told_by_names_or_by_code_that_is_trusted(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where evaluations know other kinds than the names tell, the way to trust the code is named."""
    assert main(["audit", "kinds", str(run)]) == 2
    assert "--trust-environment" in capsys.readouterr().err
    assert not is_imported(run)
    assert main(["audit", "kinds", str(run), "--trust-environment", "--json"]) == 0
    assert is_imported(run)  # so that this file would notice
    assert audit_kinds(run, trust_environment=True).keys() == {"evil"}
    assert main(["audit", "cost", str(run), "--trust-environment"]) == 2
