"""List the environments, or the tasks of one."""

import argparse
import json

from divopd.printable import printable

HELP = "List the environments, what they need and how to get it, or the tasks of one."
EXAMPLE = "divopd envs --tasks scienceworld --split held-out --json | head -256"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tasks", metavar="ENV", help="print the tasks of this environment, in the order of their use")
    parser.add_argument("--split", help="which tasks: train, held-out, valid_seen, test, … (default: train)")
    parser.add_argument("--json", action="store_true", help="one JSON value a line: a task, or an environment")


def run(args: argparse.Namespace) -> int:
    from divopd.environments import tasks

    if args.tasks:
        for task in tasks(args.tasks, args.split or "train"):
            print(json.dumps(task) if args.json else printable(task))
    elif args.json:
        for line in _lines():
            print(json.dumps(line))
    else:
        _print_table()
    return 0


def _lines() -> list[dict[str, object]]:
    from divopd.environments import ENVIRONMENTS, missing_parts

    return [
        {
            "environment": name,
            "summary": entry.summary,
            "missing": missing_parts(name),
            "install": entry.install,
            "splits": list(entry.splits),
            "horizon": entry.horizon,
            "evaluation": [entry.evaluation_split, entry.evaluation_tasks],
        }
        for name, entry in ENVIRONMENTS.items()
    ]


def _print_table() -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("environment", "what", "turns", "evaluation", "state"):
        table.add_column(heading, no_wrap=heading == "environment")
    missing = []
    for line in _lines():
        split, count = line["evaluation"]  # type: ignore[misc]
        state = f"missing: {', '.join(line['missing'])}" if line["missing"] else "ready"  # type: ignore[arg-type]
        table.add_row(
            str(line["environment"]), str(line["summary"]), str(line["horizon"]), f"{count} of {split}", state
        )
        if line["missing"]:
            missing.append(f"  {line['environment']}: {line['install']}")
    console = Console()
    console.print(table)
    if missing:
        console.print("To install what is missing:", *missing, sep="\n", markup=False, highlight=False, soft_wrap=True)
