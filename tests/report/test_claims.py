"""The table of claims: how verdicts are made, what the paper has, and that docs/claims.md is what the results say."""

import json
import re
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from statistics import fmean
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pydantic", reason="for want of the extra train")

from divopd.cli import main
from divopd.experiments.arms import ARMS, SETTINGS
from divopd.experiments.claims import Judged, claims_file, judge_all, paper_of
from divopd.experiments.claims_page import missing_cell
from divopd.experiments.measuring import Claim, claim_of
from divopd.experiments.paper import gather, make_plan
from divopd.experiments.paper_values import paper_tables
from divopd.experiments.verdicts import (
    VERDICTS,
    Direction,
    Range,
    Size,
    Verdict,
    count_of_settings,
    direction_of,
    level_of,
    mean_over_settings,
    ratio_over_settings,
    size_of,
    spread_of,
    verdict_of,
    worst,
)
from divopd.experiments.wanted import Places
from divopd.report.seeds import Interval, interval_of
from paper_results import CONFIGS, store_result, wanted_run

DOCS = Path(__file__).parents[2] / "docs"
CLAIMS = {line["id"]: claim_of(line) for line in claims_file()["claims"]}
VALUES = st.floats(min_value=-100, max_value=100, allow_nan=False)
BY_SETTING = st.dictionaries(st.sampled_from("abc"), st.lists(VALUES, min_size=2, max_size=6), min_size=1)


def judged_by(out: Path) -> dict[str, Judged]:
    """All claims, by the results of vanilla and divopd in a folder."""
    plan = make_plan(Places(CONFIGS, out / "runs", out), settings=[], seeds=None, overrides=[])
    return {one.claim.id: one for one in judge_all(gather(plan, ["divopd"])).judged}


# ── means over settings ───────────────────────────────────────────────────────────────────────────────────────────


@given(BY_SETTING)
def test_settings_count_equally(found: Mapping[str, list[float]]) -> None:
    """The mean is that of the settings' means, however many seeds each has; its interval is around it."""
    interval = mean_over_settings(found)
    assert interval is not None
    assert interval.mean == pytest.approx(fmean(map(fmean, found.values())))
    again = mean_over_settings({name: values * (place + 1) for place, (name, values) in enumerate(found.items())})
    assert again is not None
    assert again.mean == pytest.approx(interval.mean, abs=1e-9)
    assert interval.low <= interval.mean <= interval.high


@given(st.lists(VALUES, min_size=2, max_size=8))
def test_one_setting_has_the_interval_of_its_seeds(values: list[float]) -> None:
    """With one setting it is Student's interval over seeds."""
    interval, plain = mean_over_settings({"a": values}), interval_of(values)
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((plain.low, plain.high), abs=1e-6)


def test_the_interval_over_settings_counted_by_hand() -> None:
    """Two settings of two and three seeds: variances of the means 1 and 4/3, 2.9 degrees of freedom, so 2."""
    interval = mean_over_settings({"a": [0, 2], "b": [1, 3, 5]})
    assert interval is not None
    half = 4.302653 * (7 / 3) ** 0.5 / 2
    assert (interval.mean, interval.low, interval.high) == pytest.approx((2, 2 - half, 2 + half))
    assert interval.count == 5


def test_a_setting_with_one_seed_leaves_no_limits() -> None:
    """Its mean counts, but nothing is known about its spread."""
    assert mean_over_settings({"a": [1, 2, 3], "b": [4]}) == Interval(3, -inf, inf, 4)
    assert mean_over_settings({"a": []}) is None


@given(st.dictionaries(st.sampled_from("abc"), st.lists(st.floats(0.1, 10), min_size=2, max_size=5), min_size=1))
def test_ratios_are_averaged_geometrically(found: Mapping[str, list[float]]) -> None:
    """Twice as fast and half as fast cancel: the mean of the inverse ratios is the inverse of the mean."""
    forth = ratio_over_settings(found)
    back = ratio_over_settings({name: [1 / value for value in values] for name, values in found.items()})
    assert forth is not None
    assert back is not None
    assert back.mean == pytest.approx(1 / forth.mean)
    assert (back.low, back.high) == pytest.approx((1 / forth.high, 1 / forth.low))


def test_a_geometric_mean_over_settings_by_hand() -> None:
    """Four seeds at 4 and two at 1: 2, not the 2.5 of settings' arithmetic mean nor the 2.5198 of all seeds."""
    found = ratio_over_settings({"a": [4, 4, 4, 4], "b": [1, 1]})
    assert found is not None
    assert found.mean == pytest.approx(2)


# ── direction, size, verdict ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("low", "high", "null", "side", "direction"),
    [
        (0.1, 2.0, 0.0, 1, "yes"),
        (-2.0, -0.1, 0.0, 1, "no"),
        (-2.0, -0.1, 0.0, -1, "yes"),
        (0.1, 2.0, 0.0, -1, "no"),
        (0.0, 2.0, 0.0, 1, "open"),
        (0.97, 1.21, 1.0, 1, "open"),
        (0.59, 1.26, 1.0, -1, "open"),
        (1.01, 1.21, 1.0, 1, "yes"),
    ],
)
def test_a_direction_needs_an_interval_on_one_side(
    low: float, high: float, null: float, side: int, direction: Direction
) -> None:
    """Yes or no only if no effect is excluded."""
    assert direction_of(Interval((low + high) / 2, low, high, 5), null=null, side=side) == direction


@pytest.mark.parametrize(
    ("mean", "low", "high", "paper", "side", "size"),
    [
        (1.54, 1.2, 1.9, Range(1.33, 1.73), 1, "as in the paper"),  # the mean is inside
        (1.3, 1.2, 1.9, Range(1.33, 1.73), 1, "as in the paper"),  # the interval covers it
        (1.3, 1.2, 1.5, Range(1.33, 1.73), 1, "open"),
        (1.07, 1.03, 1.11, Range(1.33, 1.73), 1, "smaller"),
        (2.0, 1.9, 2.1, Range(1.33, 1.73), 1, "larger"),
        (-0.21, -0.23, -0.18, Range(-0.516, -0.382), -1, "smaller"),  # nearer to no effect
        (-0.6, -0.7, -0.55, Range(-0.516, -0.382), -1, "larger"),
        (7.0, 6.0, 8.0, Range(7.1, 7.1), 1, "as in the paper"),  # a single figure is covered
        (5.0, 4.0, 6.0, Range(7.1, 7.1), 1, "smaller"),
    ],
)
def test_sizes(mean: float, low: float, high: float, paper: Range, side: int, size: Size) -> None:
    """Against the paper's range or figure."""
    assert size_of(Interval(mean, low, high, 5), paper, side=side) == size


@given(VALUES, st.floats(0, 50), VALUES, st.floats(0, 50))
def test_a_mirrored_claim_has_the_mirrored_verdict(mean: float, half: float, low: float, width: float) -> None:
    """A claim of less is judged as the claim of more about the values with their signs turned."""
    ours, paper = Interval(mean, mean - half, mean + half, 5), Range(low, low + width)
    turned, other = Interval(-mean, -mean - half, -mean + half, 5), Range(-low - width, -low)
    assert direction_of(ours, null=0.0, side=1) == direction_of(turned, null=0.0, side=-1)
    assert size_of(ours, paper, side=1) == size_of(turned, other, side=-1)


@pytest.mark.parametrize(
    ("low", "high", "size"),
    [
        (4.0, 8.0, "as in the paper"),
        (3.0, 5.0, "open"),
        (2.9, 3.6, "smaller"),
        (8.4, 9.0, "larger"),
        (3.0, 9.0, "open"),
    ],
)
def test_a_level_must_lie_wholly_inside(low: float, high: float, size: Size) -> None:
    """A level has no direction that could speak for it, so meeting the paper's range is not enough."""
    assert level_of(Interval((low + high) / 2, low, high, 3), Range(3.9, 8.3)) == size


def test_two_seeds_decide_nothing() -> None:
    """Whatever their interval is."""
    sure = Interval(5, 4.9, 5.1, 2)
    assert direction_of(sure, null=0.0, side=1) == "open"
    assert size_of(sure, Range(4, 6), side=1) == "open"
    assert level_of(sure, Range(4, 6)) == "open"


TABLE: dict[tuple[Direction, Size], Verdict] = {
    ("yes", "as in the paper"): "holds",
    ("yes", "smaller"): "direction only",
    ("yes", "larger"): "direction only",
    ("yes", "open"): "direction only",
    ("yes", "–"): "holds",
    ("no", "as in the paper"): "does not hold",
    ("no", "smaller"): "does not hold",
    ("no", "larger"): "does not hold",
    ("no", "open"): "does not hold",
    ("no", "–"): "does not hold",
    ("open", "as in the paper"): "not decided",
    ("open", "smaller"): "does not hold",
    ("open", "larger"): "does not hold",
    ("open", "open"): "not decided",
    ("open", "–"): "not decided",
    ("–", "as in the paper"): "holds",
    ("–", "smaller"): "does not hold",
    ("–", "larger"): "does not hold",
    ("–", "open"): "not decided",
    ("–", "–"): "not decided",
}


def test_the_table_of_verdicts() -> None:
    """Every pair of direction and size."""
    pairs = [(direction, size) for direction in get_args(Direction) for size in get_args(Size)]
    assert {pair: verdict_of(*pair) for pair in pairs} == TABLE


def test_a_claim_about_every_setting_has_the_worst_verdict() -> None:
    """One setting in which it does not hold suffices."""
    assert worst(["holds", "does not hold", "not decided"]) == "does not hold"
    assert worst(["holds", "direction only", "not decided"]) == "not decided"
    assert worst(["holds", "direction only"]) == "direction only"
    assert worst(["holds", "holds"]) == "holds"


@pytest.mark.parametrize(
    ("directions", "wins", "verdict"),
    [
        (["yes", "yes", "yes"], 6, "holds"),
        (["yes", "yes", "open"], 6, "not decided"),
        (["open", "open", "open"], 5, "not decided"),
        (["yes", "open", "no"], 6, "does not hold"),
        (["yes", "yes", "no"], 4, "holds"),
        (["open", "no", "no"], 3, "does not hold"),
    ],
)
def test_settings_that_improve(directions: Sequence[Direction], wins: int, verdict: Verdict) -> None:
    """k of the paper's six settings: the same share of ours, whatever the open ones are."""
    assert count_of_settings(directions, wins=wins, of=6) == verdict


@pytest.mark.parametrize(
    ("spread", "widest", "size"), [(8, 2, "as in the paper"), (2, 1, "smaller"), (8, 9, "open"), (2, 5, "open")]
)
def test_spreads(spread: float, widest: float, size: Size) -> None:
    """A spread counts only beyond the widest interval among its means."""
    assert spread_of(spread, widest=widest, paper=7.9) == size


# ── from results ──────────────────────────────────────────────────────────────────────────────────────────────────


def store_pairs(out: Path, gaps: Mapping[str, Sequence[float]], *, evaluations: int = 3) -> None:
    """vanilla at 50 %, and divopd above it by these gaps, seed by seed."""
    for setting, values in gaps.items():
        for seed, gap in enumerate(values):
            rest = [50.0] * (evaluations - 2)
            store_result(wanted_run(out, "vanilla", seed, setting=setting), [0, 50, *rest])
            store_result(
                wanted_run(out, "divopd", seed, setting=setting), [0, *(50 + gap for _ in range(len(rest) + 1))]
            )


@pytest.mark.parametrize(
    ("gaps", "verdict"),
    [
        ((6.0, 7.0, 8.0), "holds"),
        ((2.0, 2.1, 2.2), "direction only"),  # above 0, short of the paper's 7.1
        ((-6.0, -7.0, -8.0), "does not hold"),
        ((0.5, -0.5, 0.1), "does not hold"),  # contains 0 and ends short of the paper's
        ((30.0, -20.0, 5.0), "not decided"),
        ((7.0, 7.1), "not decided"),  # too few
    ],
)
def test_a_mean_over_settings_is_judged_by_its_interval(
    tmp_path: Path, gaps: tuple[float, ...], verdict: Verdict
) -> None:
    """Claim A1 (mean peak of divopd above vanilla's by 7.1 points) with made-up paired seeds in all settings."""
    store_pairs(tmp_path, dict.fromkeys(SETTINGS, gaps))
    assert judged_by(tmp_path)["A1"].verdict == verdict


def test_seeds_of_a_setting_are_averaged_first(tmp_path: Path) -> None:
    """Five seeds in one setting, three in the others: the mean of three means, and each setting has its own row."""
    store_pairs(
        tmp_path, {"default": [10, 10, 10, 10, 10], "webshop-small": [1, 1, 1], "scienceworld-short": [1, 1, 1]}
    )
    found = judged_by(tmp_path)["A1"]
    assert found.interval is not None
    assert found.interval.mean == pytest.approx(4)  # not 56 / 11
    assert [row.interval.mean for row in found.by_setting.values()] == pytest.approx([10, 1, 1])


def test_a_range_is_judged_in_each_setting(tmp_path: Path) -> None:
    """Effective rollouts (I1: 3.9–8.3) of 2, 6 and 10: inside in the mean, but only in one setting."""
    from divopd.experiments.results import BATCH, OTHERS

    for setting, level in zip(SETTINGS, (2.0, 6.0, 10.0), strict=True):
        columns = {name: [level] * 20 for name in (*BATCH, *OTHERS, "gradient_norm")}
        for seed in range(3):
            store_result(wanted_run(tmp_path, "vanilla", seed, setting=setting), [0, 50], updates=columns)
    found = judged_by(tmp_path)["I1"]
    assert [row.size for row in found.by_setting.values()] == ["smaller", "as in the paper", "larger"]
    assert found.verdict == "does not hold"


def test_nothing_is_decided_before_all_settings_are_measured(tmp_path: Path) -> None:
    """A mean over settings and a count of them wait for the last one; without results, nothing is measured."""
    store_pairs(tmp_path, {"default": [7.0, 7.1, 7.2], "webshop-small": [7.0, 7.1, 7.2]})
    found = judged_by(tmp_path)
    assert (found["A1"].verdict, found["E1"].verdict) == ("not decided", "not decided")
    assert found["A1"].unrun == found["E1"].unrun == ("scienceworld-short",)
    assert missing_cell(found["A1"]) == "runs of ScienceWorld"
    assert judged_by(tmp_path / "empty")["A1"].verdict == "not measured here"


def test_the_seeds_that_would_decide(tmp_path: Path) -> None:
    """Gaps of 3 ± 4.8 in the mean of three settings, four seeds each: with six, 7.1 points lie outside, by hand."""
    store_pairs(tmp_path, dict.fromkeys(SETTINGS, (-6.0, 3.0, 12.0, 3.0)))
    found = judged_by(tmp_path)
    assert (found["A1"].verdict, found["A1"].seeds_to_decide) == ("not decided", 6)
    assert missing_cell(found["A1"]) == "about 6 seeds"
    assert found["E1"].seeds_to_decide == 62  # a setting by itself has 3 ± 11.7: above 0 with 4 · 3.9² seeds
    store_pairs(tmp_path, dict.fromkeys(SETTINGS, (6.0, 7.0, 8.0, 7.0)))
    assert missing_cell(judged_by(tmp_path)["A1"]) == ""


@pytest.mark.parametrize(("evaluations", "withdrawn"), [(7, True), (23, True), (24, False)])
def test_a_mean_of_five_needs_24_evaluations(tmp_path: Path, evaluations: int, withdrawn: bool) -> None:
    """With fewer, final-5 is not the end of training, and claims about it are withdrawn; those about peaks are not."""
    store_pairs(tmp_path, dict.fromkeys(SETTINGS, (6.0, 7.0, 8.0)), evaluations=evaluations)
    found = judged_by(tmp_path)
    assert (found["A2"].verdict == "withdrawn", "final-5" in found["A2"].notes) == (withdrawn, withdrawn)
    assert found["A2"].verdict == ("withdrawn" if withdrawn else "holds")
    assert found["A1"].verdict == "holds"


def test_reaching_every_target_means_all_seeds(tmp_path: Path) -> None:
    """A5 holds if every seed came to τ, and not if one did not."""
    store_pairs(tmp_path, dict.fromkeys(SETTINGS, (0.0, 0.0, 0.0)))
    assert judged_by(tmp_path)["A5"].verdict == "holds"
    store_result(wanted_run(tmp_path, "divopd", 1), [0, 10, 10])
    assert judged_by(tmp_path)["A5"].verdict == "does not hold"


def test_cached_scores_are_judged_at_the_largest_lag(tmp_path: Path) -> None:
    """U15 takes the stability audit two versions later, which a trained row may be, not one or five."""
    fields = ("spearman", "top_k_overlap", "probability_correlation", "probability_gap")
    lags = [{"lag": lag, **dict.fromkeys(fields, value)} for lag, value in ((1, 0.99), (2, 0.97), (5, 0.5))]
    for setting in SETTINGS:
        for seed in range(3):
            audits = {"stability": {"max_staleness": 2, "lags": lags}}
            store_result(wanted_run(tmp_path, "divopd", seed, setting=setting), [0, 50], audits=audits)
    found = judged_by(tmp_path)["U15"]
    assert [row.interval.mean for row in found.by_setting.values()] == pytest.approx([0.97] * 3)
    assert found.verdict == "holds"


def test_what_cannot_be_otherwise_is_no_evidence(tmp_path: Path) -> None:
    """U7 is 0 by construction, whatever the results are."""
    assert judged_by(tmp_path)["U7"].verdict == "by construction"


# ── what the paper has ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_every_claim_can_be_judged(claim: Claim) -> None:
    """It has a figure of the paper, arms and settings that exist, and notes that are there."""
    paper = paper_of(claim)
    assert paper.range.low <= paper.range.high
    assert claim.paper is not None or claim.kind == "share" or paper.values
    assert set(claim.arms) <= set(ARMS)
    assert set(claim.settings) <= set(SETTINGS)
    assert {*claim.withdrawn, *filter(None, [claim.unmeasured])} <= set(claims_file()["notes"])


@pytest.mark.parametrize(
    ("name", "figure", "digits"),
    [
        ("A3", 1.84, 2), ("A4", 1.87, 2), ("A7", 1.7, 1), ("F4", 1.14, 2), ("F3", 1.54, 2), ("A6", 3.8, 1),
        ("C1", 2.1, 1), ("C2", 3.4, 1), ("C5", 2.8, 1), ("C8", 1.4, 1), ("U2", -0.432, 3), ("L2", 2.9, 1),
        ("L3", 10.0, 1), ("L4", 1.9, 1), ("L5", 3.1, 1), ("L6", 0.4, 1), ("L7", 0.7, 1), ("L8", 0.9, 1),
        ("L1", -0.1, 1),
        ("U6", 0.045, 3), ("C13", 1.56, 2), ("C14", 0.0, 2), ("C15", -2.34, 2), ("L9", 2.27, 2), ("L10", 0.77, 2),
        ("L11", 0.55, 2),
    ],
)  # fmt: skip
def test_figures_of_the_papers_text_follow_from_its_tables(name: str, figure: float, digits: int) -> None:
    """Means over its settings, geometric for ratios, as the paper states them."""
    assert round(paper_of(CLAIMS[name]).figure, digits) == figure


@pytest.mark.parametrize(
    ("name", "low", "high", "digits"),
    [
        ("I1", 3.9, 8.3, 1), ("I2", 0.24, 0.40, 2), ("I3", 0.49, 0.59, 2), ("U1", 0.07, 0.14, 2), ("C3", 1.4, 4.3, 1),
        ("C4", 1.7, 5.6, 1), ("U2", -0.516, -0.382, 3), ("F3", 1.33, 1.73, 2), ("F5", 0.83, 0.99, 2),
        ("I7", 11.8, 15.0, 1),
        ("I6", 1.8, 3.5, 1), ("I8", 1.9, 3.5, 1), ("I9", 0.10, 0.14, 2), ("F7", 1.42, 1.78, 2), ("U3", -0.52, -0.36, 2),
    ],
)  # fmt: skip
def test_ranges_of_the_papers_text_follow_from_its_tables(name: str, low: float, high: float, digits: int) -> None:
    """The smallest and the largest of its settings."""
    found = paper_of(CLAIMS[name]).range
    assert (round(found.low, digits), round(found.high, digits)) == (low, high)


def test_counts_of_settings_follow_from_its_tables() -> None:
    """How many of the six settings improve, where the tables have them."""
    for name in ("E1", "E2", "F1", "F2", "C7", "C9", "C11", "C12", "R1", "R2"):
        paper = paper_of(CLAIMS[name])
        null = 1 if CLAIMS[name].of.startswith("cost:") else 0
        assert (sum(value > null for value in paper.values.values()), len(paper.values)) == paper.range


def test_ranges_in_claims_are_those_of_the_tables() -> None:
    """A range written in a claim's sentence is the paper's range beside it."""
    for claim in CLAIMS.values():
        stated = re.search(r"(\d+\.?\d*)–(\d+\.?\d*)", claim.claim)
        if not stated or claim.id in ("U2", "S1"):  # they state vanilla's level, and what is above 1
            continue
        found, scale = paper_of(claim).range, 100 if claim.percent else 1
        for text, value in zip(stated.groups(), found, strict=True):
            digits = len(text.partition(".")[2])
            assert abs(float(text) - scale * value) <= 0.5 * 10**-digits + 1e-9, claim.id


def test_the_best_cap_varies_as_the_claim_says() -> None:
    """C16: 3 in two settings, 5 in two, 4 in one, 4 and 5 alike in one."""
    best: dict[str, tuple[int, ...]] = {}
    records = paper_tables()["cap_sweep"]["records"]
    for setting in {record["setting"] for record in records}:
        peaks = {record["cap"]: record["peak"] for record in records if record["setting"] == setting}
        best[setting] = tuple(cap for cap, peak in peaks.items() if peak == max(peaks.values()))
    assert sorted(best.values()) == [(3,), (3,), (4,), (4, 5), (5,), (5,)]


# ── the page ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_page_is_what_the_results_say(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """docs/claims.md and docs/claims.json, made again from docs/results, are the same."""
    (tmp_path / "results").symlink_to(DOCS / "results")
    assert main(["paper", "claims", "--from-results", "--configs", str(CONFIGS), "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    for name in ("claims.md", "claims.json"):
        made, kept = ((folder / name).read_text(encoding="utf-8") for folder in (tmp_path, DOCS))
        assert made == kept, f"docs/{name} is out of date: run `divopd paper claims --from-results`"


def test_no_claim_holds_that_its_row_does_not_show() -> None:
    """In the page, what holds has no open or opposite direction and the size of the paper, in every setting."""
    page = json.loads((DOCS / "claims.json").read_text(encoding="utf-8"))
    assert set(page["counts"]) == set(VERDICTS)
    assert sum(page["counts"].values()) == len(page["claims"]) == len(CLAIMS)
    for one in page["claims"]:
        if one["verdict"] == "holds":
            assert one["direction"] in ("yes", "–"), one["id"]
            assert one["size"] in ("as in the paper", "–"), one["id"]
            assert {row["verdict"] for row in one["by_setting"].values()} <= {"holds"}, one["id"]
        if one["verdict"] in ("withdrawn", "not measured here"):
            assert one["notes"], one["id"]
            assert (one["ours"], one["by_setting"], one["shown"]) == (None, {}, "–"), one["id"]


def test_the_access_control_is_empty_here() -> None:
    """What the page says of vanilla-wide: its stored runs are vanilla's, evaluation by evaluation."""
    plan = make_plan(Places(CONFIGS, DOCS / "runs", DOCS), settings=["default"], seeds=None, overrides=[])
    results = gather(plan, ["vanilla-wide"]).get("default")
    wide = results.of("vanilla-wide") if results else {}
    if not wide:
        pytest.skip("there are no stored runs of vanilla-wide")
    assert results is not None
    for seed, result in wide.items():
        assert result.run.curve == results.of("vanilla")[seed].run.curve
