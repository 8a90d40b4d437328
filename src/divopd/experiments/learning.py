"""Items about whole runs: the main table, batch composition, fixed budgets, producer load, disagreement."""

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

from divopd.experiments.arms import BACKLOG, LOADS, MAIN, READERS, SETTINGS
from divopd.experiments.results import Result, SettingResults
from divopd.experiments.sheet import MISSING, Made, Sheet, as_json, cell, ratio_cell
from divopd.methods import BASELINE
from divopd.report.figures import colour_of
from divopd.report.paper_figures import Curve, Estimate, Panel, draw_bars, draw_learning, draw_load, draw_trends
from divopd.report.seeds import Interval, interval_of

Settings = Mapping[str, SettingResults]
CURRENCIES = {
    "trained_tokens": "tokens",
    "learner_s": "learner\ntime",
    "elapsed_s": "elapsed\ntime",
    "scored_tokens": "teacher\ntokens",
}
CURVES = ("vanilla", "gate-only", "divopd-base", "divopd", "divopd-r")
COMPOSITION = {
    "effective_rollouts": ("effective\nrollouts", 1, 1.0),
    "top1_share": ("top-1\nshare %", 1, 100.0),
    "turns_per_rollout": ("turns/\nrollout", 1, 1.0),
    "dead_share": ("dead\nrows %", 1, 100.0),
    "kl_per_token": ("KL/\ntoken", 3, 1.0),
    "tokens": ("tokens/\nupdate", 0, 1.0),
}
EMA = 0.12  # the paper's smoothing of cross-rollout disagreement


def present(settings: Settings, arms: Sequence[str]) -> dict[str, SettingResults]:
    """The settings that have a result of at least one of these arms."""
    return {name: one for name, one in settings.items() if any(one.of(arm) for arm in arms)}


def main_table(settings: Settings) -> Made:
    """Peak, final-5, nAUC and cost to τ of every method (Tables 1 and 7)."""
    sheets, data = [], {}
    for name, results in settings.items():
        arms = [arm for arm in MAIN if results.of(arm)]
        data[name] = {arm: _main_figures(results, arm) for arm in arms}
        rows = []
        for arm in arms:
            pairs = len(results.of(arm))
            ratios = (ratio_cell(results.mean(arm, f"ratio:{currency}"), pairs=pairs) for currency in CURRENCIES)
            measures = (cell(results.mean(arm, measure)) for measure in ("peak", "final_five", "nauc"))
            rows.append([arm, str(pairs), *measures, cell(results.mean(arm, "version_at_target"), 0), *ratios])
        headings = [
            "method",
            "seeds",
            "peak %",
            "final-5 %",
            f"nAUC@{results.budget} %",
            "updates\nto τ",
            *CURRENCIES.values(),
        ]
        sheets.append(Sheet(f"{SETTINGS[name].title}: τ = {results.target} %", headings, rows, notes=[NOTE]))
    shown = {
        "peak": ("peak success (%)", 1.0),
        "final_five": ("final-5 success (%)", 1.0),
        "ratio:trained_tokens": ("vanilla's tokens to τ / method's", 1.0),
    }
    return Made(sheets, data, partial(draw_bars, _bars(settings, shown), digits=(1, 1, 2)))


NOTHING = Interval(0.0, 0.0, 0.0, 0)
NOTE = (
    "Means over seeds ± half of the 95 % interval. Last four columns: vanilla's cost to τ by the method's, geometric "
    "mean over the paired seeds in which both came to τ [95 % interval]; above 1 favours the method. Time is virtual."
)


def _main_figures(results: SettingResults, arm: str) -> dict[str, Any]:
    measures = ("peak", "final_five", "best_five", "nauc", "version_at_target")
    ratios = {f"ratio:{currency}" for currency in CURRENCIES}
    return {
        "seeds": sorted(results.of(arm)),
        **{measure: as_json(results.mean(arm, measure)) for measure in (*measures, *sorted(ratios))},
    }


def composition(settings: Settings) -> Made:
    """How batches are composed in the last 40 % of training (Table 9, Figure 2)."""
    sheets, data = [], {}
    for name, results in settings.items():
        arms = [arm for arm in MAIN if results.of(arm)]
        rows = [
            [
                arm,
                *(
                    cell(results.mean(arm, f"late:{of}"), digits, scale=scale)
                    for of, (_, digits, scale) in COMPOSITION.items()
                ),
            ]
            for arm in arms
        ]
        data[name] = {arm: {of: as_json(results.mean(arm, f"late:{of}")) for of in COMPOSITION} for arm in arms}
        heads = [heading for heading, _, _ in COMPOSITION.values()]
        sheets.append(
            Sheet(SETTINGS[name].title, ["method", *heads], rows, notes=["Means over the last 40 % of updates."])
        )
    shown = {
        "late:effective_rollouts": ("effective rollouts per batch", 1.0),
        "late:top1_share": ("largest rollout (% of tokens)", 100.0),
        "late:dead_share": ("dead rows (%)", 100.0),
    }
    return Made(sheets, data, partial(draw_bars, _bars(settings, shown), digits=(1, 0, 1)))


def _bars(settings: Settings, shown: Mapping[str, tuple[str, float]]) -> dict[str, list[Panel]]:
    """By the title of a setting, a panel of its methods for every measure, whose axis and scale are `shown`."""

    def estimates(results: SettingResults, measure: str, scale: float) -> list[Estimate]:
        arms = [arm for arm in MAIN if results.of(arm)]
        return [Estimate(arm, _scaled(results.mean(arm, measure) or NOTHING, scale), colour_of(arm)) for arm in arms]

    return {
        SETTINGS[name].title: [
            Panel(axis, estimates(results, measure, scale)) for measure, (axis, scale) in shown.items()
        ]
        for name, results in settings.items()
    }


def _scaled(interval: Interval, scale: float) -> Interval:
    return Interval(scale * interval.mean, scale * interval.low, scale * interval.high, interval.count)


def fixed_budget(settings: Settings) -> Made:
    """Learning curves over a common number of updates, and nAUC (Figures 3 and 4)."""
    rows, data = [], {}
    panels: dict[str, dict[str, Curve]] = {}
    targets: dict[str, int] = {}
    for name, results in settings.items():
        title = SETTINGS[name].title
        panels[title] = {arm: mean_curve(results.of(arm)) for arm in CURVES if results.of(arm)}
        targets[title] = results.target
        for arm in (arm for arm in MAIN if results.of(arm)):
            gaps = results.differences(arm, BASELINE, "nauc") if arm != BASELINE else []
            difference = interval_of(gaps) if gaps else None
            data[f"{name}/{arm}"] = {"nauc": as_json(results.mean(arm, "nauc")), "minus_vanilla": as_json(difference)}
            rows.append([title, arm, cell(results.mean(arm, "nauc")), cell(difference, sign="+")])
    sheet = Sheet(
        "nAUC over the common update budget, in %", ["setting", "method", "nAUC", "minus vanilla"], rows, texts=2
    )
    return Made([sheet], data, partial(draw_learning, panels, targets=targets))


def mean_curve(results: Mapping[int, Result]) -> dict[float, Interval]:
    """Mean success rate over seeds at every version that all of them evaluated."""
    curves = [dict(one.run.curve) for one in results.values()]
    common = [version for version in curves[0] if all(version in curve for curve in curves)]
    return {version: interval_of([curve[version] for curve in curves]) for version in common}


def producer_load(settings: Settings) -> Made:
    """Readers under low, medium and high load, and with admission control in place of expiry (Table 2)."""
    levels = {**{f"{load} load": load for load in LOADS}, "": "high", "admission": "high, paused"}
    rows: list[list[str]] = []
    data: dict[str, Any] = {}
    results = next(iter(settings.values()))
    measures = {"final": 1, "nauc": 1, "stale_rows": 0, "arrival_per_drain": 2}
    for suffix, level in levels.items():
        for reader in READERS:
            arm = f"{reader}, {suffix}" if suffix else reader
            found = {of: results.mean(arm, of) if results.of(arm) else None for of in measures}
            data[arm] = {of: as_json(value) for of, value in found.items()}
            rows.append([level, reader, *(cell(found[of], digits) for of, digits in measures.items())])
    heads = ["load", "reader", "final %", f"nAUC@{results.budget} %", "stale\nrows", "arrival/\ndrain"]
    notes = [
        "High is the setting's own number of rollouts in flight, low an eighth and medium three eighths of it. Final: "
        f"the last evaluation. Paused: high load, but explorers pause while {BACKLOG} turns wait (admission control). "
        "Arrival/drain: turns put per second of the run, by turns read into the pool per second in which the learner "
        "did not wait."
    ]
    shown = {"final success (%)": "final", "stale rows": "stale_rows", "arrival / drain": "arrival_per_drain"}
    series = {
        title: {reader: [_mean_or_nothing(results, reader, suffix, of) for suffix in levels] for reader in READERS}
        for title, of in shown.items()
    }
    labels = [level.replace(", ", ",\n") for level in levels.values()]
    return Made(
        [Sheet(SETTINGS[results.name].title, heads, rows, texts=2, notes=notes)],
        data,
        partial(draw_load, labels, series),
    )


def _mean_or_nothing(results: SettingResults, reader: str, suffix: str, of: str) -> Interval:
    arm = f"{reader}, {suffix}" if suffix else reader
    return (results.mean(arm, of) if results.of(arm) else None) or NOTHING


def disagreement(settings: Settings) -> Made:
    """Standard deviation over a batch's rollouts of their summed disagreement, over training (Figure 6)."""
    rows, data = [], {}
    panels: dict[str, dict[str, Curve]] = {}
    for name, results in settings.items():
        arms = [arm for arm in ("vanilla", "divopd") if results.of(arm)]
        panels[SETTINGS[name].title] = {arm: _smoothed(results.of(arm)) for arm in arms}
        late = {arm: results.mean(arm, "late:disagreement_sd") for arm in arms}
        shares = lower_shares(results)
        data[name] = {**{arm: as_json(value) for arm, value in late.items()}, "lower_share": shares}
        share = f"{100 * fmean(shares):.0f} %" if shares else MISSING
        rows.append([SETTINGS[name].title, *(cell(late.get(arm), 2) for arm in ("vanilla", "divopd")), share])
    heads = ["setting", "vanilla", "divopd", "updates in which\ndivopd is lower"]
    sheet = Sheet("cross-rollout disagreement, mean of the last 40 % of updates (nats)", heads, rows)
    return Made([sheet], data, partial(draw_trends, panels, axis="s.d. over rollouts\nof disagreement (nats)"))


def lower_shares(results: SettingResults) -> list[float]:
    """By seed, the share of updates in which divopd's smoothed spread is below vanilla's."""
    shares = []
    for seed, run in results.of("divopd").items():
        if seed in results.of("vanilla"):
            pairs = list(zip(_ema(run), _ema(results.of("vanilla")[seed]), strict=False))
            shares.append(sum(ours < other for ours, other in pairs) / len(pairs))
    return shares


def _ema(result: Result) -> list[float]:
    smooth: list[float] = []
    for value in result.column("disagreement_sd"):
        smooth.append(value if not smooth else (1 - EMA) * smooth[-1] + EMA * value)
    return smooth


def _smoothed(results: Mapping[int, Result]) -> dict[float, Interval]:
    lines = [_ema(one) for one in results.values()]
    return {update: interval_of(values) for update, values in enumerate(zip(*lines, strict=False))}
