"""One run's folder as the figures that a comparison, a picture or a summary needs."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

from divopd.config_files import read_layers
from divopd.errors import InputError, NotAStoreError
from divopd.journal import Account
from divopd.metrics import BatchFigures, Utilization, utilization
from divopd.replay import Recorded, Recording, bound
from divopd.report.gauge import elapsed_s
from divopd.store import Store, StoreReader, store_path

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

    @property
    def rates(self) -> list[float]:
        return [evaluated.success_rate for evaluated in self.evaluations]

    @property
    def curve(self) -> list[tuple[float, float]]:
        return [(evaluated.version, evaluated.success_rate) for evaluated in self.evaluations]


def read_run(run: Path | str, *, name: str | None = None) -> RunFigures:
    """Read a run, a finished one or one that still goes on; an InputError if it has not made an update yet."""
    path = store_path(run)
    folder = path.parent
    stored = folder / "config.yaml"
    with Store.open_read_only(path) as store, store.snapshot():
        updates, evaluations = store.figures("update"), store.figures("evaluation")
        if not store.updates or not updates:
            raise InputError(f"{folder}: this run has not recorded an update; expected a run of `divopd train`")
        settings = store.journal(0).settings
        used, account = _utilization(store, settings.batch_size, settings.max_staleness), store.account()
    try:
        costs = dict(zip((update + 1 for update in updates), _costs(updates), strict=True)) | {0: Costs()}
        evaluated = tuple(
            Evaluated(version, figures["success_rate"], costs[max(known for known in costs if known <= version)])
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
        config=read_layers(stored, ()).data if stored.exists() else {},
        clock="virtual" if "virtual_s" in next(iter(updates.values())) else "wall",
        evaluations=evaluated,
        batches=batches,
        costs=costs[max(costs)],
        utilization=used,
        account=account,
    )


def _costs(updates: Mapping[int, Mapping[str, Any]]) -> list[Costs]:
    """The costs after each update.

    An evaluation belongs to its version, so it costs what the version had cost, however late it was played. On the
    virtual clock the learner's seconds are virtual too: those in which it did not wait.
    """
    waited = accumulate(figures["waited_s"] for figures in updates.values())
    return [
        Costs(
            learner_s=figures["virtual_s"] - idle if "virtual_s" in figures else figures["learner_s"],
            elapsed_s=elapsed_s(figures),
            **figures["spent"],
        )
        for figures, idle in zip(updates.values(), waited, strict=True)
    ]


def _utilization(store: StoreReader, batch_size: int, max_staleness: int) -> Utilization:
    """What the run trained of the experience that was there for it, beside the bound."""
    updates = store.updates
    turns = [turn for turn in store.stored_turns() if turn.available_at < updates]
    recording = Recording([Recorded(t.candidate(update=updates), t.available_at, None) for t in turns], updates)
    trained = [
        recorded.candidate for recorded, t in zip(recording.turns, turns, strict=True) if t.fate.kind == "trained"
    ]
    reachable = bound(recording, batch_size=batch_size, max_staleness=max_staleness, updates=updates)
    return utilization((recorded.candidate for recorded in recording.turns), trained, reachable=reachable)
