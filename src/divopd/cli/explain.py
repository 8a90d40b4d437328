"""`divopd explain`: one batch as a table."""

import argparse
import json
from pathlib import Path
from typing import Any

from divopd.store import Store

HELP = "Show one batch: the rollouts in order, what each pass gave them, what stayed pending, what fell out and why."
EXAMPLE = "divopd explain runs/mine 12"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder, or its store.db")
    parser.add_argument("update", type=int, metavar="UPDATE", help="the index of the update, from 0")
    parser.add_argument("--json", action="store_true", help="one object")


def run(args: argparse.Namespace) -> int:
    from divopd.report.explanation import explain

    with Store.open_read_only(args.run) as store, store.snapshot():
        explanation = explain(store, args.update)
    if args.json:
        print(json.dumps(explanation))
    else:
        _print_table(explanation)
    return 0


def _print_table(explanation: dict[str, Any]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rollouts, settings = explanation["rollouts"], explanation["settings"]
    taken = [len(entry["selected"]) for entry in rollouts]
    waiting, fallen = (sum(len(entry[name]) for entry in rollouts) for name in ("pending", "fell_out"))
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), caption="turn:disagreement", caption_justify="left")
    table.add_column("rollout", overflow="fold", min_width=12)
    table.add_column("first\nseen", justify="right")
    for heading in ("selected", "stayed pending", "fell out"):
        table.add_column(heading, overflow="fold", ratio=1)
    cap = settings["cap"]
    several = cap is not None or any(turn["pass"] > 1 for entry in rollouts for turn in entry["selected"])
    show = _passes if several else _turns
    for entry in rollouts:
        seen = min(turn["first_seen"] for name in ("selected", "pending", "fell_out") for turn in entry[name])
        cells = (entry["rollout"], str(seen), show(entry["selected"]), _turns(entry["pending"]), _exits(entry))
        table.add_row(*map(Text, cells))
    console = Console()
    limits = f"batch size {settings['batch_size']}, {'no cap' if cap is None else f'cap {cap}'}"
    console.print(
        f"update {explanation['update']}, {settings['method']}: {sum(taken)} turns of {sum(map(bool, taken))} rollouts "
        f"selected ({limits}); {waiting} stayed pending, {fallen} fell out",
        markup=False,
        highlight=False,
    )
    console.print(table)


def _passes(selected: list[dict[str, Any]]) -> str:
    numbers = sorted({turn["pass"] for turn in selected})
    return "\n".join(f"pass {n}: {_turns([turn for turn in selected if turn['pass'] == n])}" for n in numbers)


def _turns(turns: list[dict[str, Any]]) -> str:
    return "  ".join(f"{t['turn']}:{'dead' if t['reason'] else format(t['disagreement'], '.2f')}" for t in turns)


def _exits(entry: dict[str, Any]) -> str:
    reasons = dict.fromkeys(turn["why"] for turn in entry["fell_out"])
    return "\n".join(
        f"{why}: {_ranges([turn['turn'] for turn in entry['fell_out'] if turn['why'] == why])}" for why in reasons
    )


def _ranges(turns: list[int]) -> str:
    """1-3, 7 for 1, 2, 3, 7: turns that fall out mostly do so in a row."""
    turns = sorted(turns)
    starts = [turn for turn in turns if turn - 1 not in turns]
    ends = [turn for turn in turns if turn + 1 not in turns]
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))
