"""`divopd demo`: train with vanilla and with DivOPD, and compare."""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from divopd.errors import InputError
from divopd.extras import require

if TYPE_CHECKING:
    from divopd.experiments.demo import Finding, Progress

HELP = "Train the embedded student with vanilla and with DivOPD, same seeds, and compare: tables and pictures."
EXAMPLE = "divopd demo --quick"
HOLDS = {True: "yes", False: "no", None: "too few seeds to tell"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where runs and pictures go (default runs/demo…)")
    parser.add_argument("--seeds", type=int, metavar="N", help="pairs of runs (default 3; with --quick 1)")
    parser.add_argument("--quick", action="store_true", help="one pair, fewer updates and tasks: a minute")


def run(args: argparse.Namespace) -> int:
    require("train", "plots")  # not after minutes of training
    from divopd.config import load_config
    from divopd.config.files import shipped_configs
    from divopd.experiments.demo import (
        METHODS,
        QUICK,
        QUICK_SEEDS,
        SEEDS,
        closing,
        findings,
        folder_of,
        train_side_by_side,
    )
    from divopd.experiments.evidence import read_evidence
    from divopd.report.batches_picture import blocks_of, draw_batches
    from divopd.report.curves import draw_curves
    from divopd.report.page import write_report
    from divopd.report.run_comparison import compare_runs
    from divopd.report.run_tables import plain_console, print_comparison
    from divopd.report.runs import read_run

    if args.seeds is not None and args.seeds < 1:
        raise InputError(f"--seeds is {args.seeds}; expected 1 or more")
    settings = QUICK if args.quick else ()
    seeds = range(args.seeds) if args.seeds else QUICK_SEEDS if args.quick else SEEDS
    config = load_config(shipped_configs() / "default" / "divopd.yaml", settings)
    out: Path = args.out or Path("runs") / f"demo{'-quick' if args.quick else ''}"
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {out}: cannot make the folder ({error.strerror})") from None
    _watch(train_side_by_side(out, settings, seeds=seeds), updates=config.learner.updates * len(seeds))
    folders = {method: [folder_of(out, method, seed) for seed in seeds] for method in METHODS}
    runs = {method: [read_run(folder) for folder in of] for method, of in folders.items()}
    everything = [run for of in runs.values() for run in of]
    comparison = compare_runs(everything)
    print_comparison(comparison, clock="virtual")
    print_findings(findings(runs))
    plain_console().print(closing(runs, read_evidence()))
    pictures = {"batches": out / "batches.png", "curves": out / "curves.png"}
    draw_batches({method: blocks_of(of[0]) for method, of in folders.items()}, pictures["batches"])
    draw_curves(everything, pictures["curves"], target=comparison.target)
    report = out / "report.html"
    write_report([folder for of in folders.values() for folder in of], report)
    for name, picture in pictures.items():
        print(f"{f'{name}:':9}{picture}")
    print(f"report:  {report}")
    print(f"runs:    {out}")
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
                if not console.is_terminal and len(progress.rates) not in (0, said.get(method)):  # of one seed
                    said[method] = len(progress.rates)
                    console.print(f"{method}: update {progress.updates}/{updates}, {rate}")


def print_findings(found: Sequence["Finding"]) -> None:
    """The table of findings."""
    from divopd.experiments.demo import METHODS
    from divopd.report.run_tables import new_table, plain_console

    table = new_table("what the paper expects of DivOPD, and these runs", ["", *METHODS, "holds here"], texts=1)
    for one in found:
        table.add_row(one.what, one.vanilla, one.divopd, HOLDS[one.holds])
    plain_console().print(table)
