"""`divopd train`: the main job."""

import argparse
import sys
from pathlib import Path
from typing import Any

from divopd.errors import DivopdError, InputError
from divopd.extras import require

HELP = "Train a student against a frozen teacher: explorers, teacher, queue, composer and learner at once."
EXAMPLE = "divopd train configs/default/divopd.yaml --out runs/mine --set learner.updates=50"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, nargs="?", metavar="CONFIG", help="a YAML file; not with --resume")
    parser.add_argument("--out", type=Path, metavar="RUN", help="the run's folder (default runs/SETTING-METHOD-seedN)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override, e.g. learner.lr=1e-5"
    )
    parser.add_argument("--resume", type=Path, metavar="RUN", help="go on with a run that was stopped or killed")
    parser.add_argument("--dry-run", action="store_true", help="check everything, print the plan, and stop")


def run(args: argparse.Namespace) -> int:
    if (args.config is None) == (args.resume is None):
        raise InputError("give a CONFIG to start a run, or --resume RUN to go on with one")
    require("train")  # before a folder is made
    from divopd.config import load_config

    if args.resume:
        if args.set:
            raise InputError("--set cannot change a run that has begun; start a new one with --out")
        folder = args.resume
        config = load_config(folder / "config.yaml")
    else:
        config = load_config(args.config, args.set)
        setting = args.config.resolve().parent.name or args.config.stem
        folder = args.out or Path("runs") / f"{setting}-{config.method}-seed{config.seed}"
    from divopd.planning import check_start, make_plan

    if args.dry_run:
        plan = make_plan(config, out=folder)
        print("\n".join(plan.lines))
        plan.refuse_problems()
        return 0
    for note in check_start(config):
        print(f"divopd: {note}", file=sys.stderr)
    from divopd.loggers import Loggers
    from divopd.pipeline.begin import begin_run, make_run
    from divopd.report.terminal import TerminalView

    if not args.resume:
        begin_run(config, folder)
    with TerminalView(config) as view, Loggers(folder, config.loggers, config.resolved()) as loggers:

        def report(kind: str, figures: dict[str, Any]) -> None:
            view.report(kind, figures)
            loggers.report(kind, figures)

        make_run(config, folder, report=report).run()
    view.summary(folder)
    _write_report(folder)
    return 0


def _write_report(folder: Path) -> None:
    """A run whose report cannot be written has succeeded all the same."""
    from divopd.report.page import write_report

    try:
        write_report([folder], folder / "report.html")
        print(f"report: {folder / 'report.html'}")
    except DivopdError as error:
        print(f"divopd: no report: {error}", file=sys.stderr)
