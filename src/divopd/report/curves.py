"""The picture of a comparison: learning curves, and beside them how the batches were composed."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from divopd.errors import InputError, MissingExtraError
from divopd.records import BatchFigures
from divopd.report.comparison import BLUE, GREY, ORANGE
from divopd.report.run_comparison import labels_of
from divopd.report.runs import RunFigures

OTHERS = ("#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#F0E442", "#000000")  # the rest of Okabe and Ito's colours
SMOOTH = 5  # updates: a batch follows what arrived, so single ones jump
COMPOSITION: dict[str, Callable[[BatchFigures], float]] = {
    "effective\nrollouts": lambda batch: batch.effective_rollouts,
    "largest rollout\n(% of tokens)": lambda batch: 100 * batch.top1_share,
    "dead rows\n(%)": lambda batch: 100 * batch.dead_share,
}


def draw_curves(runs: Sequence[RunFigures], path: Path, *, target: int) -> None:
    """Left: success rate over updates. Right: effective rollouts, top-1 share and dead rows of every batch.

    Runs of one method have one colour; several seeds are thin lines with their mean drawn bold.
    """
    try:
        import matplotlib
    except ImportError:
        raise MissingExtraError("matplotlib", "plots") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = labels_of(runs)
    groups: dict[str, list[RunFigures]] = {}
    for run in runs:
        groups.setdefault(names[run.name], []).append(run)
    colours = _colours(groups)
    figure = plt.figure(figsize=(11, 5), layout="constrained")
    try:
        grid = figure.add_gridspec(len(COMPOSITION), 2, width_ratios=(1.3, 1))
        _draw_learning(figure.add_subplot(grid[:, 0]), groups, colours, target=target)
        shared = None
        for row, (title, of) in enumerate(COMPOSITION.items()):
            shared = axes = figure.add_subplot(grid[row, 1], sharex=shared)
            _draw_composition(axes, groups, colours, of=of)
            axes.set_ylabel(title, fontsize=9)
            axes.tick_params(labelbottom=row == len(COMPOSITION) - 1)
        shared.set_xlabel(f"learner update (running mean of {SMOOTH})")  # pyright: ignore[reportOptionalMemberAccess]
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise InputError(f"{path}: cannot write the picture ({error.strerror})") from None
    finally:
        plt.close(figure)


def _colours(groups: Mapping[str, Sequence[RunFigures]]) -> dict[str, str]:
    """Vanilla orange and divopd blue wherever they appear; the others take what is left."""
    fixed = {"vanilla": ORANGE, "divopd": BLUE}
    others = [label for label in groups if label not in fixed]
    return fixed | {label: OTHERS[place % len(OTHERS)] for place, label in enumerate(others)}


def _draw_learning(
    axes: Any, groups: Mapping[str, Sequence[RunFigures]], colours: Mapping[str, str], *, target: int
) -> None:
    for label, runs in groups.items():
        _draw_group(axes, [dict(run.curve) for run in runs], colours[label], label=label, marker="o")
    if target > 0:
        axes.axhline(target, color=GREY, linestyle="--", linewidth=1)
        axes.annotate(f"τ = {target} %", (0.005, target), xycoords=("axes fraction", "data"), va="bottom", fontsize=8)
    axes.set(xlabel="learner update (policy version)", ylabel="success rate (%)")
    axes.set_ylim(bottom=0)
    axes.legend(loc="lower right", fontsize=9, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_composition(
    axes: Any,
    groups: Mapping[str, Sequence[RunFigures]],
    colours: Mapping[str, str],
    *,
    of: Callable[[BatchFigures], float],
) -> None:
    for label, runs in groups.items():
        lines = [_smoothed([of(batch) for batch in run.batches]) for run in runs]
        _draw_group(axes, lines, colours[label], label=None, marker=None)
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_group(
    axes: Any, lines: Sequence[Mapping[float, float]], colour: str, *, label: str | None, marker: str | None
) -> None:
    """Every line; for several, thin, and bold their mean where all of them have a value."""
    seeds = f", mean of {len(lines)}" if len(lines) > 1 else ""
    shown = label and label.replace("$", r"\$") + seeds  # a label is no formula
    for line in lines if len(lines) > 1 else ():
        axes.plot(list(line), list(line.values()), color=colour, linewidth=0.7, alpha=0.45)
    common = [x for x in lines[0] if all(x in line for line in lines)]
    means = [fmean(line[x] for line in lines) for x in common]
    axes.plot(common, means, color=colour, linewidth=2, label=shown, marker=marker, markersize=4)


def _smoothed(values: Sequence[float]) -> dict[float, float]:
    """Running mean over the last few updates, by update."""
    return {place: fmean(values[max(0, place + 1 - SMOOTH) : place + 1]) for place in range(len(values))}
