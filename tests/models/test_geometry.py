"""The gradients that the geometry audit compares: means, the oracle, its ratio to the best rule, on random pools."""

import json
from importlib.resources import files
from itertools import combinations
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="for want of the extra train")

from divopd.audits.geometry import (  # noqa: E402
    BY_DISAGREEMENT,
    LINEUP,
    ORACLE,
    Alignment,
    GeometryAudit,
    UpdateGeometry,
    expected_base,
    oracle,
    oracle_ratio,
    rollout_mean,
)
from divopd.composers.composer import Candidate  # noqa: E402
from divopd.methods import make_composer  # noqa: E402

if TYPE_CHECKING:
    from torch import Tensor

CLOSE = {"rtol": 0, "atol": 1e-12}
lengths = st.lists(st.integers(1, 6), min_size=1, max_size=5)
seeds = st.integers(0, 2**31)


def pool_of(turns: list[int], seed: int) -> tuple[list[Candidate], "Tensor"]:
    """Rollouts of so many valid turns, with a random disagreement and a random gradient for each turn."""
    random = torch.Generator().manual_seed(seed)
    scores = torch.randn(sum(turns), generator=random, dtype=torch.float64).tolist()
    keys = [(f"r{number}", turn) for number, size in enumerate(turns) for turn in range(size)]
    valid = [Candidate(r, turn, r, 0, 0, None, score, 5, 2) for (r, turn), score in zip(keys, scores, strict=True)]
    return valid, torch.randn(len(valid), 4, generator=random, dtype=torch.float64)


@given(lengths, seeds)
def test_the_rollout_mean_gives_every_rollout_the_same_weight(turns: list[int], seed: int) -> None:
    """It is the mean of the rollouts' means; among rollouts of one length it is the mean over turns."""
    valid, gradients = pool_of(turns, seed)
    means = [part.mean(0) for part in gradients.split(turns)]
    torch.testing.assert_close(rollout_mean(valid, gradients), torch.stack(means).mean(0), **CLOSE)
    alike, gradients = pool_of([turns[0]] * len(turns), seed)
    torch.testing.assert_close(rollout_mean(alike, gradients), gradients.mean(0), **CLOSE)


@given(lengths, st.integers(1, 4), seeds)
def test_coverage_lies_between_the_two_pool_gradients(turns: list[int], cap: int, seed: int) -> None:
    """Corollary cor:cover: k turns of every rollout make the rollout mean of the pool, all turns that over turns."""
    valid, gradients = pool_of([max(size, cap) for size in turns], seed)
    capped = make_composer("divopd", batch_size=cap * len(turns), cap=cap).decide(valid, update=0).selected
    torch.testing.assert_close(expected_base(valid, capped, gradients), rollout_mean(valid, gradients), **CLOSE)
    whole = make_composer("divopd", batch_size=len(valid), cap=cap).decide(valid, update=0).selected
    torch.testing.assert_close(expected_base(valid, whole, gradients), gradients.mean(0), **CLOSE)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(1, 6), seeds)
def test_no_selection_projects_further_than_the_oracle(turns: list[int], size: int, seed: int) -> None:
    """Against either pool gradient, over all selections of as many turns; the oracle itself is one of them."""
    valid, gradients = pool_of(turns, seed)
    for center in (gradients.mean(0), rollout_mean(valid, gradients)):
        best = oracle(center, gradients, size=size)
        assert len(best) == min(size, len(valid))
        all_of = [gradients[list(rows)].mean(0) @ center for rows in combinations(range(len(valid)), len(best))]
        assert float(best.mean(0) @ center) == pytest.approx(max(map(float, all_of)), abs=1e-12)


def test_the_ratio_of_the_oracle_is_the_papers() -> None:
    """From the rounded rows of tab:geometry: 1.3 to 2.1 times the best s(u) rule of each environment, the text says."""
    table = json.loads(files("divopd.experiments").joinpath("paper_tables.json").read_text(encoding="utf-8"))
    rows = table["geometry"]["records"]
    ratios = []
    for environment in ("alfworld", "scienceworld", "webshop"):
        projections = {row["method"]: row["projection"] for row in rows if row["environment"] == environment}
        ratios.append(oracle_ratio(projections | {ORACLE: projections["sketch-oracle"]}))
    assert [round(ratio, 2) for ratio in ratios] == [1.34, 1.61, 2.05]


def test_the_ratio_is_of_means_and_to_rules_that_look_at_disagreement() -> None:
    """Arrival order may project further by chance and is no rule by s(u); the best is the best on average."""
    first = _update(dict.fromkeys((*LINEUP, ORACLE), 1.0) | {"divopd": 3.0, "arrival order": 9.0, ORACLE: 4.0})
    second = _update(dict.fromkeys((*LINEUP, ORACLE), 1.0) | {"top-b": 2.0, ORACLE: 6.0})
    assert GeometryAudit(4, (first, second)).oracle_ratio == pytest.approx(5 / 2)
    assert set(BY_DISAGREEMENT) < set(LINEUP)


def test_pairs_that_change_places_are_counted() -> None:
    """Two composers whose order is another against the rollout mean; equal ones are no pair that changes."""
    turns = {name: float(place) for place, name in enumerate(LINEUP)} | {ORACLE: 9.0}
    rollouts = turns | {"arrival order": 1.5, "top-b": 4.0}
    assert GeometryAudit(4, (_update(turns, rollouts),)).swapped_pairs == 1
    assert GeometryAudit(4, (_update(turns),)).swapped_pairs == 0


def _update(projections: dict[str, float], rollout: dict[str, float] | None = None) -> UpdateGeometry:
    sides = [{n: Alignment(p, 1.0, None) for n, p in side.items()} for side in (projections, rollout or projections)]
    return UpdateGeometry(0, 8, *sides, dropped_turns=0.5, dropped_norm=0.5)
