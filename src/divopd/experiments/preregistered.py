"""The analysis of docs/preregistration.md: what is compared, over which updates, and what counts as support.

It was written before there was a result to analyse. Three primary comparisons of nAUC, with intervals that hold for all
three at once; everything else is secondary, with intervals of 95 % each.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import sqrt
from statistics import correlation, stdev
from typing import Any, Literal

from divopd.experiments import mechanism
from divopd.experiments.arms import CORE, SETTINGS
from divopd.experiments.results import Result, SettingResults
from divopd.experiments.sheet import Made, Sheet, as_json, cell, ratio_cell
from divopd.metrics import nauc
from divopd.report.figures import PALETTE
from divopd.report.paper_figures import Estimate, Panel, draw_forest
from divopd.report.seeds import Interval, interval_of, ratio_interval_of, seeds_to_decide, t_quantile

Settings = Mapping[str, SettingResults]
Verdict = Literal["supported", "refuted", "neither"]

BUDGET = {"default": 8}  # updates of nAUC: where vanilla came to 80 % of its plateau on tuning seeds
TARGETS = {"default": (25, 35)}  # success rates in percent to which costs are counted
PRIMARY = (("divopd", "vanilla"), ("divopd-base", "vanilla"), ("divopd-base", "gate-only"))
SECONDARY = (("divopd", "divopd-base"), ("gate-only", "vanilla"), ("divopd", "gate-only"))
TOGETHER = 1 - 0.05 / len(PRIMARY)  # coverage of each, so that all hold together with 95 %
EXTRA = (("divopd-r", "divopd"), ("divopd-adaptive", "divopd"))  # with fewer seeds
CURRENCIES = {"trained_tokens": "tokens", "learner_s": "learner time"}
LEVELS = {  # headings and scales
    "final_five": ("final-5 %", 1.0),
    "peak": ("peak %", 1.0),
    "never_selected": ("never\nused %", 100.0),
    "late:effective_rollouts": ("eff.\nrollouts", 1.0),
    "late:top1_share": ("top-1\nshare %", 100.0),
    "late:dead_share": ("dead\nrows %", 100.0),
}
WORTH = 1.0  # points of nAUC: a gain that is surely below this counts as refuted


def verdict_of(simultaneous: Interval) -> Verdict:
    """What the interval of a primary difference says about "it helps"."""
    if simultaneous.low > 0:
        return "supported"
    return "refuted" if simultaneous.high < WORTH else "neither"


def early_area(result: Result, *, budget: int) -> float:
    """nAUC up to the budget, in percent."""
    return nauc(result.run.curve, budget=budget)


def cost_to(result: Result, target: int, currency: str) -> float | None:
    """What the first evaluation at or above the target had cost; None if there is none."""
    for one in result.run.evaluations:
        if one.success_rate >= target:
            return getattr(one.costs, currency)
    return None


def paired(results: SettingResults, arm: str, base: str) -> list[tuple[Result, Result]]:
    """The results of both arms at the seeds that both have."""
    of, against = results.of(arm), results.of(base)
    return [(of[seed], against[seed]) for seed in sorted(of.keys() & against.keys())]


def area_differences(results: SettingResults, arm: str, base: str) -> list[float]:
    """nAUC of the arm minus that of its control, seed by seed."""
    budget = BUDGET[results.name]
    return [early_area(a, budget=budget) - early_area(b, budget=budget) for a, b in paired(results, arm, base)]


@dataclass(frozen=True)
class Spread:
    """How much an arm's nAUC differs between seeds, beside its control's; `t` above `limit`: they differ."""

    arm: float  # standard deviations, in points
    base: float
    t: float
    limit: float


def spread_of(results: SettingResults, arm: str, base: str) -> Spread | None:
    """Pitman's and Morgan's test of two paired variances: sums and differences of the pairs are uncorrelated."""
    budget, pairs = BUDGET[results.name], paired(results, arm, base)
    if len(pairs) < 4:
        return None
    of = [early_area(a, budget=budget) for a, _ in pairs]
    against = [early_area(b, budget=budget) for _, b in pairs]
    sums = [a + b for a, b in zip(of, against, strict=True)]
    gaps = [a - b for a, b in zip(of, against, strict=True)]
    if not stdev(sums) or not stdev(gaps):
        return None
    r, degrees = correlation(sums, gaps), len(pairs) - 2
    t = abs(r) * sqrt(degrees / max(1e-12, 1 - r * r))
    return Spread(stdev(of), stdev(against), t, t_quantile(degrees))


def build(settings: Settings) -> Made:
    """The tables of the preregistration, primary comparisons first."""
    known = {name: results for name, results in settings.items() if name in BUDGET}
    sheets: list[Sheet] = []
    data: dict[str, Any] = {}
    estimates: list[Estimate] = []
    for name, results in known.items():
        data[name] = {part: {} for part in ("levels", "primary", "secondary", "costs", "spread", "mechanism")}
        sheets += [
            _level_sheet(results, data[name]["levels"]),
            _primary_sheet(results, data[name]["primary"], estimates),
            _secondary_sheet(results, data[name]["secondary"], estimates),
            _cost_sheet(results, data[name]["costs"]),
            _spread_sheet(results, data[name]["spread"]),
            *mechanism.sheets(results, data[name]["mechanism"], budget=BUDGET[name]),
        ]
    panel = Panel("nAUC: difference (points)", estimates)
    return Made(sheets, data, partial(draw_forest, [panel]))


def _level_sheet(results: SettingResults, data: dict[str, Any]) -> Sheet:
    rows: list[list[str]] = []
    for arm in (*CORE, *(arm for arm, _ in EXTRA)):
        if not (runs := results.of(arm)):
            continue
        area = interval_of([early_area(one, budget=BUDGET[results.name]) for one in runs.values()])
        levels = {of: results.mean(arm, of) for of in LEVELS}
        data[arm] = {"seeds": sorted(runs), "nauc": as_json(area)} | {of: as_json(one) for of, one in levels.items()}
        cells = (cell(one, scale=LEVELS[of][1]) for of, one in levels.items())
        rows.append([arm, str(len(runs)), cell(area), *cells])
    heads = ["method", "seeds", f"nAUC@{BUDGET[results.name]} %", *(heading for heading, _ in LEVELS.values())]
    return Sheet(f"{SETTINGS[results.name].title}: the arms", heads, rows, notes=["Means ± half of the 95 % interval."])


def _primary_sheet(results: SettingResults, data: dict[str, Any], estimates: list[Estimate]) -> Sheet:
    rows: list[list[str]] = []
    for place, (arm, base) in enumerate(PRIMARY):
        if not (gaps := area_differences(results, arm, base)):
            continue
        own, all_three = interval_of(gaps), interval_of(gaps, coverage=TOGETHER)
        verdict = verdict_of(all_three)
        needed = seeds_to_decide(gaps, coverage=TOGETHER) if verdict == "neither" else None
        data[f"{arm} - {base}"] = {
            "nauc": as_json(own),
            "simultaneous": as_json(all_three),
            "verdict": verdict,
            "seeds_to_decide": needed,
        }
        limits = f"{all_three.low:+.1f} to {all_three.high:+.1f}"
        wanted = f"about {needed}" if needed else "–"
        rows.append([f"{arm} − {base}", str(len(gaps)), cell(own, sign="+"), limits, verdict, wanted])
        estimates.append(Estimate(f"{arm} − {base}", all_three, PALETTE[place], gaps))
    notes = [
        f"Paired by seed. Simultaneous: limits of {100 - 5 / len(PRIMARY):.1f} % each, so that all three hold together "
        f"with 95 %. Supported: above 0. Refuted: below {WORTH:g} point. Neither: everything else. Seeds: were mean "
        "and spread to stay as they are."
    ]
    heads = ["nAUC, in points", "pairs", "mean ± 95 %", "simultaneous", "it helps", "seeds that\nwould decide"]
    return Sheet(f"{SETTINGS[results.name].title}: primary comparisons", heads, rows, notes=notes)


def _secondary_sheet(results: SettingResults, data: dict[str, Any], estimates: list[Estimate]) -> Sheet:
    rows: list[list[str]] = []
    for arm, base in (*SECONDARY, *EXTRA, *PRIMARY):
        gaps = area_differences(results, arm, base) if results.of(arm) and results.of(base) else []
        if not gaps:
            continue
        area, final = interval_of(gaps), interval_of(results.differences(arm, base, "final_five"))
        data[f"{arm} - {base}"] = {"nauc": as_json(area), "final_five": as_json(final)}
        rows.append([f"{arm} − {base}", str(len(gaps)), cell(area, sign="+"), cell(final, sign="+")])
        if (arm, base) not in PRIMARY:
            estimates.append(Estimate(f"{arm} − {base} (secondary)", area, PALETTE[-1], gaps))
    heads = ["in points", "pairs", f"nAUC@{BUDGET[results.name]}", "final-5"]
    return Sheet(
        f"{SETTINGS[results.name].title}: secondary comparisons", heads, rows, notes=["± 95 %, each by itself."]
    )


def _cost_sheet(results: SettingResults, data: dict[str, Any]) -> Sheet:
    rows: list[list[str]] = []
    columns = [(target, currency) for target in TARGETS[results.name] for currency in CURRENCIES]
    for arm, base in (*PRIMARY, *SECONDARY, *EXTRA):
        pairs = paired(results, arm, base)
        if not pairs:
            continue
        found: dict[str, Any] = {}
        cells: list[str] = []
        for target, currency in columns:
            costs = [(cost_to(a, target, currency), cost_to(b, target, currency)) for a, b in pairs]
            ratios = [before / after for after, before in costs if after and before]
            ratio = ratio_interval_of(ratios) if ratios else None
            found[f"{currency} to {target}"] = as_json(ratio)
            cells.append(ratio_cell(ratio, pairs=len(pairs)))
        data[f"{arm} - {base}"] = found
        rows.append([f"{arm} for {base}", *cells])
    heads = ["cost ratio", *(f"{CURRENCIES[currency]}\nto {target} %" for target, currency in columns)]
    notes = ["The control's cost by the arm's, geometric mean of pairs that both came there [95 %]; above 1: cheaper."]
    return Sheet(f"{SETTINGS[results.name].title}: cost to a success rate", heads, rows, notes=notes)


def _spread_sheet(results: SettingResults, data: dict[str, Any]) -> Sheet:
    rows: list[list[str]] = []
    for arm, base in (*PRIMARY, *SECONDARY):
        if (one := spread_of(results, arm, base)) is None:
            continue
        data[f"{arm} / {base}"] = {"arm": one.arm, "base": one.base, "t": one.t, "limit": one.limit}
        differs = "yes" if one.t > one.limit else "not shown"
        rows.append([f"{arm} / {base}", f"{one.arm:.1f} / {one.base:.1f}", f"{one.t:.2f} ({one.limit:.2f})", differs])
    heads = ["between seeds", "sd of nAUC,\npoints", "t (limit)", "differ"]
    return Sheet(
        f"{SETTINGS[results.name].title}: spread between seeds", heads, rows, notes=["Pitman-Morgan test, 95 %."]
    )
