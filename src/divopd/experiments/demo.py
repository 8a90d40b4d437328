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
from divopd.report.run_comparison import TARGETS, RunComparison, Standing
from divopd.report.runs import RunFigures
from divopd.store import Store

METHODS = ("vanilla", "divopd")
WHOLE = ("evaluation.tasks=60",)  # 31 evaluations of 140 tasks would take longer than all the rest
QUICK = ("learner.updates=16", "evaluation.every=4", "evaluation.tasks=30")
POLL_S = 0.5
CHANCE = 7.0  # points: standard deviation between two methods at one seed with 140 tasks; 5 to 7 were measured
ONE_SEED = (
    "One seed cannot decide which method learns better. What is in the batches (the first four lines) is certain. "
    "Success is not: by chance alone two methods differ at one seed by 5 to 7 points (standard deviation with 140 "
    "tasks; more with fewer), and the tokens to a success rate change with it. docs/default-setting.md has five seeds."
)


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
        rates = tuple(one.success_rate for one in store.evaluations().values())
        return Progress(len(store.update_records()), rates)


# ── what the paper expects, and what was measured ─────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Finding:
    """One expectation of the paper and the figures of both runs; `holds` is None if one seed cannot tell."""

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
    for target in TARGETS:
        costs = (_cost(one, target) for one in (vanilla, divopd))
        found.append(Finding(f"fewer trained tokens to {target} %", *costs, holds=None))
    found.append(_more_success("higher area under the curve (nAUC)", vanilla.nauc, divopd.nauc))
    for what, name in (("higher peak", "peak"), ("higher mean of the last five", "final_five")):
        found.append(_more_success(f"{what} of the success rate", getattr(vanilla, name), getattr(divopd, name)))
    return found


def _cost(standing: Standing, target: int) -> str:
    one = next(one for one in standing.to_targets if one.target == target)
    return f"{one.costs.trained_tokens / 1e6:.2f} M at update {one.version}" if one.costs else "not reached"


def _more_success(what: str, vanilla: float | None, divopd: float | None) -> Finding:
    """Decided only if it is beyond what chance makes of one seed."""
    if vanilla is None or divopd is None:
        return Finding(what, "–", "–", None)
    holds = None if abs(divopd - vanilla) < 2 * CHANCE else divopd > vanilla
    return Finding(what, f"{vanilla:.1f} %", f"{divopd:.1f} %", holds)


def _fewer(what: str, vanilla: float, divopd: float) -> Finding:
    return Finding(what, f"{vanilla:.1%}", f"{divopd:.1%}", divopd < vanilla)


def _standing(comparison: RunComparison, run: RunFigures) -> Standing:
    return next(standing for standing in comparison.standings if standing.run == run.name)
