"""The paper's figures from means and intervals; what they show is decided in experiments/."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from divopd.report.figures import (
    GREY,
    MARKERS,
    PALETTE,
    band,
    bars,
    colour_of,
    figure,
    forest,
    grouped_bars,
    letter,
    whole_updates,
)
from divopd.report.seeds import Interval

Curve = Mapping[float, Interval]


class Estimate(NamedTuple):
    """A labelled mean with its interval."""

    label: str
    value: Interval
    colour: str = GREY
    parts: Sequence[float] = ()  # what the mean is of


class Panel(NamedTuple):
    """Estimates that share an axis; `null` is where nothing differs."""

    axis: str
    estimates: Sequence[Estimate]
    null: float = 0.0


def draw_bars(settings: Mapping[str, Sequence[Panel]], path: Path, *, digits: Sequence[int]) -> None:
    """Panels of horizontal bars: a row of panels with the same labels for each setting."""
    heights = [0.24 * max(len(panel.estimates) for panel in panels) + 0.95 for panels in settings.values()]
    grid = {"sharey": "row", "height_ratios": heights}
    with figure(path, rows=len(settings), columns=len(digits), height=sum(heights), **grid) as axes:
        free = iter(axes)
        for title, panels in settings.items():
            for panel, places in zip(panels, digits, strict=True):
                one = next(free)
                labels, values, colours, _ = zip(*panel.estimates, strict=True)
                bars(one, labels, values, colours=colours, digits=places)
                one.set(xlabel=panel.axis, title=title if panel is panels[0] else "")
        letter(axes)


def draw_forest(panels: Sequence[Panel], path: Path) -> None:
    """Differences or ratios with intervals, one panel per measure; grey dots are the pairs."""
    longest = max(len(panel.estimates) for panel in panels)
    with figure(path, columns=len(panels), height=0.34 * longest + 0.95, sharey=True) as axes:
        for one, panel in zip(axes, panels, strict=True):
            labels, values, colours, parts = zip(*panel.estimates, strict=True)
            forest(one, labels, values, null=panel.null, colours=colours)
            for place, dots in zip(range(len(labels))[::-1], parts, strict=True):
                one.scatter(dots, [place - 0.26] * len(dots), s=7, color=GREY, linewidth=0, zorder=2)
            one.set(xlabel=panel.axis)
        letter(axes)


def draw_learning(panels: Mapping[str, Mapping[str, Curve]], path: Path, *, targets: Mapping[str, int]) -> None:
    """Success rate over updates, one panel per setting, mean and 95 % interval over seeds."""
    with figure(path, columns=len(panels), height=2.5, sharey=True) as axes:
        for one, (title, curves) in zip(axes, panels.items(), strict=True):
            for place, (arm, curve) in enumerate(curves.items()):
                marker = MARKERS[place % len(MARKERS)]
                band(
                    one,
                    list(curve),
                    list(curve.values()),
                    colour=colour_of(arm),
                    label=arm,
                    marker=marker,
                    markersize=3,
                )
            if targets.get(title):
                one.axhline(targets[title], color=GREY, linestyle="--", linewidth=0.8)
                one.annotate(
                    f"τ = {targets[title]} %",
                    (0.01, targets[title]),
                    xycoords=("axes fraction", "data"),
                    va="bottom",
                    fontsize=7,
                )
            one.set(xlabel="learner update", title=title)
            one.set_ylim(0, 100)
            whole_updates(one)
        axes[0].set_ylabel("success rate (%)")
        max(axes, key=lambda one: len(one.lines)).legend(loc="lower right")
        letter(axes)


def draw_trends(panels: Mapping[str, Mapping[str, Curve]], path: Path, *, axis: str) -> None:
    """Any figure of the batches over updates, one panel per setting."""
    with figure(path, columns=len(panels), height=2.2) as axes:
        for one, (title, curves) in zip(axes, panels.items(), strict=True):
            for arm, curve in curves.items():
                band(one, list(curve), list(curve.values()), colour=colour_of(arm), label=arm)
            one.set(xlabel="learner update", title=title)
            one.set_ylim(bottom=0)
            whole_updates(one)
        axes[0].set_ylabel(axis)
        axes[-1].legend()
        letter(axes)


def draw_load(loads: Sequence[str], series: Mapping[str, Mapping[str, Sequence[Interval]]], path: Path) -> None:
    """Measures (outer names) by load, one bar per reader."""
    with figure(path, columns=len(series), height=2.3) as axes:
        for one, (title, readers) in zip(axes, series.items(), strict=True):
            grouped_bars(one, loads, dict(readers), colours={reader: colour_of(reader) for reader in readers})
            one.set(xlabel="producer load", ylabel=title)
        axes[0].legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, handlelength=1)


def draw_sweep(panels: Mapping[str, Mapping[str, Curve]], path: Path, *, axis: str) -> None:
    """Measures against a number that was varied: one panel per setting, one line per measure."""
    with figure(path, columns=len(panels), height=2.3, sharey=True) as axes:
        for one, (title, curves) in zip(axes, panels.items(), strict=True):
            for place, (measure, curve) in enumerate(curves.items()):
                x, values = list(curve), list(curve.values())
                reach = [
                    [v.mean - v.low if v.count > 1 else 0 for v in values],
                    [v.high - v.mean if v.count > 1 else 0 for v in values],
                ]
                one.errorbar(
                    x,
                    [v.mean for v in values],
                    yerr=reach,
                    marker=MARKERS[place],
                    markersize=4,
                    capsize=2,
                    color=PALETTE[place],
                    label=measure,
                )
            one.set(xlabel=axis, title=title)
            one.set_xticks(sorted({x for curve in curves.values() for x in curve}))
        axes[0].set_ylabel("success rate (%)")
        axes[0].legend(ncols=2, loc="lower right", bbox_to_anchor=(1, 1.0))
        letter(axes)
