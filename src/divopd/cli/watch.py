"""`divopd watch`: the page of a run, live."""

import argparse
import sys
from pathlib import Path

HELP = "Show a run, or a folder of runs, on a page that only this machine can open, live while the run goes on."
EXAMPLE = "divopd watch runs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder, or a folder of runs")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="default: any free one")


def run(args: argparse.Namespace) -> int:
    from divopd.report.page.server import serve

    serve(args.run, port=args.port, announce=_announce)
    return 0


def _announce(address: str) -> None:
    print(address, flush=True)
    print("open this address in a browser on this machine; Ctrl-C ends it", file=sys.stderr)
