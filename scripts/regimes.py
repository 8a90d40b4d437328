"""Look for a regime like the paper's: `python scripts/regimes.py default --library RUN`.

docs/tuning/regimes.yaml says what is tried and in which order; every trial becomes a line of docs/tuning/SETTING.jsonl,
and those that are there are not made again. `--record RUN` makes the run whose rollouts are used.
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from divopd.experiments.regimes import PAPER, Library, Range, Tried, best_of, grid, search, try_regime
from divopd.pipeline.begin import begin_run, go_on

ROOT = Path(__file__).parent.parent
TUNING = ROOT / "docs" / "tuning"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("setting", help="a setting of docs/tuning/regimes.yaml")
    parser.add_argument("--library", type=Path, required=True, metavar="RUN", help="the run whose rollouts are used")
    parser.add_argument("--record", action="store_true", help="make that run first")
    args = parser.parse_args()
    plan = yaml.safe_load((TUNING / "regimes.yaml").read_text(encoding="utf-8"))
    setting = plan["settings"][args.setting]
    if args.record:
        record(ROOT / "configs" / args.setting, setting["record"], args.library)
    file = TUNING / f"{args.setting}.jsonl"
    known = [Tried.from_json(json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []
    tried: list[Tried] = []
    with file.open("a", encoding="utf-8") as lines:
        for one in search(trials(args.setting, setting, known, Library.of(args.library), seeds=plan["seeds"])):
            tried.append(one)
            if one not in known:
                print(json.dumps(asdict(one)), file=lines, flush=True)
            print(f"{len(tried)}: distance {one.distance:.3f}, best {best_of(tried).distance:.3f}", flush=True)
    best = best_of(tried)
    print(f"{' '.join(best.overrides)}\n{json.dumps(best.figures, indent=1)}\noutside: {best.distances or 'nothing'}")


def trials(
    name: str, setting: Mapping[str, Any], known: list[Tried], library: Library, *, seeds: list[int]
) -> Iterator[Tried]:
    """Every regime of the grid, from the file or tried now; divopd only where vanilla is not yet too far."""
    by_overrides = {one.overrides: one for one in known}
    fixed = [f"{key}={value}" for key, value in setting["fixed"].items()]
    best = float("inf")
    for overrides in grid(setting["grid"]):
        one = by_overrides.get(overrides) or try_regime(
            ROOT / "configs" / name,
            overrides,
            library,
            fixed=fixed,
            seeds=seeds,
            ranges=ranges(setting.get("without", ())),
            limit=best,
        )
        best = min(best, one.distance)
        yield one


def ranges(without: Any) -> dict[str, dict[str, Range]]:
    """The paper's, without figures that say nothing in this environment."""
    return {
        method: {name: wanted for name, wanted in of.items() if name not in without} for method, of in PAPER.items()
    }


def record(folder: Path, overrides: Mapping[str, Any], run: Path) -> None:
    from divopd.config import load_config
    from divopd.records import Observers

    said = [f"{key}={value}" for key, value in overrides.items()]
    config = load_config(folder / "vanilla.yaml", [*said, "evaluation.every=1000", "evaluation.tasks=1"])
    begin_run(config, run)
    go_on(config, run, observer=Observers())


if __name__ == "__main__":
    main()
