"""The pictures of the audits, from their figures as JSON; several runs are averaged, with 95 % intervals."""

from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from divopd.report.figures import GREY, LIGHT, PALETTE, bars, colour_of, figure, grouped_bars, letter
from divopd.report.seeds import Interval, interval_of

Figures = Mapping[str, Mapping[str, Any]]  # run, then what the audit says
STAGE_COLOURS = {"vanilla": "#D55E00", "+ gate": "#E69F00", "+ coverage": "#56B4E9", "+ focus": "#0072B2"}
FATE_COLOURS = {
    "trained": "#0072B2",
    "dead": "#999999",
    "stale": "#D55E00",
    "aged_out": "#E69F00",
    "invalid": "#000000",
    "pending": "#56B4E9",
    "queued": LIGHT,
}


def _over(runs: Figures, of: Callable[[Mapping[str, Any]], float | None]) -> Interval:
    values = [value for run in runs.values() if (value := of(run)) is not None]
    return interval_of(values) if values else Interval(0.0, 0.0, 0.0, 0)


def draw_utilization(runs: Figures, path: Path) -> None:
    """Never-selected share with the bound, and Gini, by composer."""
    names = list(next(iter(runs.values())))
    colours = [colour_of(name) for name in names]
    with figure(path, columns=2, height=0.24 * len(names) + 0.9, sharey=True) as (left, right):
        share = [_over(runs, lambda run, n=name: 100 * run[n]["utilization"]["never_selected"]) for name in names]
        bars(left, names, share, colours=colours)
        limit = _over(runs, lambda run: 100 * run[names[0]]["utilization"]["unreachable"]).mean
        left.axvline(limit, color="black", linestyle="--", linewidth=0.9, zorder=4)
        left.text(limit, len(names) - 0.42, f" no composer below {limit:.1f}", fontsize=7, va="bottom")
        left.set(xlabel="valid rollouts never selected (%)")
        gini = [_over(runs, lambda run, n=name: run[n]["utilization"]["gini"]) for name in names]
        bars(right, names, gini, colours=colours, digits=2)
        right.set(xlabel="Gini of selected turns per rollout")


def draw_selection(runs: Figures, path: Path) -> None:
    """Share of selected turns by depth, failures and successes apart, one bar per stage."""
    stages = next(iter(runs.values()))["stages"]
    depths = list(next(iter(stages.values()))["shares"])
    tops: list[float] = []
    with figure(path, columns=2, height=2.3, sharey=True) as (left, right):
        for axes, outcome in ((left, "failure"), (right, "success")):
            series = {
                stage: [
                    _over(runs, lambda run, s=stage, d=depth, o=outcome: 100 * run["stages"][s]["shares"][d][o])
                    for depth in depths
                ]
                for stage in stages
            }
            tops.append(grouped_bars(axes, depths, series, colours=STAGE_COLOURS))
            whole = {s: _over(runs, lambda run, s=s: 100 * run["stages"][s]["success_share"]).mean for s in stages}
            share = whole["+ focus"] if outcome == "success" else 100 - whole["+ focus"]
            axes.set(
                xlabel="turn (depth in its rollout)", title=f"rollouts that end in {outcome}: {share:.0f} % with focus"
            )
        left.set(ylabel="share of selected turns (%)", ylim=(0, max(tops)))
        left.legend()
        letter((left, right))


def draw_retention(runs: Figures, path: Path) -> None:
    """Which share of each depth focus keeps, and how much kept and dropped turns disagree."""
    depths = list(next(iter(runs.values()))["kept"]["by_depth"])

    def kept_share(run: Mapping[str, Any], depth: str) -> float | None:
        kept, dropped = (run[side]["by_depth"][depth] for side in ("kept", "dropped"))
        return 100 * kept / (kept + dropped) if kept + dropped else None

    with figure(path, columns=2, height=2.2) as (left, right):
        share = [_over(runs, lambda run, d=depth: kept_share(run, d)) for depth in depths]
        grouped_bars(left, depths, {"kept": share}, colours={"kept": PALETTE[1]})
        whole = _over(runs, lambda run: 100 * (1 - run["dropped_share"])).mean
        left.axhline(whole, color="black", linestyle="--", linewidth=0.9)
        left.set(xlabel="turn (depth in its rollout)", ylabel="kept by focus (%)", ylim=(0, 105))
        left.set_title(f"dashed: all turns, {whole:.0f} %")
        sides = {
            side: [_over(runs, lambda run, s=side, d=depth: run[s]["per_token_by_depth"][d]) for depth in depths]
            for side in ("kept", "dropped")
        }
        grouped_bars(right, depths, sides, colours={"kept": PALETTE[1], "dropped": PALETTE[4]})
        right.axhline(0, color="black", linewidth=0.7)
        right.set(xlabel="turn (depth in its rollout)", ylabel="disagreement / token (nats)")
        right.set_ylim(top=1.15 * right.get_ylim()[1])
        right.legend(ncols=2, loc="upper right")
        letter((left, right))


def draw_stability(runs: Figures, path: Path) -> None:
    """Agreement of cached and recomputed disagreement, by how many versions lie between."""
    lags = sorted({one["lag"] for run in runs.values() for one in run["lags"]})
    staleness = max(run["max_staleness"] for run in runs.values())
    curves = {
        "Spearman correlation of all turns": lambda one: one["spearman"],
        "overlap of a rollout's k best turns": lambda one: one["top_k_overlap"],
        "correlation of token probabilities": lambda one: one["probability_correlation"],
    }
    with figure(path, height=2.3) as (axes,):
        for place, (label, of) in enumerate(curves.items()):
            values = [_at_lag(runs, lag, of) for lag in lags]
            axes.errorbar(
                range(len(lags)),
                [value.mean for value in values],
                yerr=list(
                    zip(
                        *(
                            (v.mean - max(v.low, -1), min(v.high, 2) - v.mean) if v.count > 1 else (0, 0)
                            for v in values
                        ),
                        strict=True,
                    )
                ),
                color=PALETTE[place],
                marker="osD"[place],
                markersize=4,
                capsize=2,
                label=label,
            )
        beyond = sum(lag <= staleness for lag in lags)
        if beyond < len(lags):
            axes.axvspan(beyond - 0.5, len(lags) - 0.6, color=LIGHT, alpha=0.5, linewidth=0)
            axes.text(beyond - 0.45, 0.04, f"never trained (max staleness {staleness})", fontsize=7, color=GREY)
        axes.set_xticks(range(len(lags)), [str(lag) for lag in lags])
        axes.set(xlabel="versions between generation and recomputation", ylabel="agreement", ylim=(0, 1.03))
        axes.legend(loc="lower left", bbox_to_anchor=(0, 0.1))


def _at_lag(runs: Figures, lag: int, of: Callable[[Mapping[str, Any]], float | None]) -> Interval:
    return _over(runs, lambda run: next((of(one) for one in run["lags"] if one["lag"] == lag), None))


def draw_geometry(runs: Figures, path: Path) -> None:
    """Projection on and cosine with the pool's gradient: every audited update a dot, their mean a bar."""
    names = list(next(iter(runs.values()))["updates"][0]["composers"])
    colours = [colour_of(name) for name in names]
    with figure(path, columns=2, height=0.27 * len(names) + 0.8, sharey=True) as (left, right):
        for axes, measure, label in (
            (left, "projection", "projection on the pool's gradient  ⟨G, Ĝ⟩ / ‖G‖²"),
            (right, "cosine", "cosine with the pool's gradient"),
        ):
            for place, (name, colour) in enumerate(zip(names, colours, strict=True)):
                dots = [one["composers"][name][measure] for run in runs.values() for one in run["updates"]]
                height = len(names) - 1 - place
                axes.barh(height, fmean(dots), color=colour, alpha=0.45, height=0.72, zorder=2)
                spread = [height + 0.25 * (n % 5 - 2) / 2 for n in range(len(dots))]
                axes.scatter(dots, spread, s=7, color=colour, edgecolor="black", linewidth=0.25, zorder=3)
                axes.text(
                    1.01, height, f"{fmean(dots):.2f}", transform=axes.get_yaxis_transform(), va="center", fontsize=7
                )
            axes.axvline(1, color="black", linestyle=":", linewidth=0.8)
            axes.set_xlabel(label)
        left.set_yticks(range(len(names))[::-1], names)


def draw_cost(runs: Figures, path: Path) -> None:
    """Where the tokens that the teacher scored went, and whose seconds they were."""
    names = list(runs)
    places = range(len(names))[::-1]
    with figure(path, columns=2, height=0.3 * len(names) + 1.1, sharey=True) as (left, right):
        starts = [0.0] * len(names)
        for fate, colour in FATE_COLOURS.items():
            shares = [100 * run["scored_by_fate"].get(fate, 0) / max(1, run["scored_tokens"]) for run in runs.values()]
            left.barh(places, shares, left=starts, color=colour, height=0.7, label=fate.replace("_", " "))
            starts = [start + share for start, share in zip(starts, shares, strict=True)]
        left.set_yticks(places, [_with_ratio(name, runs[name]["scored_per_trained"]) for name in names])
        left.set(xlabel="teacher-scored tokens (%)", xlim=(0, 100))
        left.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0), handlelength=1)
        starts = [0.0] * len(names)
        parts = {
            "learner trains": ("learner_s", PALETTE[1]),
            "learner waits": ("waited_s", LIGHT),
            "explorers (all in flight)": ("explorer_s", PALETTE[4]),
            "teacher": ("teacher_s", PALETTE[2]),
        }
        for label, (field, colour) in parts.items():
            seconds = [(run[field] or 0.0) / run["updates"] for run in runs.values()]
            right.barh(places, seconds, left=starts, color=colour, height=0.7, label=label)
            starts = [start + second for start, second in zip(starts, seconds, strict=True)]
        right.set(xlabel="seconds per update, on the run's clock")
        right.legend(ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0), handlelength=1)


def _with_ratio(name: str, scored_per_trained: float | None) -> str:
    return name if scored_per_trained is None else f"{name}\n{scored_per_trained:.1f} scored / trained"


def draw_time(runs: Figures, path: Path) -> None:
    """Every update by the tokens of its batch and its seconds, and the learner's stages."""
    with figure(path, columns=2, height=2.2) as (left, right):
        for place, (name, run) in enumerate(runs.items()):
            colour = PALETTE[place % len(PALETTE)]
            left.scatter(run["tokens"], run["step_s"], s=9, color=colour, label=name.replace("$", r"\$"))
        largest = {of: max(max(run[of]) for run in runs.values()) for of in ("tokens", "step_s")}
        left.set(xlabel="tokens of a batch", ylabel="seconds of an update")
        left.set(xlim=(0, 1.06 * largest["tokens"] or 1), ylim=(0, 1.06 * largest["step_s"] or 1))
        left.legend(loc="lower left")
        starts = [0.0] * len(runs)
        stages = dict.fromkeys(stage for run in runs.values() for stage in run["stages_s"])
        for place, stage in enumerate(stages):
            seconds = [run["stages_s"].get(stage, 0.0) / len(run["tokens"]) for run in runs.values()]
            colour = PALETTE[place % len(PALETTE)]
            right.barh(range(len(runs)), seconds, left=starts, color=colour, height=0.6, label=stage)
            starts = [start + second for start, second in zip(starts, seconds, strict=True)]
        right.set_yticks(range(len(runs)), [name.replace("$", r"\$") for name in runs])
        right.set(xlabel="real seconds of an update, by stage")
        right.legend(ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0), handlelength=1)


def draw_kinds(runs: Figures, path: Path) -> None:
    """Share of what arrived beside share of what was trained, and used rollouts, by kind of task."""
    names = list(dict.fromkeys(kind for run in runs.values() for kind in run))

    def share(kind: str, name: str) -> Interval:
        return _over(runs, lambda run: 100 * run[kind][name] if kind in run else None)

    colours = {"arrived": LIGHT, "trained": "#0072B2"}
    with figure(path, columns=2, height=0.3 * len(names) + 1.1, sharey=True) as (left, right):
        for number, (name, colour) in enumerate(colours.items()):
            places = [row + (number - 0.5) * 0.38 for row in range(len(names))]
            means = [share(kind, name).mean for kind in names]
            left.barh(places, means, 0.36, color=colour, label=name, zorder=2)
        left.set_yticks(range(len(names)), [name.replace("$", r"\$") for name in names])
        left.invert_yaxis()
        left.set(xlabel="share of turns (%)")
        left.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2)
        used = [share(kind, "used") for kind in names]
        right.barh(range(len(names)), [one.mean for one in used], 0.6, color="#009E73", zorder=2)
        right.set(xlabel="rollouts with a trained turn (%)", xlim=(0, 100))
        letter((left, right))
