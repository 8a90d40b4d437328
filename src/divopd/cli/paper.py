"""`divopd paper`: the paper's tables and figures at the scale of a laptop."""

import argparse
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from divopd.errors import InputError, UnknownNameError
from divopd.extras import require
from divopd.printable import tell

if TYPE_CHECKING:
    from divopd.experiments.execution import Crew, Job
    from divopd.experiments.items import Item
    from divopd.experiments.paper import Plan

HELP = """Make the paper's tables and figures with tiny models on the virtual clock, from runs that all items share.
Runs that are missing are made, stopped ones go on; give the same command again at any time."""
EXAMPLE = """divopd paper --list
  divopd paper main --jobs 2
  divopd paper --all --seeds 5"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="items of --list; claims: the table of claims")
    parser.add_argument("--all", action="store_true", help="all items and the table of claims (hours; may be stopped)")
    parser.add_argument("--list", action="store_true", help="show all items, their runs and the time they take")
    parser.add_argument("--quick", action="store_true", help="a few updates of two seeds: shows that it works, no more")
    parser.add_argument("--from-results", action="store_true", help="make no run; use stored results")
    parser.add_argument(
        "--seeds",
        type=int,
        metavar="N",
        help="the first N seeds, 100 … (default: 32 of the preregistered arms, 8 of others)",
    )
    parser.add_argument("--setting", action="append", default=[], metavar="NAME", help="only this setting")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at once, one core each (default 1)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override, for all runs")
    parser.add_argument("--out", type=Path, metavar="DIR", help="results, tables, figures (default docs)")
    parser.add_argument("--runs", type=Path, metavar="DIR", help="run folders; may be deleted (default runs/paper)")
    parser.add_argument("--configs", type=Path, default=Path("configs"), metavar="DIR", help="(default configs)")


def run(args: argparse.Namespace) -> int:
    for option in ("seeds", "jobs"):
        if getattr(args, option) is not None and getattr(args, option) < 1:
            raise InputError(f"--{option} is {getattr(args, option)}; expected 1 or more")
    if not (args.names or args.all or args.list):
        raise InputError("name one item or several, or give --all; `divopd paper --list` shows them")
    plan = _plan(args)
    if args.list:
        _print_list(plan)
        return 0
    from divopd.experiments.items import ITEMS

    for name in args.names:
        if name not in ITEMS and name != "claims":
            raise UnknownNameError("item", name, [*ITEMS, "claims"])
    items = [item for name, item in ITEMS.items() if args.all or name in args.names]
    failures = {} if args.from_results else _perform(plan, items, workers=args.jobs)
    _write_items(plan, items)
    if args.all or "claims" in args.names:
        _write_claims(plan)
    for failure in failures.values():
        tell(f"could not be made: {failure}")
    return 1 if failures else 0


def _plan(args: argparse.Namespace) -> "Plan":
    from divopd.experiments.paper import make_plan
    from divopd.experiments.wanted import QUICK, Places

    out = args.out or Path("runs/paper-quick" if args.quick else "docs")
    places = Places(args.configs, args.runs or (out / "runs" if args.quick else Path("runs/paper")), out)
    if not args.quick:
        return make_plan(places, settings=args.setting, seeds=args.seeds, overrides=args.set)
    settings = args.setting or ["default"]
    return make_plan(places, settings=settings, seeds=args.seeds or 2, overrides=[*QUICK, *args.set])


def _print_list(plan: "Plan") -> None:
    from divopd.experiments.paper import outlook
    from divopd.report.run_tables import new_table, plain_console
    from divopd.report.terminal import duration

    caption = "time: of one core, for the runs that are missing; items share runs, so --all takes less than the sum"
    headings = ["item", "what", "in the paper", "runs", "missing", "time"]
    table = new_table(f"settings: {', '.join(plan.settings)}", headings, texts=3, caption=caption)
    for one in outlook(plan):
        left = duration(one.seconds) if one.missing else "done"
        table.add_row(one.item.name, one.item.title, one.item.where, str(one.runs), str(one.missing), left)
    table.add_row("claims", "every numbered claim, with a verdict", "abstract, §1, §4", "", "", "seconds")
    plain_console().print(table)


def _perform(plan: "Plan", items: Iterable["Item"], *, workers: int) -> dict[str, str]:
    """Make the missing runs, with a bar on a terminal and a line per run elsewhere; returns what went wrong."""
    from divopd.experiments.execution import Crew, missing_jobs
    from divopd.experiments.paper import wanted_by

    crew = Crew(workers, log=plan.places.runs / "paper.log")
    if jobs := missing_jobs(wanted_by(plan, items)):
        require("train", "plots")  # not in every worker, nor after hours
        _watch(crew, jobs)
    return crew.failures


def _watch(crew: "Crew", jobs: Sequence["Job"]) -> None:
    """Let the crew work, and say how far it is and how long it will take."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    from divopd.experiments.execution import updates_done
    from divopd.report.terminal import duration

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stopped politely, it stops its workers
    console = Console(stderr=True, highlight=False)
    started, done = time.monotonic(), 0
    before = {job.wanted.label: updates_done(job) for job in jobs}
    unfinished = {job.wanted.label: job for job in jobs}
    total = sum(job.size - before[job.wanted.label] for job in jobs)
    columns = (TextColumn("{task.completed} of {task.total} updates"), BarColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)
        for job in crew.work(jobs):
            if job is not None:
                del unfinished[job.wanted.label]
                done += job.size - before[job.wanted.label]
            now = done + sum(updates_done(one) - before[label] for label, one in unfinished.items())
            left = f"; {duration((time.monotonic() - started) / now * (total - now))} left" if now else ""
            text = f"{len(jobs) - len(unfinished)} of {len(jobs)} runs{left}"
            bar.update(task, completed=now, description=text)
            if job is not None and not console.is_terminal:
                how = "failed" if job.wanted.label in crew.failures else "done"
                console.print(f"{job.wanted.label}: {how}; {text}", soft_wrap=True)


def _write_items(plan: "Plan", items: Iterable["Item"]) -> None:
    from divopd.experiments.paper import gather, make, write, write_index

    items = list(items)
    results = gather(plan, dict.fromkeys(arm for item in items for arm in item.arms))
    for item in items:
        made = make(item, results)
        if made is None:
            print(f"{item.name}: no results that suffice; leave --from-results out to make the runs", file=sys.stderr)
            continue
        for sheet in made.sheets:
            sheet.print()
        files = write(item, made, plan.places.out / "paper")
        write_index(plan.places.out / "paper")
        print(f"written: {', '.join(map(str, files))}", file=sys.stderr)


def _write_claims(plan: "Plan") -> None:
    from divopd.experiments.claims import judge_all
    from divopd.experiments.claims_page import sheets, write_claims
    from divopd.experiments.paper import gather

    judged = judge_all(gather(plan))
    for sheet in sheets(judged):
        sheet.print()
    files = write_claims(judged, plan.places.out)
    print(f"written: {', '.join(map(str, files))}", file=sys.stderr)
