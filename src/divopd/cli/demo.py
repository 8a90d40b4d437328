"""`divopd demo`: the allocation problem on synthetic recordings, all composers side by side."""

import argparse
from pathlib import Path

from divopd.composers import METHODS, make_composer
from divopd.errors import InputError
from divopd.replay import recording_of
from divopd.synth import PRESETS, load_of, synthesize

HELP = "Synthesize a recording shaped like each of the paper's environments and replay every composer on it."
EXAMPLE = "divopd demo --out demo"

UPDATES = 100
SHOWN = [name for name in METHODS if name not in ("divopd-r", "tcod-f2b")]  # as composers: divopd and vanilla


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, default=Path("runs/demo"), help="folder for the pictures (default runs/demo)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="one environment instead of three")


def run(args: argparse.Namespace) -> int:
    from divopd.report.comparison import compare, comparison_table, draw_comparison

    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {args.out}: cannot make the folder ({error.strerror})") from None
    for name in list(PRESETS)[: 1 if args.quick else None]:
        model = PRESETS[name]
        recording = recording_of(synthesize(model, updates=UPDATES, seed=args.seed), updates=UPDATES)
        composers = {method: make_composer(method, total_updates=UPDATES) for method in SHOWN}
        comparison = compare(recording, composers, updates=UPDATES)
        comparison_table(
            comparison,
            title=f"{name}-like SYNTHETIC recording: {len(recording.turns)} turns, {UPDATES} updates, "
            f"load {load_of(model):.1f}",
        )
        picture = args.out / f"{name}.png"
        draw_comparison(comparison, picture)
        print(f"picture: {picture}\n")
    return 0
