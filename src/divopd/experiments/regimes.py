"""A regime for an environment, chosen by the composition of batches alone.

A regime is how fast rollouts come, how many are in flight, how long they may be, where prompts are cut and how large a
batch is. Whether it is like the paper's shows in vanilla's and DivOPD's batches; no model is needed to see it: rollouts
that a run has recorded arrive again on the virtual clock, cut at another horizon and prompt limit, and nobody learns.
What a student would have done after a cut prompt is not known; the recorded turn stands for it.
"""

import itertools
import random
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any, NamedTuple

from divopd.config import Config, load_config
from divopd.errors import InputError
from divopd.learner import Learner, Saved, figures_without_learning
from divopd.metrics import mean_of_last
from divopd.models.policy import Weights
from divopd.pipeline.begin import begin_run
from divopd.pipeline.simulated import Made, SimulatedWorld
from divopd.pipeline.training import train
from divopd.pipeline.wishes import Wishes
from divopd.records import Observers, UpdateFigures
from divopd.report.runs import read_run
from divopd.run.folder import RunFolder
from divopd.store import Store
from divopd.teacher import Teachers
from divopd.turns import Rollout, Turn, group_into_rollouts

LATE = ("effective_rollouts", "top1_share", "dead_share")  # means of the last 40 % of updates


class Range(NamedTuple):
    """The lowest and the highest value of a figure in the paper's runs."""

    low: float
    high: float

    def distance(self, value: float) -> float:
        """How far a value is outside, in widths of the range; 0 inside."""
        return max(self.low - value, value - self.high, 0.0) / (self.high - self.low)


# what the paper's tables of utilization, composition and load have, over its settings
PAPER = {
    "vanilla": {
        "never_selected": Range(0.49, 0.59),
        "effective_rollouts": Range(3.9, 8.3),
        "top1_share": Range(0.24, 0.40),
        "dead_share": Range(0.05, 0.28),
        "load": Range(1.35, 2.3),
    },
    "divopd": {
        "never_selected": Range(0.07, 0.14),
        "effective_rollouts": Range(11.0, 15.0),
        "top1_share": Range(0.10, 0.15),
    },
}


class Library:
    """Recorded rollouts by the policy version that played them."""

    def __init__(self, rollouts: Iterable[Rollout]) -> None:
        self.by_version: dict[int, list[Rollout]] = {}
        for rollout in rollouts:
            self.by_version.setdefault(rollout.turns[0].version, []).append(rollout)
        if not self.by_version:
            raise InputError("the recording has no rollout; expected a run of `divopd train`")

    @classmethod
    def of(cls, run: Path) -> "Library":
        with Store.open_read_only(run) as store:
            return cls(group_into_rollouts(list(store.turns())))

    def take(self, source: random.Random, *, version: int) -> Rollout:
        """A rollout of this version, or of the last one before it that has any."""
        known = max((one for one in self.by_version if one <= version), default=min(self.by_version))
        return source.choice(self.by_version[known])


def cut(rollout: Rollout, *, name: str, version: int, horizon: int, max_prompt_tokens: int) -> Rollout:
    """A recorded rollout as it would be with another horizon and prompt limit."""
    turns = rollout.turns[:horizon]
    whole = len(turns) == len(rollout.turns)
    rows = [
        replace(
            turn,
            rollout=name,
            version=version,
            prompt_ids=turn.prompt_ids[:max_prompt_tokens],
            prompt_truncated=turn.prompt_truncated or len(turn.prompt_ids) > max_prompt_tokens,
            success=turn.success and whole,
            rollout_turns=len(turns),
            rollout_valid_tokens=None,
        )
        for turn in turns
    ]
    return Rollout(name, tuple(rows))


class RecordedWorld(SimulatedWorld):
    """The virtual world in which rollouts are taken from a library: nobody plays, scores, learns or is evaluated."""

    def __init__(self, config: Config, store: Store, run: RunFolder, library: Library) -> None:
        nobody: Any = SimpleNamespace(tokenizer=None, exact=True)
        super().__init__(
            config, store, run, student=nobody, actor=nobody, teachers=Teachers(nobody), observer=Observers()
        )
        self.library = library

    def publish(self, version: int, learner: Learner) -> None:
        self.version = self.acting_version = version

    def evaluate(self, version: int, learner: Learner) -> None:
        pass

    def _make(self, numbers: range) -> list[Made]:
        return [self._made(number) for number in numbers]

    def _made(self, number: int) -> Made:
        config, version = self.config, self.acting_version
        source = random.Random(f"rollout {config.seed} {number}")
        rollout = cut(
            self.library.take(source, version=version),
            name=f"r{number:06d}",
            version=version,
            horizon=config.environment.horizon,
            max_prompt_tokens=config.prompts.max_prompt_tokens,
        )
        costs, generated = config.costs, sum(len(turn.response_ids) for turn in rollout.turns)
        acting = generated * costs.generated_token_s + len(rollout.turns) * costs.environment_step_s
        reading = rollout.turns[-1].tokens * (costs.read_token_s + costs.scored_token_s)
        return Made(rollout, generated, costs.rollout_s + acting + reading)


class StillLearner:
    """Learns nothing."""

    def update(self, turns: Sequence[Turn], weights: Sequence[float]) -> UpdateFigures:
        return figures_without_learning(turns)

    def weights(self) -> Weights:
        return {}

    def snapshot(self, dtype: str | None) -> Weights:
        return {}

    def stream(self, dtype: str | None) -> Iterator[tuple[str, Any]]:
        return iter(())

    def kinds(self, dtype: str | None) -> dict[str, tuple[str, tuple[int, ...]]]:
        return {}

    def save(self, folder: Path, *, update: int, state: Mapping[str, Any]) -> Saved:
        return Saved()

    def load(self, path: Path) -> dict[str, Any]:
        raise LookupError(f"{path}: expected nothing there, because nothing is saved here")


def compose_recorded(config: Config, library: Library) -> dict[str, float]:
    """The figures of PAPER for one run of the configuration with recorded rollouts."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        begin_run(config, run)
        with Store.open(run) as store:
            world = RecordedWorld(config, store, RunFolder(run), library)
            train(
                config,
                learner=StillLearner(),
                ledger=store,
                world=world,
                run=RunFolder(run),
                observer=Observers(),
                wishes=Wishes(),
            )
        figures = read_run(run)
    late = {name: mean_of_last([getattr(one, name) for one in figures.batches]) for name in LATE}
    return {"never_selected": figures.utilization.never_selected, "load": figures.arrival_per_drain or 0.0, **late}


@dataclass(frozen=True)
class Tried:
    """One regime: its overrides, the figures of each method, and how far they are outside the paper's ranges."""

    overrides: tuple[str, ...]
    figures: dict[str, dict[str, float]]
    distances: dict[str, float]  # by "METHOD FIGURE"; only what is outside

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Tried":
        return cls(tuple(data["overrides"]), data["figures"], data["distances"])

    @property
    def distance(self) -> float:
        return sum(self.distances.values())


def grid(values: Mapping[str, Sequence[Any]]) -> Iterator[tuple[str, ...]]:
    """All combinations as overrides, the last key changing fastest."""
    for combination in itertools.product(*values.values()):
        yield tuple(f"{key}={value}" for key, value in zip(values, combination, strict=True))


def try_regime(
    folder: Path,
    overrides: Sequence[str],
    library: Library,
    *,
    fixed: Sequence[str] = (),
    seeds: Sequence[int],
    ranges: Mapping[str, Mapping[str, Range]],
    limit: float = inf,
) -> Tried:
    """Compose with one method after the other, in the mean of some seeds; no further than a distance of `limit`."""
    figures: dict[str, dict[str, float]] = {}
    distances: dict[str, float] = {}
    said = [*fixed, *overrides, "learner.checkpoint_every=1000000"]
    for method, wanted in ranges.items():
        runs = [
            compose_recorded(load_config(folder / f"{method}.yaml", [*said, f"seed={seed}"]), library) for seed in seeds
        ]
        figures[method] = {name: round(fmean(run[name] for run in runs), 4) for name in runs[0]}
        found = {f"{method} {name}": round(one.distance(figures[method][name]), 4) for name, one in wanted.items()}
        distances |= {name: far for name, far in found.items() if far}
        if sum(distances.values()) >= limit:
            break
    return Tried(tuple(overrides), figures, distances)


def search(tried: Iterable[Tried]) -> Iterator[Tried]:
    """The regimes in order, up to the first that is inside all ranges."""
    for one in tried:
        yield one
        if not one.distances:
            return


def best_of(tried: Sequence[Tried]) -> Tried:
    """The one with the smallest summed distance, of equal ones the first; of those that were tried with all methods."""
    whole = [one for one in tried if len(one.figures) == len(PAPER)]
    return min(whole, key=lambda one: one.distance)
