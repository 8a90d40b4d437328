"""What was tried beside the preregistered comparisons: a table of differences, marked as exploratory.

Eight seeds each unless a setting has fewer; intervals of 95 %, each by itself, and many of them: one in twenty lies
beside 0 by chance.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from divopd.experiments.arms import CAPS, CORE, LOADS, RATES, SETTINGS
from divopd.experiments.preregistered import BUDGET, early_area, paired
from divopd.experiments.results import SettingResults
from divopd.experiments.sheet import Made, Sheet, as_json, cell
from divopd.methods import BASELINE
from divopd.report.figures import PALETTE
from divopd.report.paper_figures import Estimate, Panel, draw_forest
from divopd.report.seeds import interval_of

Pair = tuple[str, str]
GROUPS: dict[str, tuple[Pair, ...]] = {
    "other methods": (
        ("divopd-r", "divopd"),
        ("divopd-adaptive", "divopd"),
        *((method, "vanilla") for method in ("tcod-f2b", "turnopd", "top-b", "divopd-focus")),
    ),
    "why not just throttle?": (
        ("vanilla, admission", "vanilla"),
        ("vanilla, tight admission", "vanilla"),
        ("divopd", "vanilla, admission"),
        ("divopd", "vanilla, tight admission"),
    ),
    "load": tuple((f"divopd-base, {load} load", f"vanilla, {load} load") for load in LOADS),
    "no dead rows (prompts are not cut)": (("divopd-base, whole prompts", "vanilla, whole prompts"),),
    "cap and staleness": (
        *((f"divopd, k={cap}", "divopd") for cap in CAPS if cap != 4),
        ("divopd, no cap", "divopd"),
        ("vanilla, staleness 4", "vanilla"),
    ),
    "learning rate": tuple(
        (f"{arm}, lr {rate}", f"vanilla, lr {rate}") for rate in RATES for arm in CORE if arm != BASELINE
    ),
    "twice as long": (("divopd, 48 updates", "vanilla, 48 updates"),),
    "the four arms": tuple((arm, "vanilla") for arm in CORE if arm != BASELINE),
}
ARMS = tuple(dict.fromkeys(arm for pairs in GROUPS.values() for pair in pairs for arm in pair))
BUDGETS = BUDGET | {
    "webshop-small": 7,
    "scienceworld-short": 8,
}  # updates in which vanilla came to 80 % of its plateau in tuning


def build(settings: Mapping[str, SettingResults]) -> Made:
    """Every comparison of which there are pairs, by setting."""
    rows: list[list[str]] = []
    data: dict[str, Any] = {}
    estimates: list[Estimate] = []
    for name, results in settings.items():
        if (budget := BUDGETS.get(name)) is None:
            continue
        for place, (group, pairs) in enumerate(GROUPS.items()):
            if group == "the four arms" and name == "default":
                continue  # these are preregistered there
            for arm, base in pairs:
                runs = paired(results, arm, base)
                if not runs:
                    continue
                gaps = [early_area(a, budget=budget) - early_area(b, budget=budget) for a, b in runs]
                area, final = interval_of(gaps), interval_of(results.differences(arm, base, "final_five"))
                title = f"{arm} − {base}"
                data.setdefault(name, {})[title] = {"nauc": as_json(area), "final_five": as_json(final)}
                cells = [cell(area, sign="+"), cell(final, sign="+")]
                rows.append([SETTINGS[name].title, group, title, str(len(runs)), *cells])
                label = title if name == "default" else f"{SETTINGS[name].title}: {title}"
                estimates.append(Estimate(label, area, PALETTE[place % len(PALETTE)], gaps))
    heads = ["setting", "what", "difference, in points", "pairs", "early nAUC", "final-5"]
    early = ", ".join(f"{budget} of {SETTINGS[name].title}" for name, budget in BUDGETS.items())
    notes = [
        "Exploratory: ± 95 %, each by itself; with so many, one in twenty lies beside 0 by chance.",
        f"Early: up to the update at which vanilla came to 80 % of its plateau on tuning seeds ({early}).",
    ]
    sheet = Sheet("beside the preregistered comparisons", heads, rows, texts=3, notes=notes)
    return Made([sheet], data, partial(draw_forest, [Panel("nAUC: difference (points)", estimates)]))
