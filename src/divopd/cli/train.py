"""`divopd train`: the main job."""

import argparse
import shlex
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from divopd.errors import DivopdError, InputError
from divopd.extras import require
from divopd.printable import printable, tell

if TYPE_CHECKING:
    from divopd.config import Config
    from divopd.pipeline.wishes import Wishes

HELP = "Train a student against a frozen teacher: explorers, teacher, queue, composer and learner at once."
PLAYED = ("environment.", "evaluation.", "explorer.", "prompts.", "seed=")  # overrides that an evaluation follows
EXAMPLE = "divopd train default/divopd --out runs/mine --set learner.updates=50"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "config", nargs="?", metavar="CONFIG", help="a YAML file, or a name such as default/divopd; not with --resume"
    )
    parser.add_argument("--out", type=Path, metavar="RUN", help="the run's folder (default runs/SETTING-METHOD-seedN)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override, e.g. learner.lr=1e-5"
    )
    parser.add_argument(
        "--machine",
        metavar="NAME",
        help="plan for and run on this machine, over what CONFIG says and below --set: "
        "laptop, 8xh100, 2x8xh100, 4x8xh100, or a FILE.yaml of your own",
    )
    parser.add_argument("--resume", type=Path, metavar="RUN", help="go on with a run that was stopped or killed")
    parser.add_argument("--dry-run", action="store_true", help="check everything, print the plan, and stop")
    parser.add_argument(
        "--grace",
        type=_seconds,
        default=25.0,
        metavar="SECONDS",
        help="after SIGTERM, end within so many seconds with a checkpoint if it can be made by then, exit code 143; "
        "a second SIGTERM ends at once; SIGUSR1 makes a checkpoint and goes on (default 25)",
    )


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < inf:
        raise ValueError
    return seconds


def run(args: argparse.Namespace) -> int:
    if (args.config is None) == (args.resume is None):
        raise InputError("give a CONFIG to start a run, or --resume RUN to go on with one")
    require("train")  # before a folder is made
    from divopd.config import load_config
    from divopd.config.files import find_config
    from divopd.run.folder import RunFolder
    from divopd.run.stored_config import load_run_config

    if args.resume:
        if args.set or args.machine:
            option = "--set" if args.set else "--machine"
            raise InputError(f"{option} cannot change a run that has begun; start a new one with --out")
        folder = args.resume
        file = RunFolder(folder).config
        config = load_run_config(RunFolder(folder))
    else:
        file = args.config  # as it was given: evaluate knows the same names
        config = load_config(file, args.set, machine=args.machine)
        place = find_config(file).resolve()
        setting = place.parent.name or place.stem
        folder = args.out or Path("runs") / f"{setting}-{config.method}-seed{config.seed}"
    from divopd.models.hub import fetch_models
    from divopd.plan.dry_run import check_disk, check_start, local_models, make_plan

    told = [one for one in args.set if one.startswith(PLAYED)]
    machine = ["--machine", args.machine] if args.machine else []
    how = shlex.join(["--config", str(file), *machine, *(part for one in told for part in ("--set", one))])
    if args.dry_run:
        plan = make_plan(config, out=folder, how=how)
        print(printable("\n".join(plan.lines)))
        plan.refuse_problems()
        return 0
    if fetch_models(local_models(config).values()):
        config = load_config(
            file, args.set, machine=args.machine
        )  # a student that has come may say the form of its answers
    notes = check_start(config, how=None if args.resume else how)  # a run that goes on was told when it began
    from divopd.pipeline.begin import begin_run
    from divopd.pipeline.wishes import TERMINATED, Stopped, wishes_by_signal

    if not args.resume:
        check_disk(config, folder)
        begin_run(config, folder)
    for note in notes:
        tell(note)
    with wishes_by_signal(grace_s=args.grace, resume=f"divopd train --resume {shlex.quote(str(folder))}") as wishes:
        try:
            _train(config, folder, wishes)
        except Stopped:
            return TERMINATED
    return 0


def _train(config: "Config", folder: Path, wishes: "Wishes") -> None:
    from divopd.pipeline.begin import go_on_holding
    from divopd.records import Observers
    from divopd.report.sample_rollouts import newest_rollouts
    from divopd.report.terminal import TerminalView
    from divopd.run.lock import RunLock
    from divopd.run.loggers import Loggers

    settings = config.resolved()
    shown = partial(newest_rollouts, folder, settings)
    with (
        RunLock(folder),  # before a file of the run is touched
        TerminalView(config) as view,
        Loggers(folder, config.loggers, settings, rollouts=shown) as loggers,
    ):
        go_on_holding(config, folder, observer=Observers(view, loggers), wishes=wishes)
    view.summary(folder)
    _write_report(folder)


def _write_report(folder: Path) -> None:
    """A run whose report cannot be written has succeeded all the same."""
    from divopd.report.page import write_report

    try:
        write_report([folder], folder / "report.html")
        print(f"report: {folder / 'report.html'}")
    except DivopdError as error:
        tell(f"no report: {error}")
