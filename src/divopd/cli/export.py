"""`divopd export`: a run's turns as JSON lines."""

import argparse
from pathlib import Path

from divopd.errors import InputError
from divopd.store import Store
from divopd.turns import write_turns

HELP = "Write every turn of a run as JSON lines, in arrival order, with the update at which it became available."
EXAMPLE = "divopd export runs/mine turns.jsonl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder, or its store.db")
    parser.add_argument("out", type=Path, metavar="TURNS.jsonl", help="the file to write")
    parser.add_argument("--force", action="store_true", help="replace the file if it exists")


def run(args: argparse.Namespace) -> int:
    with Store.open_read_only(args.run) as store, store.snapshot():
        if args.out.exists() and (not args.force or not args.out.is_file() or args.out.samefile(store.path)):
            raise InputError(f"{args.out} exists already; choose another name, or replace a file with --force")
        count = write_turns(args.out, store.turns())
    print(f"{count} turns written to {args.out}")
    return 0
