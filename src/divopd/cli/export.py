"""`divopd export`: a run's turns as JSON lines, or its student as a model."""

import argparse
from pathlib import Path

from divopd.errors import InputError
from divopd.store import Store
from divopd.turns import write_turns

HELP = (
    "Write every turn of a run as JSON lines, in arrival order, with the update at which it became available; or, with "
    "--model, the student of one of its policy versions as a model folder that transformers and vLLM load."
)
EXAMPLE = """divopd export runs/mine turns.jsonl
  divopd export runs/mine@50 --model my-student"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN[@VERSION]", help="a run's folder, or its store.db for turns; with --model "
                        "one of its versions (default: the latest)")  # fmt: skip
    parser.add_argument("out", type=Path, nargs="?", metavar="TURNS.jsonl", help="the file to write")
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="write the model into this folder instead")
    parser.add_argument("--force", action="store_true", help="replace the file or the model's folder if it exists")


def run(args: argparse.Namespace) -> int:
    if (args.out is None) == (args.model is None):
        raise InputError("expected one thing to write: TURNS.jsonl for the turns, or --model FOLDER for the student")
    return _export_turns(args) if args.model is None else _export_model(args)


def _export_turns(args: argparse.Namespace) -> int:
    with Store.open_read_only(args.run) as store, store.snapshot():
        if args.out.exists() and (not args.force or not args.out.is_file() or args.out.samefile(store.path)):
            raise InputError(f"{args.out} exists already; choose another name, or replace a file with --force")
        count = write_turns(args.out, store.turns())
    print(f"{count} turns written to {args.out}")
    return 0


def _export_model(args: argparse.Namespace) -> int:
    from divopd.extras import require

    require("train")
    from divopd.pipeline.model_export import export_model, refuse_target
    from divopd.pipeline.named_models import find_weights, load_config_of_run, load_policy, split_version
    from divopd.report.model_card import model_card, read_made

    run, asked = split_version(args.run)
    if not run.config.is_file():
        raise InputError(f"{args.run}: no run there; expected a folder that `divopd train` made, or RUN@VERSION")
    refuse_target(args.model, replace=args.force)  # before a model is loaded
    weights = find_weights(run, asked)
    config, version = load_config_of_run(run), int(weights.name)
    made = read_made(run, version=version)
    policy = load_policy(config, weights)
    card = model_card(config, made, name=run.path.resolve().name, version=version)
    export_model(policy, config, args.model, card=card, replace=args.force)
    own = made.evaluations.get(version)
    rate = f", success rate {own.success_rate:.1f} %" if own else ""
    print(f"{args.model}: version {version} of {run.path}{rate}; {args.model / 'README.md'} is its card")
    return 0
