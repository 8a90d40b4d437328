"""`divopd compare`: runs side by side."""

import argparse
import json
import sys
from pathlib import Path

from divopd.errors import InputError

HELP = "Compare runs: success rates, cost to the target in every currency, and how the experience was used."
EXAMPLE = "divopd compare runs/vanilla-seed0 runs/divopd-seed0 --figure curves.png"

PICTURES = (".png", ".svg", ".pdf")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a run's folder; several seeds are averaged")
    parser.add_argument("--json", action="store_true", help="one object with every figure")
    parser.add_argument("--figure", type=Path, metavar="FILE.png", help="also draw the curves (.png, .svg or .pdf)")


def run(args: argparse.Namespace) -> int:
    if args.figure and args.figure.suffix not in PICTURES:
        raise InputError(f"--figure {args.figure}: expected a name that ends in {', '.join(PICTURES)}")
    from divopd.report.run_comparison import compare_runs
    from divopd.report.runs import named_runs, read_run

    runs = [read_run(path, name=name) for name, path in named_runs(args.runs).items()]
    comparison = compare_runs(runs)
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
