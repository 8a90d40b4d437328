"""`divopd audit`: check a run, or measure how it used its experience."""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from divopd.audits.table import AUDITS, TRUST, uncapped_row
from divopd.errors import InputError, UnknownNameError
from divopd.store import Store, is_store

HELP = """Check a run, or measure it.
  ledger       recompute every batch from the journal; fails at the first difference
  utilization  rollouts that no batch used, for every composer on the same turns, beside the bound
  selection    depth, outcome and disagreement of the trained turns through the stages gate, coverage, focus;
               what the gate rejects: truncated, failed, unscored
  retention    what focus keeps and drops
  stability    cached disagreement against the same recomputed at later versions (needs weights)
  geometry     selected gradients of the last 8 updates against the pool's gradient, for every composer, and how much
               further an oracle gets than the best of them (needs weights: audits.keep_last)
  cost         tokens and seconds of explorers, teacher and learner
  time         how the seconds of an update follow the tokens of its batch; updates + waits against the clock
  kinds        which kinds of tasks arrive, are used and are trained: whether one starves
Each but ledger prints a table and writes NAME.json and NAME.png."""
EXAMPLE = """divopd audit utilization runs/mine
  divopd audit selection turns.jsonl --cap 3 --out audits
  the paper's table of utilization, with its row of divopd without a cap on the recording of its own run:
  divopd train configs/default/divopd.yaml --out runs/divopd
  divopd train configs/default/divopd.yaml --set composer.cap=null --out runs/uncapped
  divopd audit utilization runs/divopd --first 100 --uncapped runs/uncapped"""

NUMBERS = ("batch_size", "pool_multiplier", "cap", "max_staleness", "max_pending_age", "seed")


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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help=f"one of: ledger, {', '.join(AUDITS)}")
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a run's folder, its store.db, or JSON lines")
    parser.add_argument("--json", action="store_true", help="print the figures instead: an object, by run if several")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where files go (default: the run's folder, or here)")
    parser.add_argument(
        "--first", metavar="N", help="only the first N updates (default: all; not for ledger, cost and kinds)"
    )
    parser.add_argument(
        "--uncapped",
        type=Path,
        metavar="RUN",
        help="utilization only: one more row, divopd without a cap on the recording of this run of its own, whole",
    )
    parser.add_argument(
        "--trust-environment",
        action="store_true",
        help="kinds only: let the code of the run's own environment (FILE.py:CLASS) tell the kinds of its tasks",
    )
    for number in NUMBERS:
        option = f"--{number.replace('_', '-')}"
        parser.add_argument(option, metavar="N", help="the composer's (default: the run's own; the paper's for a file)")


def run(args: argparse.Namespace) -> int:
    if args.name != "ledger" and args.name not in AUDITS:
        raise UnknownNameError("audit", args.name, ["ledger", *AUDITS])
    _refuse_what_does_not_fit(args)
    for path in [*args.runs, *([args.uncapped] if args.uncapped else [])]:
        if not path.exists():
            raise InputError(f"{path}: no such run or recording; expected a run's folder, a store.db or a .jsonl file")
    names = _names(args.runs)
    if args.name == "ledger":
        ledgers = {name: audit_ledger_of(path) for name, path in names.items()}
        _print_ledgers(ledgers, as_json=args.json)
        return 0
    changes = {name: _number(name, text) for name in (*NUMBERS, "first") if (text := getattr(args, name)) is not None}
    if args.trust_environment:
        changes[TRUST] = True
    with _counter(f"{args.name}: steps done") as count:
        figures = {name: AUDITS[args.name](path, changes, count) for name, path in names.items()}
        if args.uncapped:
            [audited] = figures.values()
            audited |= uncapped_row(args.uncapped)
    if args.json:
        print(json.dumps(figures if len(figures) > 1 else next(iter(figures.values()))))
    else:
        from divopd.report.audit_tables import print_audit

        print_audit(args.name, figures)
    _write(args.name, figures, args.out or _home(args.runs))
    return 0


def _refuse_what_does_not_fit(args: argparse.Namespace) -> None:
    if args.first is not None and args.name == "ledger":
        raise InputError(f"--first is {args.first!r}; expected nothing there: the ledger is checked whole")
    if args.first is not None and not (args.first.isdecimal() and int(args.first)):
        raise InputError(f"--first is {args.first!r}; expected a number, 1 or more")
    if args.trust_environment and args.name != "kinds":
        raise InputError(f"--trust-environment is of `audit kinds`; {args.name} runs no code of an environment")
    if args.uncapped and (args.name != "utilization" or len(args.runs) > 1):
        raise InputError(f"--uncapped {args.uncapped}: expected `audit utilization` of one run, to which it adds a row")


def _print_ledgers(ledgers: dict[str, tuple[str, dict[str, Any]]], *, as_json: bool) -> None:
    several = len(ledgers) > 1
    if as_json:
        figures = {name: figures for name, (_, figures) in ledgers.items()}
        print(json.dumps(figures if several else next(iter(figures.values()))))
    else:
        for name, (line, _) in ledgers.items():
            print(f"{name}: {line}" if several else line)


def _write(audit: str, figures: dict[str, Any], folder: Path) -> None:
    from divopd.report import audit_figures

    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{audit}.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{folder}: cannot write there ({error.strerror}); choose another folder with --out") from None
    getattr(audit_figures, f"draw_{audit}")(figures, folder / f"{audit}.png")
    print(f"written: {folder / audit}.json, {folder / audit}.png", file=sys.stderr)


def _names(paths: list[Path]) -> dict[str, Path]:
    """The last part of each path, or the whole path where two end alike."""
    whole = list(dict.fromkeys(path.resolve() for path in paths))
    places = {path: path.parent if path.name == "store.db" and is_store(path) else path for path in whole}
    ends = [place.name for place in places.values()]
    return {place.name if ends.count(place.name) == 1 else str(place): path for path, place in places.items()}


def _home(paths: list[Path]) -> Path:
    return paths[0] / "audits" if len(paths) == 1 and paths[0].is_dir() else Path("audits")


def _number(name: str, text: str) -> int | None:
    if name == "cap" and text == "none":
        return None
    if not text.isdigit():
        expected = "a number, or none for no cap" if name == "cap" else "a number, 0 or more"
        raise InputError(f"--{name.replace('_', '-')} is {text!r}; expected {expected}")
    return int(text)


class _counter:
    """Says on a terminal how far a long audit has got."""

    def __init__(self, what: str) -> None:
        from rich.console import Console
        from rich.progress import Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn(what + ": {task.completed}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(what)

    def __enter__(self) -> Callable[[int], None]:
        self._bar.start()
        return lambda number: self._bar.advance(self._task)

    def __exit__(self, *failure: object) -> None:
        self._bar.stop()
