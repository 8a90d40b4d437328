"""A comparison of runs as tables in the terminal."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from divopd.printable import printable
from divopd.report.run_comparison import CURRENCIES, MethodStanding, RunComparison, Standing, ToTarget
from divopd.report.runs import Clock
from divopd.report.seeds import Interval

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PLAIN_WIDTH = 120  # columns where the output is no terminal
PERCENT = ("never_selected", "top1_share", "dead_share")
FATE_COLUMNS = ("trained", "dead", "invalid", "stale", "aged_out", "waiting")
SEED_HEADINGS = {
    "peak": "peak\n%",
    "final_five": "final-5\n%",
    "nauc": "nAUC\n%",
    "never_selected": "never used\n%",
    "gini": "Gini",
    "effective_rollouts": "eff.\nrollouts",
    "top1_share": "top-1\n%",
    "dead_share": "dead\n%",
}


def plain_console() -> "Console":
    """A console on stdout that takes every text as it is: names and kinds of tasks are no markup."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else PLAIN_WIDTH
    return Console(markup=False, emoji=False, highlight=False, width=width)


def print_comparison(comparison: RunComparison, *, clock: Clock) -> None:
    """Print learning, cost to the targets, use of experience, fates, and the methods over their seeds."""
    console = plain_console()
    console.print(_learning(comparison))
    console.print(_targets(comparison))
    if comparison.target > 0:
        console.print(_costs(comparison, clock))
    console.print(_experience(comparison))
    console.print(_fates(comparison))
    if comparison.methods:
        console.print(_seeds(comparison.methods))
    if any(method.differences for method in comparison.methods):
        console.print(_differences(comparison))
    for note in comparison.notes:
        console.print(f"note: {printable(note)}")


def quantity(value: float) -> str:
    """A count or a number of seconds in at most five characters."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}" if value != int(value) else f"{int(value)}"


def final_five_text(mean: float, deviation: float | None) -> str:
    """Mean ± sample standard deviation; of a single evaluation the mean alone."""
    return f"{mean:.1f}" if deviation is None else f"{mean:.1f} ± {deviation:.1f}"


def new_table(title: str, headings: Sequence[str], *, texts: int = 1, caption: str | None = None) -> "Table":
    """A table whose first columns are texts and whose others are figures."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(
        title=title,
        title_justify="left",
        caption=caption,
        caption_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for heading in headings[:texts]:
        table.add_column(heading, overflow="fold")
    for heading in headings[texts:]:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _learning(comparison: RunComparison) -> "Table":
    nauc = f"nAUC@{comparison.budget}\n%"
    headings = ["run", "method", "seed", "peak\n%", "final-5\n%", "best-5\n%", nauc]
    table = new_table("learning: success rate", headings, texts=2)
    for one in comparison.standings:
        table.add_row(
            printable(one.run),
            printable(one.label),
            str(one.seed),
            f"{one.peak:.1f}",
            final_five_text(one.final_five, one.final_five_sd),
            f"{one.best_five:.1f}",
            "–" if one.nauc is None else f"{one.nauc:.1f}",
        )
    return table


def _targets(comparison: RunComparison) -> "Table":
    shown = [f"{target} %" + (" (τ)" if target == comparison.target else "") for target in comparison.targets]
    table = new_table(
        "trained tokens to a success rate, and the area under the curve",
        ["run", f"nAUC@{comparison.budget} %", *shown],
        caption=f"×: tokens of {printable(comparison.reference)} by tokens of the run; above 1 favours the run",
    )
    for one in comparison.standings:
        nauc = "–" if one.nauc is None else f"{one.nauc:.1f}"
        table.add_row(printable(one.run), nauc, *map(_target_cell, one.to_targets))
    return table


def _target_cell(one: ToTarget) -> str:
    if one.costs is None:
        return "not reached"
    ratio = one.ratios["trained_tokens"]
    return f"{quantity(one.costs.trained_tokens)}\nupdate {one.version}" + (f", {ratio:.2f}×" if ratio else "")


def _costs(comparison: RunComparison, clock: Clock) -> "Table":
    headings = {
        "trained_tokens": "trained\ntokens",
        "computed_tokens": "computed\ntokens",
        "learner_s": "learner\ns",
        "elapsed_s": f"{clock}\ns",
        "scored_tokens": "teacher\ntokens",
        "generated_tokens": "explorer\ntokens",
    }
    table = new_table(
        f"cost to {comparison.target} % (τ, {printable(comparison.target_origin)})",
        ["run", "update", *(headings[name] for name in CURRENCIES)],
        caption=f"×: cost of {printable(comparison.reference)} by cost of the run; above 1 favours the run; learner: "
        f"seconds of its steps times its ranks; {clock}: its steps and its waits for batches",
    )
    for one in comparison.standings:
        table.add_row(printable(one.run), *_cost_cells(one))
    return table


def _cost_cells(one: Standing) -> list[str]:
    if one.costs_to_target is None:
        return ["not reached", *("–" for _ in CURRENCIES)]
    cells = [str(one.version_at_target)]
    for name in CURRENCIES:
        ratio = one.ratios[name]
        cells.append(quantity(getattr(one.costs_to_target, name)) + (f"\n{ratio:.2f}×" if ratio else ""))
    return cells


def _experience(comparison: RunComparison) -> "Table":
    headings = ["never\nused", "bound", "Gini", "scored/\ntrained", "arrival/\ndrain"]
    headings += ["eff.\nrollouts", "top-1\nshare", "dead\nrows"]
    table = new_table(
        "use of experience",
        ["run", *headings],
        caption="bound: rollouts no composer could have given a slot; scored/trained: valid tokens, without dead rows; "
        "arrival/drain: turns put per second, by turns read into the pool per second of work; last three: mean of the "
        "last 40 % of updates",
    )
    for one in comparison.standings:
        table.add_row(
            printable(one.run),
            f"{one.never_selected:.1%}",
            f"{one.unreachable:.1%}",
            f"{one.gini:.2f}",
            "–" if one.scored_per_trained is None else f"{one.scored_per_trained:.1f}",
            "n/a" if one.arrival_per_drain is None else f"{one.arrival_per_drain:.2f}",
            f"{one.effective_rollouts:.1f}",
            f"{one.top1_share:.1%}",
            f"{one.dead_share:.1%}",
        )
    return table


def _fates(comparison: RunComparison) -> "Table":
    table = new_table(
        "where the turns went",
        ["run", "turns", "trained", "dead\nrows", "invalid", "stale", "aged\nout", "waiting"],
        caption="dead rows took a slot and taught nothing; a method with a gate discards such turns as invalid",
    )
    for one in comparison.standings:
        put = sum(one.fates.values())
        waiting = {"waiting": one.fates["pending"] + one.fates["queued"]}
        parts = [(one.fates | waiting)[fate] / max(1, put) for fate in FATE_COLUMNS]
        table.add_row(printable(one.run), str(put), *(f"{part:.1%}" for part in parts))
    return table


def _seeds(methods: Sequence[MethodStanding]) -> "Table":
    table = new_table("methods: mean ± 95 % interval over seeds", ["method", "seeds", *SEED_HEADINGS.values()])
    for method in methods:
        cells = (_plus_minus(name, method.means.get(name), sign="") for name in SEED_HEADINGS)
        table.add_row(printable(method.label), str(method.seeds), *cells)
    return table


def _differences(comparison: RunComparison) -> "Table":
    table = new_table(
        "methods minus vanilla of the same seed: mean ± 95 % interval",
        ["method", "pairs", *SEED_HEADINGS.values(), "trained tokens\nto τ"],
        caption="right: vanilla's cost by the method's, geometric mean [95 % interval]; above 1 favours the method",
    )
    for method in comparison.methods:
        if method.differences:
            cells = (_plus_minus(name, method.differences.get(name), sign="+") for name in SEED_HEADINGS)
            ratio = _ratio(method.ratios.get("trained_tokens"), method.pairs)
            table.add_row(printable(method.label), str(method.pairs), *cells, ratio)
    return table


def _plus_minus(name: str, interval: Interval | None, *, sign: str) -> str:
    if interval is None:
        return "–"
    scale, digits = (100, 1) if name in PERCENT else (1, 2 if name == "gini" else 1)
    half = interval.high - interval.mean
    return f"{scale * interval.mean:{sign}.{digits}f}\n± {scale * half:.{digits}f}"


def _ratio(interval: Interval | None, pairs: int) -> str:
    if interval is None:
        return "–"
    reached = f" ({interval.count} of {pairs})" if interval.count < pairs else ""
    return f"{interval.mean:.2f}×{reached}\n[{interval.low:.2f}, {interval.high:.2f}]"
