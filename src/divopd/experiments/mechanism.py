"""Figures that help to explain a difference, or that there is none: what the learner saw, success by kind of task."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from divopd.experiments.arms import CORE, SETTINGS
from divopd.experiments.results import Result, SettingResults
from divopd.experiments.sheet import Sheet

LAST = 5  # evaluations


def sheets(results: SettingResults, data: dict[str, Any], *, budget: int) -> list[Sheet]:
    """Two tables over the preregistered arms, means over seeds. Descriptions, no tests."""
    arms = {arm: list(runs.values()) for arm in CORE if (runs := results.of(arm))}
    return [_learner_sheet(results, arms, data, budget=budget), _kind_sheet(results, arms, data)]


def _learner_sheet(
    results: SettingResults, arms: dict[str, list[Result]], data: dict[str, Any], *, budget: int
) -> Sheet:
    rows: list[list[str]] = []
    for arm, runs in arms.items():
        found = {
            "kl_per_token": _mean(runs, "kl_per_token", first=budget),
            "gradient_norm": _mean(runs, "gradient_norm", first=budget),
            "clipped": fmean(_clipped(one) for one in runs),
            "tokens": _mean(runs, "tokens"),
            "dead_share": _mean(runs, "dead_share"),
        }
        data[arm] = found
        shown = [f"{found['kl_per_token']:.2f}", f"{found['gradient_norm']:.1f}", f"{found['clipped']:.0%}"]
        rows.append([arm, *shown, f"{found['tokens']:.0f}", f"{found['dead_share']:.1%}"])
    heads = ["method", "KL/token", "gradient\nnorm", "clipped\nupdates", "tokens/\nupdate", "dead\nrows"]
    note = (
        f"The first two: means of the first {budget} updates; the others: of all. Clipped: the norm is above the limit."
    )
    return Sheet(f"{SETTINGS[results.name].title}: what the learner saw", heads, rows, notes=[note])


def _mean(runs: Sequence[Result], column: str, *, first: int | None = None) -> float:
    return fmean(fmean(one.column(column)[:first]) for one in runs)


def _clipped(run: Result) -> float:
    limit, norms = run.stored["config"]["learner"]["max_grad_norm"], run.column("gradient_norm")
    return sum(norm > limit for norm in norms) / len(norms)


def _kind_sheet(results: SettingResults, arms: dict[str, list[Result]], data: dict[str, Any]) -> Sheet:
    kinds = sorted({kind for runs in arms.values() for one in runs for kind in _by_kind(one)})
    for arm, runs in arms.items():
        data[arm]["by_kind"] = {kind: fmean(_by_kind(one)[kind] for one in runs) for kind in kinds}
    rows = [[kind.replace("_", " "), *(f"{data[arm]['by_kind'][kind]:.1f}" for arm in arms)] for kind in kinds]
    title = f"{SETTINGS[results.name].title}: final-5 success by kind of task, in %"
    return Sheet(title, ["kind of task", *arms], rows)


def _by_kind(run: Result) -> dict[str, float]:
    last = [one["by_kind"] for one in run.stored["evaluations"][-LAST:]]
    return {kind: fmean(one[kind] for one in last) for kind in last[0]}
