"""Learning rates on seeds that no result uses: `python scripts/tune.py default --methods vanilla --lr 1e-4 3e-4`.

A run for every rate and seed goes to docs/tuning/results (those that are there are not made again); the table says
which rate is vanilla's best by the area under its curve, where its plateau is, and when it comes to 80 % of it.
"""

import argparse
from pathlib import Path
from statistics import fmean

from divopd.experiments.execution import Crew, missing_jobs
from divopd.experiments.results import Result, load_result
from divopd.experiments.wanted import Places, Wanted
from divopd.metrics import final_five, nauc

ROOT = Path(__file__).parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("setting")
    parser.add_argument("--methods", nargs="+", default=["vanilla"])
    parser.add_argument("--lr", nargs="+", required=True)
    parser.add_argument("--seeds", nargs="+", type=int, default=[2000, 2001, 2002, 2003])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=Path("runs/tuning"))
    args = parser.parse_args()
    places = Places(ROOT / "configs", args.runs, ROOT / "docs" / "tuning")
    wanted = {
        (method, rate): [Wanted(args.setting, method, seed, (f"learner.lr={rate}",), places) for seed in args.seeds]
        for rate in args.lr
        for method in args.methods
    }
    crew = Crew(args.jobs, log=args.runs / "tune.log")
    for job in crew.work(missing_jobs({run: () for runs in wanted.values() for run in runs})):
        if job is not None:
            print(f"{job.wanted.label}: {crew.failures.get(job.wanted.label, 'done')}", flush=True)
    for (method, rate), runs in wanted.items():
        results = [result for run in runs if (result := load_result(run)) is not None]
        if results:
            print(f"{method:12} lr {rate:8} {len(results)} seeds: {summary(results)}")


def summary(results: list[Result]) -> str:
    """Area, plateau (mean of the last five evaluations), and the first update at 80 % of the plateau."""
    curves = [one.run.curve for one in results]
    last = int(max(version for version, _ in curves[0]))
    area = fmean(nauc(curve, budget=last) for curve in curves)
    mean = {version: fmean(dict(curve)[version] for curve in curves) for version, _ in curves[0]}
    plateau, _ = final_five(list(mean.values()))
    first = next((version for version, rate in mean.items() if rate >= 0.8 * plateau), None)
    shown = " ".join(f"{rate:.0f}" for rate in mean.values())
    return f"nAUC@{last} {area:.1f}, plateau {plateau:.1f}, 80 % of it at update {first}; mean curve: {shown}"


if __name__ == "__main__":
    main()
