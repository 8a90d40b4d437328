"""The table of what was tried beside the preregistered comparisons."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

pytest.importorskip("pydantic", reason="for want of the extra train")

from divopd.experiments import explored
from divopd.experiments.arms import ARMS
from divopd.experiments.explored import build
from divopd.experiments.results import Result, SettingResults, load_result
from paper_results import store_result, wanted_run


def stored(out: Path, rates: Mapping[str, Sequence[Sequence[float]]], *, setting: str) -> SettingResults:
    """Rates of evaluations at updates 0, 5, 10 …, by arm and seed."""
    found: list[Result] = []
    for arm, seeds in rates.items():
        for seed, curve in enumerate(seeds):
            run = wanted_run(out, arm, seed, setting=setting)
            store_result(run, curve)
            result = load_result(run)
            assert result is not None
            found.append(result)
    return SettingResults(setting, found)


def test_differences_are_early_areas_of_the_same_seed(tmp_path: Path) -> None:
    """Eight points everywhere up to update 8; what comes later counts only in the mean of the last five."""
    curves = {
        "vanilla": [[0, 40, 40, 40, 40], [0, 40, 40, 40, 40], [0, 40, 40, 40, 40]],
        "top-b": [[8, 48, 48, 40, 40], [8, 48, 48, 90, 90], [8, 48, 48, 40, 40]],
        "divopd, k=3": [[0, 40, 40, 40, 40]],  # there is no divopd to set it against
    }
    made = build({"default": stored(tmp_path, curves, setting="default")})
    [row] = made.sheets[0].rows
    assert row[:4] == ["ALFWorld, small homes", "other methods", "top-b − vanilla", "3"]
    found = made.data["default"]["top-b − vanilla"]
    assert found["nauc"]["mean"] == pytest.approx(8)
    assert found["final_five"]["mean"] == pytest.approx((24 / 5 + 124 / 5 + 24 / 5) / 3)


def test_the_four_arms_are_explored_where_they_are_not_preregistered(tmp_path: Path) -> None:
    """WebShop's, over seven updates; the default setting's four have a table of their own."""
    curves = {"vanilla": [[0.0, 50.0, 50.0]] * 3, "gate-only": [[0.0, 50.0, 75.0]] * 3}
    shop = stored(tmp_path, curves, setting="webshop-small")
    homes = stored(tmp_path, curves, setting="default")
    made = build({"default": homes, "webshop-small": shop})
    assert [(row[0], row[2]) for row in made.sheets[0].rows] == [("WebShop, small shop", "gate-only − vanilla")]
    # from update 5 to 7 the difference grows from 0 to 10: 10 of 7 · 1 points of area
    assert made.data["webshop-small"]["gate-only − vanilla"]["nauc"]["mean"] == pytest.approx(10 / 7)


def test_every_arm_of_the_table_can_be_run() -> None:
    assert set(explored.ARMS) <= set(ARMS)
