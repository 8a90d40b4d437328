"""`divopd report`: runs as one page that opens offline."""

import argparse
import sys
from pathlib import Path

from divopd.errors import InputError

HELP = "Write one self-contained page about runs: curves, costs, batches, fates, the queue, and rollouts to read."
EXAMPLE = "divopd report runs/vanilla-seed0 runs/divopd-seed0 --out report.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a run's folder, or a folder of runs")
    parser.add_argument(
        "--out", type=Path, default=Path("report.html"), metavar="FILE.html", help="default report.html"
    )


def run(args: argparse.Namespace) -> int:
    from divopd.report.page import write_report
    from divopd.report.runs import run_folders

    folders = run_folders(args.runs)
    if not folders:
        raise InputError(f"{args.runs[0]}: no run in it; expected the folder of a run, or a folder of such folders")
    write_report(folders, args.out)
    print(f"report: {args.out} ({args.out.stat().st_size / 1e6:.1f} MB)", file=sys.stderr)
    return 0
