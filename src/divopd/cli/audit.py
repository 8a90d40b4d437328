"""`divopd audit`: check a run."""

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from divopd.errors import UnknownNameError
from divopd.store import Store

HELP = "Check a run. `ledger` recomputes every batch from the journal and fails at the first difference."
EXAMPLE = "divopd audit ledger runs/mine"


def audit_ledger_of(run: Path) -> tuple[str, dict[str, Any]]:
    """One line for people, and the figures."""
    from divopd.audits.ledger import audit_ledger

    with Store.open_read_only(run) as store:
        report = audit_ledger(store)
    parts = report.account._asdict()
    put = parts.pop("put")
    sum_of_parts = " + ".join(f"{count} {fate.replace('_', ' ')}" for fate, count in parts.items())
    line = f"{report.updates} updates recomputed, all equal; {put} turns of {report.rollouts} rollouts = {sum_of_parts}"
    if report.settled:
        line += f" ({report.settled} settled: their tokens are gone and could not be measured again)"
    return line, asdict(report) | {"account": report.account._asdict()}


AUDITS: dict[str, Callable[[Path], tuple[str, dict[str, Any]]]] = {"ledger": audit_ledger_of}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help=f"one of: {', '.join(AUDITS)}")
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder, or its store.db")
    parser.add_argument("--json", action="store_true", help="the figures as one object")


def run(args: argparse.Namespace) -> int:
    if args.name not in AUDITS:
        raise UnknownNameError("audit", args.name, AUDITS)
    line, figures = AUDITS[args.name](args.run)
    print(json.dumps(figures) if args.json else line)
    return 0
