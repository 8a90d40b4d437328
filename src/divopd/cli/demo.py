"""`divopd demo`: train with vanilla and with DivOPD, and compare."""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from divopd.errors import InputError
from divopd.extras import require

if TYPE_CHECKING:
    from divopd.experiments.demo import Finding, Progress

HELP = "Train the embedded student with vanilla and with DivOPD, same seed, and compare: a table and a picture."
EXAMPLE = "divopd demo --quick"
HOLDS = {True: "yes", False: "no", None: "one seed cannot tell"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where runs and pictures go (default runs/demo…)")
    parser.add_argument("--seed", type=int, default=0, help="of both runs (default 0)")
    parser.add_argument("--quick", action="store_true", help="fewer updates and tasks: two minutes instead of five")


def run(args: argparse.Namespace) -> int:
    require("train", "plots")  # not after minutes of training
    from divopd.config import load_config
    from divopd.config_files import shipped_configs
    from divopd.experiments.demo import METHODS, QUICK, WHOLE, findings, train_side_by_side
    from divopd.report.curves import draw_curves
    from divopd.report.page import write_report
    from divopd.report.run_comparison import compare_runs
    from divopd.report.run_tables import print_comparison
    from divopd.report.runs import read_run

    settings = QUICK if args.quick else WHOLE
    config = load_config(shipped_configs() / "default" / "divopd.yaml", settings)
    out: Path = args.out or Path("runs") / f"demo{'-quick' if args.quick else ''}-seed{args.seed}"
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {out}: cannot make the folder ({error.strerror})") from None
    _watch(train_side_by_side(out, settings, seed=args.seed), updates=config.learner.updates)
    runs = {method: read_run(out / method, name=method) for method in METHODS}
    comparison = compare_runs(list(runs.values()))
    print_comparison(comparison, clock="virtual")
    print_findings(findings(comparison, runs))
    picture = out / "curves.png"
    draw_curves(list(runs.values()), picture, target=comparison.target)
    report = out / "report.html"
    write_report([out / method for method in METHODS], report)
    print(f"picture: {picture}")
    print(f"report:  {report}")
    print(f"runs:    {' '.join(str(out / method) for method in METHODS)}")
    return 0


def _watch(steps: Iterator[dict[str, "Progress"]], *, updates: int) -> None:
    """Bars in a terminal, elsewhere a line for every evaluation."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    from divopd.experiments.demo import METHODS

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("updates"))
    said: dict[str, int] = {}
    with Bars(
        *columns,
        TimeRemainingColumn(),
        TextColumn("{task.fields[rate]}"),
        console=console,
        disable=not console.is_terminal,
    ) as bars:
        tasks = {method: bars.add_task(method, total=updates, rate="") for method in METHODS}
        for step in steps:
            for method, progress in step.items():
                rate = f"success rate {progress.rates[-1]:.1f} %" if progress.rates else "starting"
                bars.update(tasks[method], completed=progress.updates, rate=rate)
                if not console.is_terminal and len(progress.rates) > said.get(method, 0):
                    said[method] = len(progress.rates)
                    console.print(f"{method}: update {progress.updates}/{updates}, {rate}")


def print_findings(found: Sequence["Finding"]) -> None:
    """The table of findings, and what one seed can say."""
    from divopd.experiments.demo import METHODS, ONE_SEED
    from divopd.report.run_tables import new_table, plain_console

    table = new_table("what the paper expects of DivOPD, and these two runs", ["", *METHODS, "holds here"], texts=1)
    for one in found:
        table.add_row(one.what, one.vanilla, one.divopd, HOLDS[one.holds])
    console = plain_console()
    console.print(table)
    console.print(ONE_SEED)
