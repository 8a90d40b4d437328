"""The demo: what it makes of two runs, and the whole of it."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("yaml")

from divopd.cli.demo import print_findings
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


def test_composition_is_certain_and_success_within_chance_is_not(tmp_path: Path) -> None:
    """What was in the batches is told as it is; of success one seed decides only what is far beyond chance."""
    close = found(tmp_path / "close", {"vanilla": [10, 55, 76], "divopd": [10, 62, 74]})
    assert close["fewer rollouts never selected"] is True
    assert close["fewer dead rows"] is True
    for what in ("higher peak", "higher mean of the last five", "higher area under the curve"):
        assert next(holds for told, holds in close.items() if told.startswith(what)) is None
    better = found(tmp_path / "better", {"vanilla": [10, 20, 44], "divopd": [10, 41, 60]})
    assert better["higher peak of the success rate"] is True
    worse = found(tmp_path / "worse", {"vanilla": [10, 20, 44], "divopd": [10, 20, 29]})
    assert worse["higher peak of the success rate"] is False


def test_cost_is_told_for_several_targets_and_never_decided_by_one_seed(tmp_path: Path) -> None:
    """Of 50, 60 and 70 %, not of vanilla's own peak, which only vanilla reaches for sure."""
    runs = {
        method: read_run(make_run(tmp_path / method, method=method, rates=rates), name=method)
        for method, rates in {"vanilla": [10, 55, 66], "divopd": [10, 62, 64]}.items()
    }
    told = {one.what: one for one in findings(compare_runs(list(runs.values())), runs) if "trained tokens" in one.what}
    assert list(told) == [f"fewer trained tokens to {target} %" for target in (50, 60, 70)]
    assert [one.holds for one in told.values()] == [None, None, None]
    assert told["fewer trained tokens to 60 %"].divopd.endswith("at update 3")
    assert told["fewer trained tokens to 60 %"].vanilla.endswith("at update 6")
    missed = told["fewer trained tokens to 70 %"]
    assert (missed.vanilla, missed.divopd) == ("not reached", "not reached")


def test_the_demo_ends_with_what_one_seed_can_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs that are finished are only compared: the tables, and in the end the sentence about one seed."""
    runs = {
        method: read_run(make_run(tmp_path / method, method=method, rates=[10, 55, 66]), name=method)
        for method in METHODS
    }
    print_findings(findings(compare_runs(list(runs.values())), runs))
    out = " ".join(capsys.readouterr().out.split())
    assert "one seed cannot tell" in out
    assert "One seed cannot decide" in out.partition("higher peak")[2]
    assert "5 to 7 points" in out


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
    assert "One seed cannot decide" in done.stdout
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    assert (tmp_path / "report.html").stat().st_size < 5e6
