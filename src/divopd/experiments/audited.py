"""Items made from audits of runs: utilization, selection, retention, geometry, stability, cost."""

from collections.abc import Callable, Mapping
from functools import partial
from statistics import fmean
from typing import Any

from divopd.experiments.arms import MAIN, SETTINGS, UNCAPPED
from divopd.experiments.results import SettingResults
from divopd.experiments.sheet import Made, Sheet, cell, ratio_cell
from divopd.report import audit_figures
from divopd.report.seeds import Interval, interval_of

Settings = Mapping[str, SettingResults]
Audits = dict[str, dict[str, Any]]  # by seed
SOURCE = "divopd"  # the arm whose turns are audited
RATIO_NOTE = (
    "Scored/trained: in valid tokens, without dead rows. A dash: stored results of before, which counted whole rows."
)


def audits_of(results: SettingResults, name: str) -> Audits:
    """What an audit said about each seed of the audited arm."""
    return {f"seed {seed}": one.audits[name] for seed, one in results.of(SOURCE).items() if name in one.audits}


def _over(audits: Audits, of: Callable[[dict[str, Any]], float | None]) -> Interval | None:
    values = [value for audit in audits.values() if (value := of(audit)) is not None]
    return interval_of(values) if values else None


def _made(settings: Settings, name: str, sheet_of: Callable[[str, Audits], Sheet]) -> Made:
    """One sheet per setting that has the audit; the picture shows the first."""
    found = {setting: audits for setting, one in settings.items() if (audits := audits_of(one, name))}
    sheets = [sheet_of(SETTINGS[setting].title, audits) for setting, audits in found.items()]
    first = next(iter(found))
    draw = partial(getattr(audit_figures, f"draw_{name}"), found[first])
    return Made(sheets, found, draw, pictured=SETTINGS[first].title)


def utilization(settings: Settings) -> Made:
    """Rollouts never selected and Gini, every composer on the same turns, beside the bound (Table 11)."""

    def sheet(title: str, audits: Audits) -> Sheet:
        some = next(iter(audits.values()))
        rows = [
            [
                name,
                cell(_over(audits, lambda a, n=name: 100 * a[n]["utilization"]["never_selected"])),
                cell(_over(audits, lambda a, n=name: a[n]["utilization"]["gini"]), 2),
                cell(_over(audits, lambda a, n=name: a[n]["utilization"]["scored_per_trained"]), 2),
                cell(_over(audits, lambda a, n=name: a[n]["effective_rollouts"])),
            ]
            for name in some
        ]
        limit = _over(audits, lambda a: 100 * next(iter(a.values()))["utilization"]["unreachable"])
        rows.append(["no composer below", cell(limit), "", "", ""])
        return Sheet(f"{title}: turns of {SOURCE} runs replayed", UTILIZATION_HEADS, rows, notes=[RATIO_NOTE])

    made = _made(settings, "utilization", sheet)
    own = [_own_use(SETTINGS[name].title, one) for name, one in settings.items() if one.of(UNCAPPED)]
    return Made([*made.sheets, *own], made.data, made.draw, made.pictured)


UTILIZATION_HEADS = ["composer", "never selected %", "Gini", "scored/trained", "effective rollouts"]


def _own_use(title: str, results: SettingResults) -> Sheet:
    """How runs of divopd without a cap used the turns that they themselves made."""
    measures = {"never_selected": (1, 100.0), "gini": (2, 1.0), "scored_per_trained": (2, 1.0)}
    cells = [cell(results.mean(UNCAPPED, of), digits, scale=scale) for of, (digits, scale) in measures.items()]
    late = cell(results.mean(UNCAPPED, "late:effective_rollouts"))
    return Sheet(f"{title}: on the turns of its own runs", UTILIZATION_HEADS, [[UNCAPPED, *cells, late]])


def selection(settings: Settings) -> Made:
    """Depth and outcome of selected turns through the chain of stages (Table 14)."""

    def sheet(title: str, audits: Audits) -> Sheet:
        stages = next(iter(audits.values()))["stages"]
        depths = next(iter(stages.values()))["shares"]
        rows = [
            [
                depth,
                outcome,
                *(
                    cell(_over(audits, lambda a, s=stage, d=depth, o=outcome: 100 * a["stages"][s]["shares"][d][o]))
                    for stage in stages
                ),
            ]
            for depth in depths
            for outcome in ("failure", "success")
        ]
        for label, field in (("all successes", "success_share"), ("dead rows", "dead_share")):
            values = (cell(_over(audits, lambda a, s=s, f=field: 100 * a["stages"][s][f])) for s in stages)
            rows.append([label, "", *values])
        pool = cell(_over(audits, lambda a: 100 * a["pool_success_share"])).replace("\n", " ")
        return Sheet(
            f"{title}: share of selected turns, in %",
            ["turn", "outcome", *stages],
            rows,
            texts=2,
            notes=[f"Of all turns that arrived, {pool} % are of rollouts that succeed."],
        )

    return _made(settings, "selection", sheet)


def retention(settings: Settings) -> Made:
    """What focus keeps and drops; the share of gradient norm is of the geometry audit (Table 10)."""

    def sheet(title: str, audits: Audits) -> Sheet:
        rows = [
            ["dropped turns %", "", cell(_over(audits, lambda a: 100 * a["dropped_share"]))],
            ["dropped turns trained later %", "", cell(_over(audits, lambda a: 100 * a["trained_later"]))],
        ]
        for label, field, digits in (
            ("mean turn", "depth", 1),
            ("disagreement per token", "disagreement_per_token", 3),
        ):
            sides = (cell(_over(audits, lambda a, s=s, f=field: a[s][f]), digits) for s in ("kept", "dropped"))
            rows.append([label, *sides])
        return Sheet(f"{title}: a rollout's first slots", ["", "kept", "dropped"], rows)

    made = _made(settings, "retention", sheet)
    for name, one in settings.items():
        if pools := audits_of(one, "geometry"):
            norms = _over(pools, lambda a: 100 * fmean(u["dropped_norm"] for u in a["updates"]))
            turns = _over(pools, lambda a: 100 * fmean(u["dropped_turns"] for u in a["updates"]))
            note = Sheet(
                f"{SETTINGS[name].title}: in the pools of the geometry audit",
                ["dropped turns %", "dropped gradient norm %"],
                [[cell(turns), cell(norms)]],
                texts=0,
            )
            made = Made([*made.sheets, note], made.data, made.draw)
    return made


def geometry(settings: Settings) -> Made:
    """Selected gradients against the pool's gradient (Table 13)."""

    def sheet(title: str, audits: Audits) -> Sheet:
        names = next(iter(audits.values()))["updates"][0]["composers"]
        rows = [
            [
                name,
                *(cell(_over(audits, lambda a, n=name, m=m: _mean(a, n, m)), digits) for m, digits in MEASURES.items()),
            ]
            for name in names
        ]
        decided = sum(a["decided"] for a in audits.values())
        drawn, expected = (sum(a["focus_above_base"][b] for a in audits.values()) for b in ("drawn", "expected"))
        note = (
            f"Focus projects further than base in {drawn} of {decided} audited updates in which they could differ, and "
            f"further than base's expectation in {expected}."
        )
        notes = [note, *_oracle_notes(list(audits.values()))]
        return Sheet(title, ["composer", "projection", "cosine", "pairwise cosine"], rows, notes=notes)

    return _made(settings, "geometry", sheet)


def _oracle_notes(audits: list[dict[str, Any]]) -> list[str]:
    """What only audits of the last eight updates have; older results say nothing of it."""
    known = [audit for audit in audits if "oracle_ratio" in audit]
    if not known:
        return []
    ratio, swapped = fmean(one["oracle_ratio"] for one in known), fmean(one["swapped_pairs"] for one in known)
    return [
        f"The oracle projects {ratio:.2f} times as far as the best of divopd, divopd-focus and top-b. Against the "
        f"rollout-mean pool gradient {swapped:.1f} of 15 pairs of composers change places."
    ]


MEASURES = {"projection": 2, "cosine": 2, "pairwise_cosine": 3}


def _mean(audit: dict[str, Any], name: str, measure: str) -> float | None:
    values = [one["composers"][name][measure] for one in audit["updates"]]
    return None if None in values else fmean(values)


def stability(settings: Settings) -> Made:
    """Cached against recomputed disagreement (Appendix E.2)."""

    def sheet(title: str, audits: Audits) -> Sheet:
        lags = sorted({one["lag"] for audit in audits.values() for one in audit["lags"]})
        fields = {"spearman": 3, "top_k_overlap": 3, "probability_correlation": 3, "probability_gap": 4}
        rows = [
            [
                str(lag),
                *(cell(_over(audits, lambda a, g=lag, f=f: _at(a, g, f)), digits) for f, digits in fields.items()),
            ]
            for lag in lags
        ]
        heads = ["versions later", "Spearman", "top-k overlap", "probability correlation", "probability gap"]
        return Sheet(title, heads, rows)

    return _made(settings, "stability", sheet)


def _at(audit: dict[str, Any], lag: int, field: str) -> float | None:
    return next((one[field] for one in audit["lags"] if one["lag"] == lag), None)


def cost(settings: Settings) -> Made:
    """Cost to τ, teacher tokens per trained token, and whose seconds an update takes (Tables 15, 16, Figure 8)."""
    sheets: list[Sheet] = []
    data: dict[str, Any] = {}
    shown: Audits = {}
    first = next(iter(settings))
    for name, results in settings.items():
        rows = []
        for arm in MAIN:
            audits = {str(seed): one.audits["cost"] for seed, one in results.of(arm).items() if "cost" in one.audits}
            if not audits:
                continue
            data[f"{name}/{arm}"] = audits
            per_update = (
                cell(_over(audits, lambda a, f=field: None if a[f] is None else a[f] / a["updates"]), 2)
                for field in ("learner_s", "waited_s", "explorer_s", "teacher_s")
            )
            pairs = len(results.of(arm))
            ratios = (
                ratio_cell(results.mean(arm, f"ratio:{c}"), pairs=pairs)
                for c in ("trained_tokens", "learner_s", "elapsed_s")
            )
            scored = cell(_over(audits, lambda a: a["scored_per_trained"]), 2)
            unused = cell(_over(audits, lambda a: a["never_trained_share"]), scale=100)
            rows.append([arm, *ratios, scored, unused, *per_update])
            if name == first:
                shown[arm] = {
                    key: _mean_of([audit[key] for audit in audits.values()]) for key in next(iter(audits.values()))
                }
        heads = ["method", "tokens\nto τ", "learner\nto τ", "elapsed\nto τ", "scored/\ntrained", "not\ntrained %"]
        seconds = ["learner\ntrains s", "learner\nwaits s", "explorers\ns", "teacher\ns"]
        title = f"{SETTINGS[name].title} (seconds per update, virtual)"
        sheets.append(Sheet(title, [*heads, *seconds], rows, notes=[RATIO_NOTE]))
    return Made(sheets, data, partial(audit_figures.draw_cost, shown), pictured=SETTINGS[first].title)


def _mean_of(values: list[Any]) -> Any:
    if isinstance(values[0], dict):
        return {key: _mean_of([value[key] for value in values]) for key in values[0]}
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
