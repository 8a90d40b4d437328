"""The demo: what it makes of two runs, and the whole of it."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("yaml")

from divopd.experiments.demo import METHODS, DemoFailed, findings, train_side_by_side
from divopd.report.run_comparison import compare_runs
from divopd.report.runs import read_run
from fake_runs import make_run


def found(tmp_path: Path, rates: dict[str, list[float]]) -> dict[str, bool | None]:
    runs = {
        method: read_run(make_run(tmp_path / method, method=method, rates=rates[method], rollouts=9), name=method)
        for method in METHODS
    }
    return {one.what: one.holds for one in findings(compare_runs(list(runs.values())), runs)}


def test_what_holds_and_what_does_not_is_said(tmp_path: Path) -> None:
    """Composition follows from the composers; learning is as the rates say, also when DivOPD loses."""
    better = found(tmp_path / "better", {"vanilla": [10, 20, 44], "divopd": [10, 41, 60]})
    assert better["fewer rollouts never selected"] is True
    assert better["fewer trained tokens to 40 %"] is True
    assert better["higher peak of the success rate"] is True
    worse = found(tmp_path / "worse", {"vanilla": [10, 20, 44], "divopd": [10, 20, 30]})
    assert worse["fewer trained tokens to 40 %"] is False
    assert worse["higher mean of the last five of the success rate"] is False


def test_without_a_target_nothing_is_said_about_it(tmp_path: Path) -> None:
    none = found(tmp_path, {"vanilla": [0, 2, 1], "divopd": [0, 3, 2]})
    assert none["fewer trained tokens to 0 %"] is None


def test_a_run_that_ends_early_ends_the_demo_with_its_last_line(tmp_path: Path) -> None:
    with pytest.raises(DemoFailed, match=r"exit code 2: .*updates is 0"):
        list(train_side_by_side(tmp_path, ["learner.updates=0"], seed=0))


@pytest.mark.slow
def test_the_quick_demo_shows_that_divopd_spreads(tmp_path: Path) -> None:
    """Table, findings and picture of two real runs."""
    command = [sys.executable, "-m", "divopd", "demo", "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for what in ("more effective rollouts", "smaller share of the largest", "fewer rollouts never selected"):
        [line] = [line for line in done.stdout.splitlines() if what in line]
        assert line.rstrip().endswith("yes"), done.stdout
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    assert (tmp_path / "report.html").stat().st_size < 5e6
