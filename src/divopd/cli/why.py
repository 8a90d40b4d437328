"""`divopd why`: what became of every turn of a rollout, in a sentence each."""

import argparse
import json
from pathlib import Path

from divopd.printable import printable
from divopd.store import Store

HELP = "Tell what became of every turn of a rollout, and why."
EXAMPLE = "divopd why runs/mine e1.7-42"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder, or its store.db")
    parser.add_argument("rollout", metavar="ROLLOUT", help="the id of the rollout")
    parser.add_argument("--json", action="store_true", help="one object, with a sentence for every turn")


def run(args: argparse.Namespace) -> int:
    from divopd.report.fates import counted, why

    with Store.open_read_only(args.run) as store:
        told = why(store, args.rollout)
    if args.json:
        print(json.dumps(told))
        return 0
    heading = (
        f"rollout {told['rollout']}: {counted(len(told['turns']), 'turn')} of task {told['task']!r}, "
        f"by policy version {told['version']}, in the queue from update {told['available_at']} on"
    )
    print(printable(heading))
    for turn in sorted([*told["turns"], *told["teacher_turns"]], key=lambda turn: turn["turn"]):
        print(printable(f"  {turn['sentence']}"))
    for call in told.get("calls", ()):
        print(printable(f"  {call['sentence']}"))
    for line in told.get("program", ()):
        print(printable(f"  {line}"))
    return 0
