"""Runs side by side: the figures of specification §9, as data. Printing is in run_tables.py, drawing in curves.py."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

from divopd.errors import InputError
from divopd.methods import BASELINE, bounds_budget
from divopd.metrics import best_five, final_five, mean_of_last, nauc, peak, speedup, target_rate
from divopd.report.runs import Costs, Evaluated, RunFigures
from divopd.report.seeds import Interval, interval_of, ratio_interval_of

CURRENCIES = tuple(field.name for field in fields(Costs))
TARGETS = (50, 60, 70)  # percent; fixed, because τ is vanilla's own peak, which only vanilla reaches for sure
IGNORED_SETTINGS = ("method", "seed", "versions", "loggers", "evaluation.target")
# settings that runs of before do not have, with what they mean there: a run that says so is no other run
LATER_SETTINGS: dict[str, Any] = {"costs.jitter": 0.0, "learner.warmup": 0, "learner.schedule": "constant"}


@dataclass(frozen=True)
class ToTarget:
    """What a run had cost at its first evaluation at or above a success rate; None where it was not reached."""

    target: int
    version: int | None
    costs: Costs | None
    ratios: dict[str, float | None]  # the reference's cost by this run's; above 1 favours this run


@dataclass(frozen=True)
class Standing:
    """One run in a comparison. Rates are in percent, shares between 0 and 1."""

    run: str
    label: str  # the method, with what else tells its runs apart from others of that method
    seed: int
    peak: float
    final_five: float
    final_five_sd: float | None  # sample standard deviation (n - 1) of the last five; None: there is only one
    best_five: float
    nauc: float | None  # None: no run was evaluated after its start
    costs_to_target: Costs | None  # this and the next two: to τ; None: not reached
    version_at_target: int | None
    ratios: dict[str, float | None]
    to_targets: tuple[ToTarget, ...]  # the fixed targets and τ, in order
    fates: dict[str, int]  # turns; dead rows are not among the trained
    never_selected: float
    unreachable: float
    gini: float
    scored_per_trained: float | None  # valid tokens; None: nothing was trained, or a result that counted whole rows
    arrival_per_drain: float | None  # None: the run's records are older than this figure
    effective_rollouts: float  # this and the next two: means of the last 40 % of updates
    top1_share: float
    dead_share: float


# what is averaged over seeds
MEASURES = (
    "peak",
    "final_five",
    "best_five",
    "nauc",
    "never_selected",
    "gini",
    "effective_rollouts",
    "top1_share",
    "dead_share",
)


@dataclass(frozen=True)
class MethodStanding:
    """The seeds of one method: means, and differences and cost ratios to vanilla runs of the same seeds."""

    label: str
    seeds: int
    means: dict[str, Interval]
    pairs: int  # seeds that vanilla has too; 0 for vanilla itself
    differences: dict[str, Interval]
    ratios: dict[str, Interval]  # geometric means over the pairs in which both came to the target


@dataclass(frozen=True)
class RunComparison:
    """All of it. `reference` names the runs that τ and the ratios refer to."""

    target: int  # τ
    target_origin: str  # where τ comes from, in words
    targets: tuple[int, ...]  # the fixed ones, and τ if there is one
    reference: str
    budget: int  # U
    standings: tuple[Standing, ...]
    methods: tuple[MethodStanding, ...]  # empty unless a method has several seeds
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def compare_runs(runs: Sequence[RunFigures], *, target: int | None = None) -> RunComparison:
    """Put runs side by side.

    τ is the target that is asked for, else the one that the runs' setting names (`evaluation.target`), else the largest
    multiple of 5 at or below the smallest peak of the vanilla runs; without them, of the first run.
    """
    for run in runs:
        refuse_unevaluated(run)
    references = [run for run in runs if run.method == BASELINE] or [runs[0]]
    reference = BASELINE if references[0].method == BASELINE else runs[0].name
    found = _find_target(runs, reference, lowest_peak=min(peak(run.rates) for run in references), asked=target)
    target = found.rate
    budget = budget_of(runs)
    labels = labels_of(runs)
    targets = tuple(sorted({*TARGETS, target} if target > 0 else TARGETS))
    standings = tuple(
        _standing(
            run,
            labels[run.name],
            to_targets=[_to_target(run, _of_seed(references, run.seed), one) for one in targets],
            target=target,
            budget=budget,
        )
        for run in runs
    )
    baseline = labels[references[0].name] if reference == BASELINE else None
    return RunComparison(
        target,
        found.origin,
        targets,
        reference,
        budget,
        standings,
        _methods(standings, baseline),
        (*_notes(runs, reference), *found.notes),
    )


class Target(NamedTuple):
    """τ, where it comes from, and what must be said about it."""

    rate: int
    origin: str
    notes: tuple[str, ...] = ()


def _find_target(runs: Sequence[RunFigures], reference: str, *, lowest_peak: float, asked: int | None) -> Target:
    named = sorted({target for run in runs if (target := named_target(run.config)) is not None})
    origin = f"from the peak of {reference}"
    if asked is None and len(named) != 1:
        rate = target_rate(lowest_peak)
        notes = [f"the peak of {reference} is below 5 %, so there is no target to reach"] if rate <= 0 else []
        if named:
            given = ", ".join(map(str, named))
            notes.append(f"the runs name different targets (evaluation.target: {given}), so τ is {origin}")
        return Target(rate, origin, tuple(notes))
    rate, origin = (named[0], "named by evaluation.target") if asked is None else (asked, "as asked for")
    above = f"τ = {rate} % is above the lowest peak of {reference} ({lowest_peak:.1f} %), which did not reach it"
    return Target(rate, origin, (above,) if rate > lowest_peak else ())


def named_target(config: Mapping[str, Any]) -> int | None:
    """The target that a stored configuration names."""
    evaluation = config.get("evaluation")
    target = evaluation.get("target") if isinstance(evaluation, Mapping) else None
    return target if isinstance(target, int) and 0 < target <= 100 else None


def budget_of(runs: Sequence[RunFigures]) -> int:
    """U: the smallest last evaluated version, over the runs of the methods that bound it; over all if none does."""
    last = [(run.evaluations[-1].version, bounds_budget(run.config.get("method", run.method))) for run in runs]
    return min([version for version, bounds in last if bounds] or [version for version, _ in last])


def refuse_unevaluated(run: RunFigures) -> None:
    if not run.evaluations:
        raise InputError(f"{run.folder}: this run has no evaluation; expected one that `divopd train` has begun")


def labels_of(runs: Sequence[RunFigures]) -> dict[str, str]:
    """A label for each run: its method, and the settings in which runs of that method differ besides the seed."""
    labels: dict[str, str] = {}
    for run in runs:
        changed = different_settings([other for other in runs if other.method == run.method])
        settings = flat_settings(run.config)
        apart = ", ".join(f"{name}={settings.get(name)}" for name in changed)
        labels[run.name] = f"{run.method} ({apart})" if apart else run.method
    return labels


def different_settings(runs: Sequence[RunFigures]) -> list[str]:
    """The settings, method and seed left out, that are not the same in all runs which have a stored configuration."""
    configs = [flat_settings(run.config) for run in runs if run.config]
    names = dict.fromkeys(name for config in configs for name in config)
    return [name for name in names if len({repr(config.get(name)) for config in configs}) > 1]


def flat_settings(config: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if f"{above}{key}" in IGNORED_SETTINGS or LATER_SETTINGS.get(f"{above}{key}", ...) == value:
            continue
        flat |= flat_settings(value, f"{above}{key}.") if isinstance(value, Mapping) else {f"{above}{key}": value}
    return flat


def _of_seed(runs: Sequence[RunFigures], seed: int) -> RunFigures:
    return next((run for run in runs if run.seed == seed), runs[0])


def _standing(run: RunFigures, label: str, *, to_targets: list[ToTarget], target: int, budget: int) -> Standing:
    none = ToTarget(target, None, None, dict.fromkeys(CURRENCIES))
    to_tau = next((one for one in to_targets if one.target == target), none)
    final, deviation = final_five(run.rates)
    return Standing(
        run=run.name,
        label=label,
        seed=run.seed,
        peak=peak(run.rates),
        final_five=final,
        final_five_sd=deviation,
        best_five=best_five(run.rates),
        nauc=nauc(run.curve, budget=budget) if budget else None,
        costs_to_target=to_tau.costs,
        version_at_target=to_tau.version,
        ratios=to_tau.ratios,
        to_targets=tuple(to_targets),
        fates=run.fates,
        never_selected=run.utilization.never_selected,
        unreachable=run.utilization.unreachable,
        gini=run.utilization.gini,
        scored_per_trained=run.utilization.scored_per_trained,
        arrival_per_drain=run.arrival_per_drain,
        effective_rollouts=mean_of_last([batch.effective_rollouts for batch in run.batches]),
        top1_share=mean_of_last([batch.top1_share for batch in run.batches]),
        dead_share=mean_of_last([batch.dead_share for batch in run.batches]),
    )


def _to_target(run: RunFigures, reference: RunFigures, target: int) -> ToTarget:
    reached, before = (
        next((evaluated for evaluated in one.evaluations if evaluated.success_rate >= target), None)
        for one in (run, reference)
    )
    version, costs = (reached.version, reached.costs) if reached else (None, None)
    return ToTarget(target, version, costs, _ratios(before, reached))


def _ratios(reference: Evaluated | None, reached: Evaluated | None) -> dict[str, float | None]:
    def cost(of: Evaluated | None, currency: str) -> float | None:
        return None if of is None else getattr(of.costs, currency)

    return {name: speedup(cost(reference, name), cost(reached, name)) for name in CURRENCIES}


def _methods(standings: Sequence[Standing], baseline: str | None) -> tuple[MethodStanding, ...]:
    groups: dict[str, dict[int, Standing]] = {}
    for standing in standings:
        groups.setdefault(standing.label, {})[standing.seed] = standing
    if max(map(len, groups.values())) < 2:
        return ()
    vanilla = groups.get(baseline or "", {})
    return tuple(
        _method(label, group, {} if label == baseline else vanilla) for label, group in groups.items() if len(group) > 1
    )


def _method(label: str, group: Mapping[int, Standing], vanilla: Mapping[int, Standing]) -> MethodStanding:
    paired = [seed for seed in group if seed in vanilla]
    means: dict[str, Interval] = {}
    differences: dict[str, Interval] = {}
    for name in MEASURES:
        values = {seed: value for seed, one in group.items() if (value := getattr(one, name)) is not None}
        if len(values) > 1:
            means[name] = interval_of(list(values.values()))
        gaps = [values[seed] - getattr(vanilla[seed], name) for seed in paired if seed in values]
        if len(gaps) > 1:
            differences[name] = interval_of(gaps)
    ratios: dict[str, Interval] = {}
    for name in CURRENCIES:
        reached = [ratio for seed in paired if (ratio := group[seed].ratios[name])]
        if len(reached) > 1:
            ratios[name] = ratio_interval_of(reached)
    return MethodStanding(label, len(group), means, len(paired), differences, ratios)


def _notes(runs: Sequence[RunFigures], reference: str) -> list[str]:
    notes: list[str] = []
    if reference != BASELINE:
        notes.append(f"no vanilla run among them: the target and the ratios refer to {reference}")
    if changed := different_settings(runs):
        shown = ", ".join(changed[:6]) + (f" and {len(changed) - 6} more" if len(changed) > 6 else "")
        notes.append(f"the runs differ in more than method and seed: {shown}")
    if missing := [run.name for run in runs if not run.config]:
        notes.append(f"without config.yaml, so not checked for other settings: {', '.join(missing)}")
    return notes
