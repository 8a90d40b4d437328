"""`divopd synth`: a synthetic recording, to see the allocation problem without any model."""

import argparse
from dataclasses import replace
from pathlib import Path

from divopd.errors import InputError, UnknownNameError
from divopd.synth import PRESETS, QueueModel, load_of, mean_turns, synthesize, with_load
from divopd.turns import write_turns

HELP = "Make a SYNTHETIC recording from a stated queue model, shaped like one of the paper's environments."
EXAMPLE = "divopd synth alfworld --out turns.jsonl --updates 100 --load 2.3"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("preset", metavar="PRESET", help=", ".join(PRESETS))
    parser.add_argument("--out", required=True, type=Path, metavar="TURNS.jsonl", help="where to write the turns")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same turns (default 0)")
    parser.add_argument("--updates", type=int, default=100, help="learner updates to cover (default 100)")
    pressure = parser.add_mutually_exclusive_group()
    pressure.add_argument("--load", type=float, help="turns that arrive / turns that are trained; sets the explorers")
    pressure.add_argument("--explorers", type=int, help="rollouts in flight; shows the load they produce")
    parser.add_argument("--batch-size", type=int, help="turns that one update trains (preset: 64)")
    parser.add_argument("--update-seconds", type=float, help="how long an update takes")
    parser.add_argument("--rollout-seconds", type=float, help="what a rollout takes besides its turns: reset, scoring")
    parser.add_argument("--turn-seconds", type=float, help="how long one turn takes to generate and act")
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")


def run(args: argparse.Namespace) -> int:
    model = _model(args)
    if args.out.exists() and not args.force:
        raise InputError(f"{args.out} exists; choose another --out, or pass --force to overwrite it")
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        turns = synthesize(model, updates=args.updates, seed=args.seed)
        expected = load_of(model) * model.batch_size * args.updates
        count = write_turns(args.out, progress.track(turns, total=expected, description="synthetic turns"))
    print(
        f"{args.out}: {count} SYNTHETIC turns ({args.preset}-like, seed {args.seed}, {args.updates} updates)\n"
        f"{model.explorers} explorers, rollouts of {mean_turns(model):.1f} turns on average, an update every "
        f"{model.update_seconds:g} s:\nload {count / args.updates / model.batch_size:.2f} "
        f"(turns that arrive / turns that batches of {model.batch_size} train)"
    )
    return 0


def _model(args: argparse.Namespace) -> QueueModel:
    if args.preset not in PRESETS:
        raise UnknownNameError("preset", args.preset, PRESETS)
    numbers = ("updates", "load", "explorers", "batch_size", "update_seconds", "rollout_seconds", "turn_seconds")
    for name in numbers:
        value = getattr(args, name)
        if value is not None and not 0 < value < 1e9:
            raise InputError(f"--{name.replace('_', '-')} is {value}; expected more than 0")
    given = {name: getattr(args, name) for name in numbers[2:] if getattr(args, name) is not None}
    model = replace(PRESETS[args.preset], **given)
    return model if args.load is None else with_load(model, args.load)
