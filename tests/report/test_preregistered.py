"""The analysis of the preregistration, on results whose answer is known."""

import random
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from divopd.experiments.arms import FIRST_SEED
from divopd.experiments.mechanism import sheets
from divopd.experiments.paper import gather, make_plan
from divopd.experiments.preregistered import (
    BUDGET,
    PRIMARY,
    area_differences,
    build,
    cost_to,
    early_area,
    spread_of,
    verdict_of,
)
from divopd.experiments.results import SettingResults
from divopd.experiments.wanted import Places
from divopd.report.seeds import Interval, seeds_to_decide, t_quantile
from paper_results import CONFIGS, store_result, wanted_run

SEEDS = range(6)


def stored(out: Path, rates: dict[str, list[list[float]]]) -> SettingResults:
    """Results of the arms, a curve of each seed, evaluated every five updates."""
    for arm, curves in rates.items():
        for seed, curve in zip(SEEDS, curves, strict=False):
            store_result(wanted_run(out, arm, seed), curve, tokens_per_update=100 if arm == "vanilla" else 50)
    plan = make_plan(Places(CONFIGS, out / "runs", out), settings=["default"], seeds=6, overrides=[])
    return gather(plan)["default"]


def lines(height: float, *, spread: float = 0.0) -> list[list[float]]:
    """Six straight lines from 0 to about a height at update 20."""
    draws = random.Random(0)
    ends = [height + draws.gauss(0, spread) for _ in SEEDS]
    return [[end * place / 4 for place in range(5)] for end in ends]


def test_the_area_counts_up_to_the_budget_only(tmp_path: Path) -> None:
    """A line from 0 to 40 at update 20 is at 2 · budget there, and its area is half of that."""
    results = stored(tmp_path, {"vanilla": lines(40)})
    one = results.of("vanilla")[FIRST_SEED]
    assert early_area(one, budget=BUDGET["default"]) == pytest.approx(BUDGET["default"])


def test_differences_are_within_seeds(tmp_path: Path) -> None:
    """Seeds differ by far more than the arms do, and it does not matter."""
    base = lines(40, spread=10)
    results = stored(tmp_path, {"vanilla": base, "divopd": [[rate + 4 for rate in curve] for curve in base]})
    assert area_differences(results, "divopd", "vanilla") == pytest.approx([4.0] * 6)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.1, 5, "supported"), (-1, 5, "neither"), (-3, 0.9, "refuted"), (-3, -1, "refuted"), (0.0, 1.5, "neither")],
)
def test_what_counts_as_support(low: float, high: float, verdict: str) -> None:
    assert verdict_of(Interval((low + high) / 2, low, high, 32)) == verdict


def test_primary_intervals_hold_for_all_three_at_once(tmp_path: Path) -> None:
    """They are wider than those of 95 % each; all tables name gate-only."""
    draws = random.Random(1)
    curves = {
        arm: [[rate + draws.gauss(0, 3) for rate in curve] for curve in lines(40)]
        for arm in ("vanilla", "gate-only", "divopd-base", "divopd")
    }
    made = build({"default": stored(tmp_path, curves)})
    primary = made.data["default"]["primary"]
    assert list(primary) == [f"{arm} - {base}" for arm, base in PRIMARY]
    for one in primary.values():
        assert one["simultaneous"]["low"] < one["nauc"]["low"] < one["nauc"]["high"] < one["simultaneous"]["high"]
    assert all("gate-only" in sheet.markdown() for sheet in made.sheets)
    made.draw(tmp_path / "forest.png")
    assert (tmp_path / "forest.png").stat().st_size > 5_000


def test_the_seeds_that_would_decide_do(tmp_path: Path) -> None:
    """So many pairs with the same mean and spread have an interval beside 0; a tenth fewer have not."""
    gaps = [1.0, -2.0, 3.0, 0.5, -1.0, 2.5]
    needed = seeds_to_decide(gaps)
    assert needed is not None

    def half(count: int) -> float:
        return t_quantile(count - 1) * stdev(gaps) / sqrt(count)

    assert half(needed) < fmean(gaps) <= half(int(0.9 * needed))
    assert seeds_to_decide([1.0, -1.0]) is None


def test_what_the_learner_saw_is_told_by_arm(tmp_path: Path) -> None:
    """Columns of the updates, in the mean: the made-up ones are 1, 2, 3, 1 …, so two of three norms are clipped."""
    results = stored(tmp_path, {arm: lines(40) for arm in ("vanilla", "gate-only", "divopd-base", "divopd")})
    data: dict[str, Any] = {}
    sheets(results, data, budget=3)
    assert list(data) == ["vanilla", "gate-only", "divopd-base", "divopd"]
    assert data["divopd"]["kl_per_token"] == pytest.approx(2.0)
    assert data["divopd"]["clipped"] == pytest.approx(13 / 20)


def test_cost_is_that_of_the_first_evaluation_at_the_target(tmp_path: Path) -> None:
    results = stored(tmp_path, {"vanilla": [[0, 10, 25, 20, 50]], "divopd": [[0, 31, 10, 10, 10]]})
    vanilla, ours = (results.of(arm)[FIRST_SEED] for arm in ("vanilla", "divopd"))
    assert [cost_to(vanilla, target, "trained_tokens") for target in (25, 35, 60)] == [1000, 2000, None]
    assert cost_to(ours, 25, "trained_tokens") == 250


def test_an_arm_whose_seeds_lie_closer_together_is_noticed(tmp_path: Path) -> None:
    draws = random.Random(2)
    wide, close = ([[40 + draws.gauss(0, sd)] * 5 for _ in SEEDS] for sd in (10, 0.5))
    results = stored(tmp_path, {"vanilla": wide, "divopd": close})
    spread = spread_of(results, "divopd", "vanilla")
    assert spread is not None
    assert spread.t > spread.limit
    assert spread.base == pytest.approx(stdev(curve[0] for curve in wide))
    same = spread_of(stored(tmp_path / "same", {"vanilla": wide, "divopd": wide[::-1]}), "divopd", "vanilla")
    assert same is not None
    assert same.t == pytest.approx(0, abs=1e-6)
