"""The demo: vanilla and DivOPD on the default environment, same seed, same number of updates, side by side.

Each is an ordinary `divopd train` in a process of its own; this one only watches their stores. A demo that was stopped
goes on where it was.
"""

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import sleep

from divopd.config_files import shipped_configs
from divopd.errors import DivopdError
from divopd.report.run_comparison import RunComparison, Standing
from divopd.report.runs import RunFigures
from divopd.store import Store

METHODS = ("vanilla", "divopd")
QUICK = ("learner.updates=16", "evaluation.tasks=30")
POLL_S = 0.5


class DemoFailed(DivopdError):
    """A training process of the demo ended early."""


@dataclass(frozen=True)
class Progress:
    """How far a run is; the success rates are those measured so far, in percent."""

    updates: int
    rates: tuple[float, ...]


def train_side_by_side(out: Path, settings: Sequence[str], *, seed: int) -> Iterator[dict[str, Progress]]:
    """Train both methods at once under `out`, and tell again and again how far they are, until both are done."""
    with _processes(out, [f"seed={seed}", *settings]) as processes:
        while True:
            codes = {method: process.poll() for method, process in processes.items()}
            for method, code in codes.items():
                if code:
                    raise DemoFailed(f"the {method} run ended with exit code {code}: {_last_line(out, method)}")
            yield {method: _progress(out / method) for method in METHODS}
            if all(code == 0 for code in codes.values()):
                return
            sleep(POLL_S)


@contextmanager
def _processes(out: Path, settings: Sequence[str]) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for method in METHODS:
            with (out / f"{method}.log").open("wb") as log:
                command = [sys.executable, "-m", "divopd", "train", *_arguments(out / method, method, settings)]
                processes[method] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        yield processes
    finally:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            process.wait()


def _arguments(folder: Path, method: str, settings: Sequence[str]) -> list[str]:
    if (folder / "store.db").exists():
        return ["--resume", str(folder)]
    overrides = [part for setting in settings for part in ("--set", setting)]
    return [str(shipped_configs() / "default" / f"{method}.yaml"), "--out", str(folder), *overrides]


def _last_line(out: Path, method: str) -> str:
    log = out / f"{method}.log"
    lines = log.read_text(errors="replace").strip().splitlines()
    return f"{lines[-1] if lines else 'it said nothing'} (all of it: {log})"


def _progress(folder: Path) -> Progress:
    if not (folder / "store.db").exists():
        return Progress(0, ())
    with Store.open_read_only(folder) as store:
        evaluations = store.figures("evaluation")
        return Progress(len(store.figures("update")), tuple(one["success_rate"] for one in evaluations.values()))


# ── what the paper expects, and what was measured ─────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Finding:
    """One expectation of the paper and the figures of both runs; `holds` is None if it cannot be told."""

    what: str
    vanilla: str
    divopd: str
    holds: bool | None


def findings(comparison: RunComparison, runs: Mapping[str, RunFigures]) -> list[Finding]:
    """What DivOPD should do better than vanilla, and whether it did in these two runs."""
    vanilla, divopd = (_standing(comparison, runs[method]) for method in METHODS)
    found = [
        Finding(
            "more effective rollouts in a batch",
            f"{vanilla.effective_rollouts:.1f}",
            f"{divopd.effective_rollouts:.1f}",
            divopd.effective_rollouts > vanilla.effective_rollouts,
        ),
        _fewer("smaller share of the largest rollout", vanilla.top1_share, divopd.top1_share),
        _fewer("fewer rollouts never selected", vanilla.never_selected, divopd.never_selected),
        _fewer("fewer dead rows", vanilla.dead_share, divopd.dead_share),
    ]
    costs = [one.costs_to_target and one.costs_to_target.trained_tokens for one in (vanilla, divopd)]
    found.append(
        Finding(
            f"fewer trained tokens to {comparison.target} %",
            *(f"{cost / 1e6:.2f} M" if cost else "not reached" for cost in costs),
            holds=None if costs == [None, None] else bool(costs[1] and (not costs[0] or costs[1] < costs[0])),
        )
    )
    for what, name in (("higher peak", "peak"), ("higher mean of the last five", "final_five")):
        one, other = getattr(vanilla, name), getattr(divopd, name)
        found.append(Finding(f"{what} of the success rate", f"{one:.1f} %", f"{other:.1f} %", other > one))
    return found


def _fewer(what: str, vanilla: float, divopd: float) -> Finding:
    return Finding(what, f"{vanilla:.1%}", f"{divopd:.1%}", divopd < vanilla)


def _standing(comparison: RunComparison, run: RunFigures) -> Standing:
    return next(standing for standing in comparison.standings if standing.run == run.name)
