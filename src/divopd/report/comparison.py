"""Composers side by side on one recording: a table in the terminal and one picture."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from divopd.composers import Composer, Decision, DivOPD
from divopd.composers.composer import counted_reasons
from divopd.errors import InputError, MissingExtraError
from divopd.methods import METHODS
from divopd.metrics import Utilization, batch_figures, mean_of_last
from divopd.records import BatchFigures
from divopd.replay import Recording, replay, utilization_of, weighed_by_batch

# Okabe and Ito's colours, told apart by colour-blind readers too
ORANGE, BLUE, GREY = "#D55E00", "#0072B2", "#999999"
SLOT_COLOURS = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7")


@dataclass(frozen=True)
class Replayed:
    """What one composer did with a recording."""

    decisions: list[Decision]
    figures: list[BatchFigures]
    utilization: Utilization


def compare(recording: Recording, composers: Mapping[str, Composer], *, updates: int) -> dict[str, Replayed]:
    """Replay every composer over the same recording, with a progress bar on stderr."""
    from rich.console import Console
    from rich.progress import track

    results: dict[str, Replayed] = {}
    console = Console(stderr=True)
    for name in track(composers, "replaying", console=console, transient=True, disable=not console.is_terminal):
        composer = composers[name]
        decisions = list(replay(recording, composer, updates=updates))
        used = utilization_of(
            recording,
            decisions,
            batch_size=composer.settings.batch_size,
            max_staleness=composer.settings.max_staleness,
        )
        figures = [batch_figures(decision.selected, update=q) for q, decision in enumerate(decisions)]
        results[name] = Replayed(decisions, figures, used)
    return results


def comparison_table(recording: Recording, comparison: Mapping[str, Replayed], *, title: str) -> None:
    """Print what each composer used and how its batches were composed (means over the last 40 % of updates)."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=title,
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        caption="\n".join(_notes(recording, comparison)),
        caption_justify="left",
    )
    table.add_column("method", no_wrap=True)
    headings = ["never\nused", "Gini", "eff.\nroll.", "top-1\nshare", "turns/\nroll.", "dead\nrows"]
    for heading in [*headings, "mean\nage", "rows", "stale"]:
        table.add_column(heading, justify="right", no_wrap=True)
    for name, result in comparison.items():
        table.add_row(name, *_cells(result))
    Console().print(table)


def _notes(recording: Recording, comparison: Mapping[str, Replayed]) -> list[str]:
    """What stands under the table: what there was to use, and what a replay leaves out."""
    some = next(iter(comparison.values())).utilization
    unreached = f"{some.unreachable:.1%} of them could not be reached by any composer"
    notes = [f"{some.rollouts} valid rollouts; {unreached}"]
    turns = [entry.candidate for entry in recording.turns]
    if all(turn.reason for turn in turns):
        notes = [f"nothing to train: all {len(turns)} turns are invalid ({counted_reasons(turns)})"]
    if acting := [name for name in comparison if METHODS[name].explorers]:
        do = "does" if len(acting) == 1 else "do"
        notes.append(
            f"a replay cannot show what {' and '.join(acting)} {do} in the explorer: only the composer is here"
        )
    return [*notes, *filter(None, [weighed_by_batch(recording, comparison)])]


def _cells(result: Replayed) -> list[str]:
    """The figures of one composer; a dash where there is nothing to take a share or a mean of."""
    used, trains = result.utilization, any(figures.rows for figures in result.figures)

    def late(field: str, form: str) -> str:
        return format(mean_of_last([getattr(figures, field) for figures in result.figures]), form) if trains else "–"

    return [
        f"{used.never_selected:.1%}" if used.rollouts else "–",
        f"{used.gini:.2f}" if used.rollouts else "–",
        late("effective_rollouts", ".1f"),
        late("top1_share", ".1%"),
        late("turns_per_rollout", ".1f"),
        late("dead_share", ".1%"),
        late("age", ".2f"),
        f"{fmean(figures.rows for figures in result.figures):.1f}",
        str(sum(len(decision.stale) for decision in result.decisions)),
    ]


def draw_comparison(comparison: Mapping[str, Replayed], path: Path) -> None:
    """Left: rollouts never used, with the bound. Right: one batch of the first and of the best method, slot by slot."""
    try:
        import matplotlib
    except ImportError:
        raise MissingExtraError("matplotlib", "plots") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = list(comparison)
    first = names[0]
    best = next((name for name in names if METHODS[name].composer is DivOPD), names[-1])
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11, 0.32 * len(names) + 2.4), width_ratios=(1, 1.25), layout="constrained"
    )
    _draw_never_selected(left, comparison)
    _draw_batches(right, {name: comparison[name] for name in dict.fromkeys((first, best))})
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise InputError(f"{path}: cannot write the picture ({error.strerror})") from None
    finally:
        plt.close(figure)


def _draw_never_selected(axes: Any, comparison: Mapping[str, Replayed]) -> None:
    names = list(comparison)[::-1]
    shares = [100 * comparison[name].utilization.never_selected for name in names]
    colours = [BLUE if name.startswith("divopd") else ORANGE for name in names]
    bars = axes.barh(names, shares, color=colours)
    axes.bar_label(bars, fmt="%.1f", padding=3, fontsize=8)
    unreachable = 100 * comparison[names[0]].utilization.unreachable
    axes.axvline(unreachable, color=GREY, linestyle="--", label=f"bound: {unreachable:.1f} %")
    axes.set(xlabel="valid rollouts never selected (%)", xlim=(0, max(*shares, 10) * 1.15))
    axes.legend(loc="lower right", fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_batches(axes: Any, shown: Mapping[str, Replayed]) -> None:
    """Each batch of the second half as a column of slots: one coloured stretch per rollout, dead rows in grey."""
    width = 0
    for row, (name, result) in enumerate(reversed(list(shown.items()))):
        updates = range(len(result.decisions) // 2, min(len(result.decisions) // 2 + 12, len(result.decisions)))
        width = max(width, len(updates))
        for column, update in enumerate(updates):
            selected = result.decisions[update].selected
            live = Counter(c.rollout for c in selected if c.reason is None).most_common()
            heights = [(count, SLOT_COLOURS[i % len(SLOT_COLOURS)]) for i, (_, count) in enumerate(live)]
            heights.append((sum(c.reason is not None for c in selected), GREY))
            bottom = 1.2 * row
            for count, colour in heights:
                height = count / max(len(selected), 1)
                axes.bar(column, height, bottom=bottom, color=colour, width=0.85, edgecolor="white", linewidth=0.4)
                bottom += height
        axes.text(-0.45, 1.2 * row + 1.03, name, fontsize=10, weight="bold")
    axes.set(
        xlabel="12 batches in a row; one stretch per rollout, grey = dead rows",
        yticks=[],
        xticks=[],
        xlim=(-0.7, width - 0.3),
    )
    axes.spines[["top", "right", "left"]].set_visible(False)
