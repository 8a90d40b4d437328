"""One run's folder as the figures that a comparison, a picture or a summary needs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from divopd.composers.adaptive import offline_bound
from divopd.composers.composer import Settings
from divopd.errors import InputError
from divopd.metrics import Utilization, arrival_per_drain, utilization_of_counts
from divopd.records import BatchFigures, Clock, ProgramFigures, UpdateRecord
from divopd.report.fates import shown_fates
from divopd.run.stored_config import stored_config
from divopd.store import is_store, program_figures, store_path
from divopd.store.journal import Account
from divopd.store.schema import STORE_NAME
from divopd.store.views import RolloutTally, StoreViews


@dataclass(frozen=True)
class Costs:
    """What a run had cost when it came to a policy version: the currencies of specification §9."""

    trained_tokens: int = 0  # of every row whole, prompt and response: the cost of updates
    computed_tokens: int = 0  # read by the learner, shared prefixes once
    learner_s: float = 0.0  # GPU time: seconds of the learner's steps, times its ranks
    elapsed_s: float = 0.0  # wall time: the learner's steps and its waits for batches, on the run's clock
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
    arrival_per_drain: float | None  # None: its records are older than this figure
    programs: ProgramFigures | None = None  # None: its environment is no program

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
        updates, evaluations = store.update_records(), store.evaluations()
        if not store.updates or not updates:
            raise InputError(f"{folder}: this run has not recorded an update; expected a run of `divopd train`")
        settings = store.journal(0).settings
        rollouts, account = store.rollout_tallies(available_before=store.updates), store.account()
        dead_rows = sum(store.dead_rows().values())
        used = utilization_so_far(rollouts, settings, updates=store.updates)
        programs = program_figures(store)
    config = stored_config(folder)
    costs = costs_by_version(updates, ranks=ranks_of(config))
    evaluated = tuple(Evaluated(v, one.success_rate, costs_at(v, costs)) for v, one in evaluations.items())
    return RunFigures(
        name=name or folder.resolve().name,
        folder=folder,
        method=settings.method,
        seed=settings.seed,
        config=config,
        clock=next(iter(updates.values())).clock,
        evaluations=evaluated,
        batches=tuple(one.batch for one in updates.values()),
        costs=costs[max(costs)],
        utilization=used,
        account=account,
        dead_rows=dead_rows,
        arrival_per_drain=arrival_per_drain_of(updates),
        programs=programs,
    )


def ranks_of(config: Mapping[str, Any]) -> int:
    """How many ranks the learner of a stored configuration has."""
    learner = config.get("learner")
    ranks = learner.get("ranks") if isinstance(learner, Mapping) else None
    return ranks if isinstance(ranks, int) and ranks > 0 else 1


def costs_by_version(updates: Mapping[int, UpdateRecord], *, ranks: int) -> dict[int, Costs]:
    """The costs of every version that updates have made, from their records; version 0 cost nothing.

    An evaluation belongs to its version, so it costs what the version had cost, however late it was played.
    """
    costs, waited_s = {0: Costs()}, 0.0
    for update, record in updates.items():
        waited_s += record.waited_s
        spent = replace(record.spent, learner_s=ranks * record.spent.learner_s)
        costs[update + 1] = Costs(**asdict(spent), elapsed_s=record.spent.learner_s + waited_s)
    return costs


def arrival_per_drain_of(updates: Mapping[int, UpdateRecord]) -> float | None:
    """Arrivals by drains up to the last of these records; None where an update did not record what it drained."""
    last = updates[max(updates)]
    return arrival_per_drain(
        put=last.queue.turns_put,
        drained=drained_by(updates.values()),
        elapsed_s=last.elapsed_s,
        waited_s=sum(record.waited_s for record in updates.values()),
    )


def drained_by(updates: Iterable[UpdateRecord]) -> int | None:
    """All turns that these updates read into their pools; None where one of them did not record it."""
    drained = [record.queue.drained for record in updates]
    return None if None in drained else sum(turns for turns in drained if turns)


def costs_at(version: int, costs: Mapping[int, Costs]) -> Costs:
    """The costs of a version, or of the last one before it whose figures were recorded."""
    return costs[version] if version in costs else costs[max(known for known in costs if known <= version)]


def utilization_so_far(rollouts: Sequence[RolloutTally], settings: Settings, *, updates: int) -> Utilization:
    """What a run trained of the rollouts that were there for its updates, beside the bound."""
    valid = [rollout for rollout in rollouts if rollout.valid_turns]
    windows = [(rollout.available_at, rollout.version + settings.max_staleness) for rollout in valid]
    return utilization_of_counts(
        [rollout.trained_turns for rollout in valid],
        scored=sum(rollout.valid_tokens for rollout in rollouts),
        trained=sum(rollout.trained_valid_tokens for rollout in rollouts),
        reachable=offline_bound(windows, batch_size=settings.batch_size, updates=updates),
    )
