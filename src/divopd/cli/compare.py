"""`divopd compare`: runs side by side."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from divopd.errors import InputError
from divopd.printable import tell

if TYPE_CHECKING:
    from divopd.report.runs import RunFigures

HELP = "Compare runs: success rates, cost to the target in every currency, and how the experience was used."
EXAMPLE = """divopd compare runs/vanilla-seed0 runs/divopd-seed0 --figure curves.png
  divopd compare runs --target 70"""

PICTURES = (".png", ".svg", ".pdf")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="a run's folder, or a folder of runs; several seeds are averaged",
    )
    parser.add_argument("--json", action="store_true", help="one object with every figure")
    parser.add_argument(
        "--target",
        metavar="PERCENT",
        help="τ, the success rate to which cost is counted: a multiple of 5 (default: the runs' evaluation.target, "
        "else the largest multiple of 5 at or below vanilla's peak)",
    )
    parser.add_argument("--figure", type=Path, metavar="FILE.png", help="also draw the curves (.png, .svg or .pdf)")


def run(args: argparse.Namespace) -> int:
    if args.figure and args.figure.suffix not in PICTURES:
        raise InputError(f"--figure {args.figure}: expected a name that ends in {', '.join(PICTURES)}")
    from divopd.report.run_comparison import compare_runs

    target = None if args.target is None else _target(args.target)
    runs = _read(args.runs)
    comparison = compare_runs(runs, target=target)
    if args.json:
        print(json.dumps(comparison.as_json()))
    else:
        from divopd.report.run_tables import print_comparison

        print_comparison(comparison, clock=runs[0].clock)
    if args.figure:
        from divopd.report.curves import draw_curves

        draw_curves(runs, args.figure, target=comparison.target)
        print(f"picture: {args.figure}", file=sys.stderr)
    return 0


def _target(text: str) -> int:
    if not text.isdecimal() or int(text) not in range(5, 101, 5):
        raise InputError(f"--target is {text!r}; expected a success rate in percent, a multiple of 5 from 5 to 100")
    return int(text)


def _read(paths: Sequence[Path]) -> "list[RunFigures]":
    """All runs that are named or lie in a folder that is; of a folder's, those with nothing to compare are left out."""
    from divopd.report.run_comparison import refuse_unevaluated
    from divopd.report.runs import named_runs, read_run, run_folders

    named = set(named_runs(paths).values())
    runs: list[RunFigures] = []
    for name, folder in named_runs(run_folders(paths)).items():
        try:
            run = read_run(folder, name=name)
            refuse_unevaluated(run)
            runs.append(run)
        except InputError as error:
            if folder in named:
                raise
            tell(f"left out: {error}")
    if not runs:
        raise InputError(
            f"{paths[0]}: no run in it to compare; expected the folder of a run, or a folder of such folders"
        )
    return runs
