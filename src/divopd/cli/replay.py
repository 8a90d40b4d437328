"""`divopd replay`: composers over a recording, side by side."""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from divopd.composers import Composer, Decision
from divopd.errors import InputError
from divopd.methods import BASELINE, METHODS, make_composer
from divopd.replay import Recording, journal_replay, load_recording, load_turns, recording_of, replay, weighed_by_batch

HELP = "Run composers over a recording (a run, its store, or JSON lines) and compare what they would have trained."
EXAMPLE = """divopd replay turns.jsonl --method vanilla divopd divopd-adaptive
  divopd replay turns.jsonl --verdict
  divopd replay turns.jsonl --recorded --out runs/theirs"""

PICTURES = (".png", ".svg", ".pdf")
PROPOSED = "divopd"  # what a verdict is about unless other methods are named


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "recording", type=Path, metavar="RUN|TURNS.jsonl", help="a run's folder, a store, or JSON lines"
    )
    parser.add_argument(
        "--method", nargs="+", action="extend", metavar="NAME", help=f"one or more of: {', '.join(METHODS)}"
    )
    parser.add_argument("--updates", type=int, help="how many updates (default: the recording's own number)")
    parser.add_argument("--batch-size", type=int, default=64, metavar="B", help="turns in a batch (default 64)")
    parser.add_argument(
        "--pool-multiplier", type=int, default=4, metavar="C", help="pool size / batch size (default 4)"
    )
    parser.add_argument(
        "--cap", default="4", metavar="K", help="turns a rollout gives in the first pass, or none (default 4)"
    )
    parser.add_argument("--max-staleness", type=int, default=2, metavar="D", help="policy versions (default 2)")
    parser.add_argument("--max-pending-age", type=int, default=8, metavar="W", help="updates (default 8)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="for methods that draw (default 0)")
    parser.add_argument("--json", action="store_true", help="one object an update, with the selected turns")
    parser.add_argument(
        "--verdict",
        action="store_true",
        help=f"say in a few lines what a method would change, and what is known of its worth (default {PROPOSED}); "
        "with --json as one object",
    )
    parser.add_argument("--figure", type=Path, metavar="FILE.png", help="also draw the comparison (.png, .svg or .pdf)")
    parser.add_argument(
        "--recorded",
        action="store_true",
        help="replay nothing: with --out, make a run of the batches that a pool recorded beside the turns",
    )
    parser.add_argument(
        "--out", type=Path, metavar="RUN", help="also journal the replay of one method as a run, for explain and why"
    )


def run(args: argparse.Namespace) -> int:
    if args.updates is not None and args.updates < 1:
        raise InputError(f"--updates is {args.updates}; expected 1 or more")
    if args.figure and args.figure.suffix not in PICTURES:
        raise InputError(f"--figure {args.figure}: expected a name that ends in {', '.join(PICTURES)}")
    if args.verdict and (args.out or args.figure):
        raise InputError("--verdict says a few lines; give --out or --figure in a command of its own")
    if args.recorded:
        return _make_run(args)
    names = list(dict.fromkeys(args.method or METHODS))
    if args.verdict:
        names = list(dict.fromkeys([BASELINE, *(args.method or [PROPOSED])]))
        if len(names) == 1:
            raise InputError(f"--verdict compares a method with {BASELINE}; name another one, or none for {PROPOSED}")
    settings = {
        "batch_size": args.batch_size,
        "pool_multiplier": args.pool_multiplier,
        "cap": _cap(args.cap),
        "max_staleness": args.max_staleness,
        "max_pending_age": args.max_pending_age,
        "seed": args.seed,
    }
    for name in names:
        make_composer(name, **settings)  # what is wrong fails before anything is read
    if args.out and len(names) > 1:
        raise InputError(f"--out journals one method as a run, but {len(names)} were given; name it with --method")
    turns, recorded_updates = load_turns(args.recording) if args.out else ([], 0)  # with tokens for a run alone
    recording = recording_of(turns, updates=recorded_updates) if args.out else load_recording(args.recording)
    updates = args.updates or recording.updates
    composers = {name: make_composer(name, **settings, total_updates=updates) for name in names}
    if args.out:
        for composer in composers.values():
            journal_replay(turns, composer, updates=updates, run=args.out)
        print(f"run: {args.out}", file=sys.stderr)
    if args.verdict:
        return _print_verdict(args, recording, composers, updates=updates)
    if args.json:
        if told := weighed_by_batch(recording, names):
            print(told, file=sys.stderr)
        for name, composer in composers.items():
            _print_json(recording, composer, updates=updates, label={"method": name} if len(composers) > 1 else {})
        return 0
    from divopd.report.comparison import compare, comparison_table, draw_comparison

    comparison = compare(recording, composers, updates=updates)
    comparison_table(recording, comparison, title=f"{args.recording}: {len(recording.turns)} turns, {updates} updates")
    if args.figure:
        draw_comparison(comparison, args.figure)
        print(f"picture: {args.figure}", file=sys.stderr)
    return 0


def _make_run(args: argparse.Namespace) -> int:
    from divopd.recorder import journal_recorded

    if args.out is None or args.method or args.verdict or args.figure:
        raise InputError("--recorded makes a run of what was trained; give it --out RUN, and no method or figure")
    if not args.recording.is_file():
        raise InputError(f"{args.recording}: no such file; expected the TURNS.jsonl that a pool recorded")
    updates = journal_recorded(args.recording, run=args.out)
    print(f"run: {args.out} ({updates} updates)", file=sys.stderr)
    return 0


def _print_verdict(
    args: argparse.Namespace, recording: Recording, composers: dict[str, Composer], *, updates: int
) -> int:
    from divopd.experiments.evidence import known_evidence
    from divopd.printable import printable
    from divopd.report.comparison import compare
    from divopd.report.verdict import judge, verdict_lines

    comparison = compare(recording, composers, updates=updates)
    verdict = judge(recording, comparison, batch_size=args.batch_size, evidence=known_evidence())
    if verdict is None:
        raise InputError(
            f"{args.recording}: none of its {len(recording.turns)} turns can be trained; `divopd replay` without "
            "--verdict tells why"
        )
    if args.json:
        print(json.dumps(verdict.as_json()))
        return 0
    heading = f"{args.recording}: {verdict.turns} turns, {updates} updates of {args.batch_size}"
    print("\n".join([printable(heading), *verdict_lines(verdict)]))
    return 0


def _cap(text: str) -> int | None:
    if text == "none":
        return None
    if not text.isdigit():
        raise InputError(f"--cap is {text!r}; expected a number, or none for no cap")
    return int(text)


def _print_json(recording: Recording, composer: Composer, *, updates: int, label: dict[str, str]) -> None:
    for update, decision in enumerate(replay(recording, composer, updates=updates)):
        print(json.dumps({**label, **_as_json(decision, update=update)}))


def _as_json(decision: Decision, *, update: int) -> dict[str, Any]:
    return {
        "update": update,
        "selected": [list(c.key) for c in decision.selected],
        "weights": decision.weights,
        "pending": len(decision.pending),
        "stale": len(decision.stale),
        "aged_out": len(decision.aged_out),
        "invalid": dict(Counter(c.reason for c in decision.invalid)),
    }
