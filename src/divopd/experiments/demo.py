"""The demo: vanilla and DivOPD on the default environment, same seeds, same number of updates, side by side.

Each is an ordinary `divopd train` in a process of its own; this one only watches their stores. A demo that was stopped
goes on where it was.
"""

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean
from time import sleep
from typing import Any

from divopd.config.files import shipped_configs
from divopd.errors import DivopdError
from divopd.experiments.preregistered import BUDGET, TARGETS
from divopd.metrics import final_five, mean_of_last, nauc
from divopd.report.runs import RunFigures
from divopd.store import Store

METHODS = ("vanilla", "divopd")
SEEDS = range(3)  # of each method; none of them is among those of the evidence
QUICK = ("learner.updates=8", "evaluation.every=2", "evaluation.tasks=12")
QUICK_SEEDS = range(1)
POLL_S = 0.5
# points: standard deviation of the difference between two methods at one seed, by the 32 seeds of the evidence
AREA_CHANCE, FINAL_CHANCE = 2.5, 4.5


class DemoFailed(DivopdError):
    """A training process of the demo ended early."""


@dataclass(frozen=True)
class Progress:
    """How far a method is: updates of all its seeds, and the success rates of the newest seed, in percent."""

    updates: int
    rates: tuple[float, ...]


def folder_of(out: Path, method: str, seed: int) -> Path:
    """Where the run of a method and a seed lies."""
    return out / f"{method}-seed{seed}"


def train_side_by_side(out: Path, settings: Sequence[str], *, seeds: Sequence[int]) -> Iterator[dict[str, Progress]]:
    """Train both methods at once, seed after seed, and tell again and again how far they are, until all is done."""
    before: dict[str, int] = dict.fromkeys(METHODS, 0)
    for seed in seeds:
        told: dict[str, Progress] = {}
        for step in _train_pair(out, settings, seed=seed):
            told = {method: Progress(before[method] + one.updates, one.rates) for method, one in step.items()}
            yield told
        before = {method: one.updates for method, one in told.items()}


def _train_pair(out: Path, settings: Sequence[str], *, seed: int) -> Iterator[dict[str, Progress]]:
    """Both methods at one seed."""
    folders = {method: folder_of(out, method, seed) for method in METHODS}
    with _processes(folders, [f"seed={seed}", *settings]) as processes:
        while True:
            codes = {method: process.poll() for method, process in processes.items()}
            for method, code in codes.items():
                if code:
                    raise DemoFailed(f"the {method} run ended with exit code {code}: {_last_line(folders[method])}")
            yield {method: _progress(folder) for method, folder in folders.items()}
            if all(code == 0 for code in codes.values()):
                return
            sleep(POLL_S)


@contextmanager
def _processes(folders: Mapping[str, Path], settings: Sequence[str]) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for method, folder in folders.items():
            with _log(folder).open("wb") as log:
                command = [sys.executable, "-m", "divopd", "train", *_arguments(folder, method, settings)]
                processes[method] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        yield processes
    finally:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            process.wait()


def _log(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.log")


def _arguments(folder: Path, method: str, settings: Sequence[str]) -> list[str]:
    if (folder / "store.db").exists():
        return ["--resume", str(folder)]
    overrides = [part for setting in settings for part in ("--set", setting)]
    return [str(shipped_configs() / "default" / f"{method}.yaml"), "--out", str(folder), *overrides]


def _last_line(folder: Path) -> str:
    lines = _log(folder).read_text(errors="replace").strip().splitlines()
    return f"{lines[-1] if lines else 'it said nothing'} (all of it: {_log(folder)})"


def _progress(folder: Path) -> Progress:
    if not (folder / "store.db").exists():
        return Progress(0, ())
    with Store.open_read_only(folder) as store:
        rates = tuple(one.success_rate for one in store.evaluations().values())
        return Progress(len(store.update_records()), rates)


# ── what the paper expects, and what was measured ─────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Finding:
    """One expectation of the paper and the means of both methods; `holds` is None if so few seeds cannot tell."""

    what: str
    vanilla: str
    divopd: str
    holds: bool | None


def findings(runs: Mapping[str, Sequence[RunFigures]]) -> list[Finding]:
    """What DivOPD should do better than vanilla, and whether it did in these runs, in the mean over seeds."""
    vanilla, divopd = (runs[method] for method in METHODS)
    area = f"nAUC@{_budget(vanilla)}"
    return [
        _composed("more effective rollouts in a batch", vanilla, divopd, "effective_rollouts", more=True),
        _composed("smaller share of the largest rollout", vanilla, divopd, "top1_share"),
        _fewer("fewer rollouts never selected", _never_used(vanilla), _never_used(divopd)),
        _composed("fewer dead rows", vanilla, divopd, "dead_share"),
        *(_cheaper(vanilla, divopd, target) for target in TARGETS["default"]),
        _more_success(f"higher area under the curve ({area})", _areas(vanilla), _areas(divopd), AREA_CHANCE),
        _more_success("higher mean of the last five evaluations", _finals(vanilla), _finals(divopd), FINAL_CHANCE),
    ]


def _never_used(runs: Sequence[RunFigures]) -> float:
    return fmean(run.utilization.never_selected for run in runs)


def _finals(runs: Sequence[RunFigures]) -> list[float]:
    return [final_five(run.rates)[0] for run in runs]


def _composed(
    what: str, vanilla: Sequence[RunFigures], divopd: Sequence[RunFigures], name: str, *, more: bool = False
) -> Finding:
    """A figure of the batches, in the mean of the last 40 % of updates."""
    before, after = (
        fmean(mean_of_last([getattr(batch, name) for batch in run.batches]) for run in of) for of in (vanilla, divopd)
    )
    return Finding(what, f"{before:.1f}", f"{after:.1f}", after > before) if more else _fewer(what, before, after)


def _fewer(what: str, vanilla: float, divopd: float) -> Finding:
    return Finding(what, f"{vanilla:.1%}", f"{divopd:.1%}", divopd < vanilla)


def _cheaper(vanilla: Sequence[RunFigures], divopd: Sequence[RunFigures], target: int) -> Finding:
    def cost(of: Sequence[RunFigures]) -> str:
        reached = [next((e for e in run.evaluations if e.success_rate >= target), None) for run in of]
        tokens = [one.costs.trained_tokens for one in reached if one]
        missed = f", {len(reached) - len(tokens)} of {len(of)} not reached" if len(tokens) < len(of) else ""
        return f"{fmean(tokens) / 1e3:.0f} k{missed}" if tokens else "not reached"

    return Finding(f"fewer trained tokens to {target} %", cost(vanilla), cost(divopd), holds=None)


def _more_success(what: str, vanilla: Sequence[float], divopd: Sequence[float], chance: float) -> Finding:
    """Decided only if it is beyond what chance makes of so few seeds."""
    gap = fmean(divopd) - fmean(vanilla)
    holds = None if abs(gap) < 2 * chance / sqrt(len(divopd)) else gap > 0
    return Finding(what, f"{fmean(vanilla):.1f} %", f"{fmean(divopd):.1f} %", holds)


def _budget(runs: Sequence[RunFigures]) -> int:
    """Updates of nAUC: as in the evidence, or all of a shorter run."""
    return min(BUDGET["default"], *(run.evaluations[-1].version for run in runs))


def _areas(runs: Sequence[RunFigures]) -> list[float]:
    return [nauc(run.curve, budget=_budget(runs)) for run in runs]


def closing(runs: Mapping[str, Sequence[RunFigures]], evidence: Mapping[str, Any]) -> str:
    """What these few seeds say about success, beside what many do."""
    vanilla, divopd = (_areas(runs[method]) for method in METHODS)
    gaps = [after - before for before, after in zip(vanilla, divopd, strict=True)]
    few = f"{len(gaps)} seeds" if len(gaps) > 1 else "One seed"
    each = f" ({', '.join(f'{gap:+.1f}' for gap in gaps)})" if len(gaps) > 1 else ""
    here = (
        f"What is in the batches (the first four lines) is certain. Success is not. {few} here: "
        f"DivOPD's nAUC minus vanilla's is {fmean(gaps):+.1f} points{each}; by chance alone one seed differs by 2 to 3."
    )
    known = evidence.get("default", {})
    if not known:
        return here
    seeds = known["divopd"]["nauc"]["seeds"]
    many = f"{_of_many('divopd', 'DivOPD', known)}; {_of_many('gate-only', 'dropping dead rows alone', known)}"
    return f"{here} {seeds} seeds: {many} (docs/evidence.md)."


def _of_many(arm: str, name: str, known: Mapping[str, Any]) -> str:
    one = known[arm]["nauc"]
    sure = "higher" if one["low"] > 0 else "lower" if one["high"] < 0 else "not shown to differ"
    return f"{name} {one['mean']:+.1f} [{one['low']:+.1f}, {one['high']:+.1f}], {sure}"
