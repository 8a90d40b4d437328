"""One run's folder as the figures that a comparison, a picture or a summary needs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

from divopd.composers.adaptive import offline_bound
from divopd.composers.composer import Settings
from divopd.config_files import read_layers
from divopd.errors import InputError, NotAStoreError
from divopd.journal import Account
from divopd.metrics import BatchFigures, Utilization, utilization_of_counts
from divopd.report.fates import shown_fates
from divopd.report.gauge import elapsed_s
from divopd.store import is_store, store_path
from divopd.store_schema import STORE_NAME
from divopd.store_views import RolloutTally, StoreViews

Clock = Literal["virtual", "wall"]


@dataclass(frozen=True)
class Costs:
    """What a run had cost when it came to a policy version: the currencies of SPEC §9."""

    trained_tokens: int = 0  # of every row whole, as the paper counts them
    computed_tokens: int = 0  # read by the learner, shared prefixes once
    learner_s: float = 0.0
    elapsed_s: float = 0.0
    scored_tokens: int = 0  # by the teacher
    generated_tokens: int = 0  # by the explorers


@dataclass(frozen=True)
class Evaluated:
    """The success rate in percent of a policy version, and what it had cost to get there."""

    version: int
    success_rate: float
    costs: Costs


@dataclass(frozen=True)
class RunFigures:
    """What a run achieved, what it cost, and how it used its experience."""

    name: str
    folder: Path
    method: str
    seed: int
    config: dict[str, Any]  # as it was stored; empty if the run has none
    clock: Clock
    evaluations: tuple[Evaluated, ...]
    batches: tuple[BatchFigures, ...]  # one an update
    costs: Costs
    utilization: Utilization
    account: Account
    dead_rows: int  # of the trained turns of the account

    @property
    def fates(self) -> dict[str, int]:
        """Where all turns are, dead rows by themselves."""
        return shown_fates(self.account, dead=self.dead_rows)

    @property
    def rates(self) -> list[float]:
        return [evaluated.success_rate for evaluated in self.evaluations]

    @property
    def curve(self) -> list[tuple[float, float]]:
        return [(evaluated.version, evaluated.success_rate) for evaluated in self.evaluations]


def run_folders(paths: Sequence[Path]) -> list[Path]:
    """The runs among these folders, and right inside them, by name."""
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise InputError(f"{path}: no such run; expected the folder of a run, or a folder of such folders")
        if path.is_file() and path.name != STORE_NAME and not is_store(path):
            raise InputError(
                f"{path} is no run; expected the folder of a run, or a folder of such folders; to compare composers on "
                f"a recording: divopd replay {path}"
            )
        inside = sorted(entry.parent for entry in path.glob(f"*/{STORE_NAME}")) if path.is_dir() else []
        found += [path] if not path.is_dir() or (path / STORE_NAME).exists() else inside
    return found


def named_runs(paths: Sequence[Path]) -> dict[str, Path]:
    """The last part of each path, or the whole path where two end alike; a run that was given twice counts once."""
    whole = list(dict.fromkeys((path.parent if path.is_file() else path).resolve() for path in paths))
    ends = [path.name for path in whole]
    return {path.name if ends.count(path.name) == 1 else str(path): path for path in whole}


def read_run(run: Path | str, *, name: str | None = None) -> RunFigures:
    """Read a run, a finished one or one that still goes on; an InputError if it has not made an update yet."""
    path = store_path(run)
    folder = path.parent
    with StoreViews.open(path) as store, store.snapshot():
        updates, evaluations = store.figures("update"), store.figures("evaluation")
        if not store.updates or not updates:
            raise InputError(f"{folder}: this run has not recorded an update; expected a run of `divopd train`")
        settings = store.journal(0).settings
        rollouts, account = store.rollout_tallies(available_before=store.updates), store.account()
        dead_rows = sum(store.dead_rows().values())
        used = utilization_so_far(rollouts, settings, updates=store.updates)
    try:
        costs = costs_by_version(updates)
        evaluated = tuple(
            Evaluated(version, figures["success_rate"], costs_at(version, costs))
            for version, figures in evaluations.items()
        )
        batches = tuple(
            BatchFigures(**{f.name: made[f.name] for f in fields(BatchFigures)}) for made in updates.values()
        )
    except (KeyError, TypeError) as error:
        raise NotAStoreError(f"{path}: its figures are not those of this version of divopd ({error!r})") from None
    return RunFigures(
        name=name or folder.resolve().name,
        folder=folder,
        method=settings.method,
        seed=settings.seed,
        config=stored_config(folder),
        clock="virtual" if "virtual_s" in next(iter(updates.values())) else "wall",
        evaluations=evaluated,
        batches=batches,
        costs=costs[max(costs)],
        utilization=used,
        account=account,
        dead_rows=dead_rows,
    )


def stored_config(folder: Path) -> dict[str, Any]:
    """The configuration that a run was started with; empty if it has none, as a replay."""
    stored = folder / "config.yaml"
    return read_layers(stored, ()).data if stored.exists() else {}


def costs_by_version(updates: Mapping[int, Mapping[str, Any]]) -> dict[int, Costs]:
    """The costs of every version that updates have made, from their figures; version 0 cost nothing.

    An evaluation belongs to its version, so it costs what the version had cost, however late it was played. On the
    virtual clock the learner's seconds are virtual too: those in which it did not wait.
    """
    waited = accumulate(figures["waited_s"] for figures in updates.values())
    return {0: Costs()} | {
        update + 1: Costs(
            learner_s=figures["virtual_s"] - idle if "virtual_s" in figures else figures["learner_s"],
            elapsed_s=elapsed_s(figures),
            **figures["spent"],
        )
        for (update, figures), idle in zip(updates.items(), waited, strict=True)
    }


def costs_at(version: int, costs: Mapping[int, Costs]) -> Costs:
    """The costs of a version, or of the last one before it whose figures were recorded."""
    return costs[version] if version in costs else costs[max(known for known in costs if known <= version)]


def utilization_so_far(rollouts: Sequence[RolloutTally], settings: Settings, *, updates: int) -> Utilization:
    """What a run trained of the rollouts that were there for its updates, beside the bound."""
    valid = [rollout for rollout in rollouts if rollout.valid_turns]
    windows = [(rollout.available_at, rollout.version + settings.max_staleness) for rollout in valid]
    return utilization_of_counts(
        [rollout.trained_turns for rollout in valid],
        scored=sum(rollout.scored_tokens for rollout in rollouts),
        trained=sum(rollout.trained_tokens for rollout in rollouts),
        reachable=offline_bound(windows, batch_size=settings.batch_size, updates=updates),
    )
