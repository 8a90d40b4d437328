"""Items that change one thing: the cap, candidate access, focus, the staleness limit, recovery."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from divopd.experiments.arms import CAPS, SETTINGS
from divopd.experiments.results import SettingResults
from divopd.experiments.sheet import Made, Sheet, as_json, cell, ratio_cell
from divopd.report.figures import PALETTE
from divopd.report.paper_figures import Estimate, Panel, draw_forest, draw_sweep
from divopd.report.seeds import Interval, interval_of, ratio_interval_of

Settings = Mapping[str, SettingResults]
TITLES = {"peak": "peak %", "final_five": "final-5 %", "best_five": "best-5 %", "final": "final %", "nauc": "nAUC %"}


def control(
    settings: Settings, *, arm: str, base: str, measures: Sequence[str], costs: Sequence[str] = (), note: str = ""
) -> Made:
    """An arm beside its control, seed by seed: success rates, and cost to τ where it is asked for."""
    rows: list[list[str]] = []
    data: dict[str, Any] = {}
    panels = {measure: [] for measure in (*measures, *costs)}
    for place, (name, results) in enumerate(settings.items()):
        title = SETTINGS[name].title
        data[name] = {"seeds": sorted(set(results.of(arm)) & set(results.of(base)))}
        for measure in measures:
            gaps = results.differences(arm, base, measure)
            difference = interval_of(gaps) if gaps else None
            data[name][measure] = as_json(difference)
            sides = (cell(results.mean(side, measure)) if results.of(side) else "–" for side in (arm, base))
            rows.append([title, TITLES[measure], *sides, cell(difference, sign="+")])
            panels[measure].append(Estimate(title, difference or NOTHING, PALETTE[place], gaps))
        for currency in costs:
            ratios = results.cost_quotients(arm, base, currency) if results.target else []
            ratio = ratio_interval_of(ratios) if ratios else None
            data[name][currency] = as_json(ratio)
            shown = ratio_cell(ratio, pairs=len(data[name]["seeds"]))
            rows.append([title, f"{COSTS[currency]} to τ", "", "", shown])
            panels[currency].append(Estimate(title, ratio or ONE, PALETTE[place], ratios))
    heads = ["setting", "measure", arm, base, "difference, or\ncost ratio"]
    sheet = Sheet(f"{arm} against {base}, paired by seed", heads, rows, texts=2, notes=[NOTE, *filter(None, [note])])
    drawn = [Panel(f"{TITLES[m].removesuffix(' %')}: difference (points)", panels[m]) for m in measures]
    drawn += [Panel(f"{COSTS[c]} to τ: ratio", panels[c], null=1.0) for c in costs]
    return Made([sheet], data, partial(draw_forest, drawn))


NOTHING, ONE = Interval(0.0, 0.0, 0.0, 0), Interval(1.0, 1.0, 1.0, 0)
COSTS = {"trained_tokens": "tokens", "learner_s": "learner time", "elapsed_s": "elapsed time"}
NOTE = "Differences: mean ± half of the 95 % interval. Ratios: the control's cost to τ by the arm's (above 1: faster)."


def cap_sweep(settings: Settings) -> Made:
    """divopd with k = 3 … 6 (Table 19)."""
    rows: list[list[str]] = []
    data: dict[str, Any] = {}
    panels: dict[str, dict[str, dict[float, Interval]]] = {}
    for name, results in settings.items():
        lines: dict[str, dict[float, Interval]] = {"peak": {}, "final-5": {}}
        for cap in CAPS:
            arm = f"divopd, k={cap}"
            if not results.of(arm):
                continue
            found = {measure: results.mean(arm, measure) for measure in ("peak", "final_five")}
            data[f"{name}/k={cap}"] = {measure: as_json(value) for measure, value in found.items()}
            rows.append([SETTINGS[name].title, str(cap), *(cell(value) for value in found.values())])
            for line, value in zip(lines.values(), found.values(), strict=True):
                line[cap] = value or NOTHING
        panels[SETTINGS[name].title] = lines
    sheet = Sheet("divopd by first-pass cap", ["setting", "k", "peak %", "final-5 %"], rows)
    return Made([sheet], data, partial(draw_sweep, panels, axis="first-pass cap k (turns per rollout)"))


def staleness(settings: Settings) -> Made:
    """vanilla with a staleness limit of 2 and of 4 (Table 12)."""
    rows: list[list[str]] = []
    data: dict[str, Any] = {}
    panels: list[Estimate] = []
    for place, (name, results) in enumerate(settings.items()):
        for arm, limit in (("vanilla", "2"), ("vanilla, staleness 4", "4")):
            if not results.of(arm):
                continue
            found = {of: results.mean(arm, of) for of in ("late:age", "peak", "final", "final_five")}
            data[f"{name}/{limit}"] = {of: as_json(value) for of, value in found.items()}
            cells = (cell(value, 2 if of == "late:age" else 1) for of, value in found.items())
            rows.append([SETTINGS[name].title, limit, *cells])
        gaps = results.differences("vanilla, staleness 4", "vanilla", "peak")
        panels.append(Estimate(SETTINGS[name].title, interval_of(gaps) if gaps else NOTHING, PALETTE[place], gaps))
        data[f"{name}/peak, 4 minus 2"] = as_json(interval_of(gaps)) if gaps else None
    heads = ["setting", "staleness\nlimit", "mean age", "peak %", "final %", "final-5 %"]
    panel = Panel("peak with limit 4 minus peak with limit 2 (points)", panels)
    return Made([Sheet("vanilla by staleness limit", heads, rows)], data, partial(draw_forest, [panel]))
