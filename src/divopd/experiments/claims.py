"""Claims of the paper, judged by the results that are there: direction, size and verdict, by rules stated before."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.resources import files
from math import ceil, exp, log, sqrt
from statistics import fmean
from typing import Any

import yaml

from divopd.experiments.arms import SETTINGS
from divopd.experiments.measuring import Claim, chosen, claim_of, differences, levels, ratios, shares
from divopd.experiments.paper_values import paper_values
from divopd.experiments.results import SettingResults
from divopd.experiments.verdicts import (
    FEWEST,
    VERDICTS,
    Direction,
    Range,
    Size,
    Verdict,
    count_of_settings,
    direction_of,
    level_of,
    mean_over_settings,
    ratio_over_settings,
    size_of,
    spread_of,
    together,
    verdict_of,
    worst,
)
from divopd.report.seeds import Interval, interval_of, ratio_interval_of

Settings = Mapping[str, SettingResults]
Found = Mapping[str, list[float]]
FEWEST_EVALUATIONS = 24  # of a run whose last five are the end of training; the paper's runs have 24 to 49
OF_FIVE = ("final_five", "best_five")
MOST_SEEDS = 100_000  # a setting; what would need more is as good as nothing


@dataclass(frozen=True)
class Paper:
    """What the paper has: a figure for all its settings, the range over them, and values if its tables have them."""

    figure: float
    range: Range
    values: Mapping[str, float]


@dataclass(frozen=True)
class InSetting:
    """A claim in one of our settings."""

    interval: Interval
    direction: Direction
    size: Size
    values: Sequence[float]

    @property
    def verdict(self) -> Verdict:
        return verdict_of(self.direction, self.size)


@dataclass(frozen=True)
class Judged:
    """A claim and its verdict; `interval` is of a mean over settings, `notes` are keys of the table's.

    What would decide a claim that is not decided: settings of which there is no run yet (`unrun`), or so many seeds of
    every setting, were means and spreads to stay as they are (None: more than anybody runs).
    """

    claim: Claim
    paper: Paper
    verdict: Verdict
    direction: Direction = "–"
    size: Size = "–"
    interval: Interval | None = None
    by_setting: Mapping[str, InSetting] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    ours: str = ""  # in words, where an interval does not say it
    seeds: int = 0  # of an arm, where no setting has an interval
    unrun: tuple[str, ...] = ()
    seeds_to_decide: int | None = None


@dataclass(frozen=True)
class ClaimsTable:
    rules: dict[str, str]
    notes: dict[str, str]
    judged: tuple[Judged, ...]
    settings: dict[str, dict[str, list[int]]]  # seeds that were there, by setting and arm

    @property
    def counts(self) -> dict[Verdict, int]:
        found = Counter(one.verdict for one in self.judged)
        return {verdict: found[verdict] for verdict in VERDICTS}


def judge_all(settings: Settings) -> ClaimsTable:
    """Judge every claim by the results that are there."""
    data = claims_file()
    judged = tuple(judge(claim_of(line), settings) for line in data["claims"])
    seeds = {name: {arm: sorted(one.of(arm)) for arm in one.arms} for name, one in settings.items()}
    return ClaimsTable(data["rules"], data["notes"], judged, seeds)


def claims_file() -> dict[str, Any]:
    """claims.yaml."""
    return yaml.safe_load((files("divopd.experiments") / "claims.yaml").read_text(encoding="utf-8"))


def judge(claim: Claim, settings: Settings) -> Judged:
    """One claim. Nothing is said about one that is withdrawn, or of which a setting was not measured."""
    paper = paper_of(claim)
    if claim.construction:
        return Judged(claim, paper, "by construction", ours=claim.construction)
    if notes := _withdrawn(claim, settings):
        return Judged(claim, paper, "withdrawn", notes=notes)
    if claim.unmeasured:
        return Judged(claim, paper, "not measured here", notes=(claim.unmeasured,))
    of_kind = partial(JUDGES[claim.kind], claim, paper, settings)
    judged = of_kind(by=1.0)
    if judged.verdict != "not decided" or judged.unrun:
        return judged
    seeds = min((row.interval.count for row in judged.by_setting.values()), default=judged.seeds)
    return replace(judged, seeds_to_decide=_seeds_to_decide(of_kind, seeds))


def _seeds_to_decide(of_kind: Callable[..., Judged], seeds: int) -> int | None:
    """The number of seeds at which intervals that shrink with its root decide the claim, to about 5 %."""
    wanted = seeds
    while wanted < MOST_SEEDS:
        wanted = ceil(1.05 * wanted)
        if of_kind(by=sqrt(wanted / seeds)).verdict != "not decided":
            return wanted
    return None


def paper_of(claim: Claim) -> Paper:
    """What the paper says: as claims.yaml has it, and otherwise from the paper's tables."""
    values = paper_values(claim)
    if isinstance(claim.paper, tuple):
        return Paper(fmean(claim.paper), Range(*claim.paper), values)
    if claim.paper is not None:
        return Paper(claim.paper, Range(claim.paper, claim.paper), values)
    if claim.kind == "share":  # of updates, without a figure: more than half
        return Paper(0.5, Range(0.5, 1.0), values)
    known = values.values()
    figure = exp(fmean(map(log, known))) if claim.kind == "ratio" else fmean(known)
    return Paper(figure, Range(min(known), max(known)), values)


def _withdrawn(claim: Claim, settings: Settings) -> tuple[str, ...]:
    """The notes for which a claim waits for new runs; a mean of five evaluations does whenever a run has too few."""
    runs = [run for one in chosen(claim, settings).values() for arm in claim.arms for run in one.of(arm).values()]
    few = any(len(result.run.evaluations) < FEWEST_EVALUATIONS for result in runs)
    return (("final-5",) if claim.of in OF_FIVE and few else ()) + claim.withdrawn


# ── one judge per kind ────────────────────────────────────────────────────────────────────────────────────────────
# `by`: how many times as narrow the intervals are taken to be as they are


def narrowed(interval: Interval, by: float, *, ratio: bool = False) -> Interval:
    """The interval of by² times as many seeds with the same mean and spread; of a ratio, that of its logarithm."""
    if ratio:
        low, high = (interval.mean * (end / interval.mean) ** (1 / by) for end in (interval.low, interval.high))
    else:
        low, high = (interval.mean + (end - interval.mean) / by for end in (interval.low, interval.high))
    return Interval(interval.mean, low, high, round(interval.count * by**2))


def _effect(claim: Claim, paper: Paper, settings: Settings, *, by: float) -> Judged:
    """A difference or a ratio: of the mean over settings, or of every setting."""
    ratio = claim.kind == "ratio"
    found = ratios(claim, settings) if ratio else differences(claim, settings)
    null = 1.0 if ratio else 0.0
    side = claim.side or (1 if ratio or paper.figure > 0 else -1)
    of_one = ratio_interval_of if ratio else interval_of

    def judged(interval: Interval, compared: Range) -> tuple[Direction, Size]:
        return direction_of(interval, null=null, side=side), size_of(interval, compared, side=side)

    rows = {
        name: InSetting(one := narrowed(of_one(values), by, ratio=ratio), *judged(one, paper.range), values)
        for name, values in found.items()
        if values
    }
    if claim.over == "each":
        return _each(claim, paper, rows)
    interval = (ratio_over_settings if ratio else mean_over_settings)(found)
    if interval is None:
        return _unmeasured(claim, paper)
    interval = narrowed(interval, by, ratio=ratio)
    direction, size = judged(interval, Range(paper.figure, paper.figure))
    if any(row.interval.count < FEWEST for row in rows.values()):
        direction, size = "open", "open"
    return _if_complete(Judged(claim, paper, verdict_of(direction, size), direction, size, interval, rows), rows)


def _level(claim: Claim, paper: Paper, settings: Settings, *, by: float) -> Judged:
    ratio = bool(claim.base) and not claim.minus_base
    of_one = ratio_interval_of if ratio else interval_of
    accepted = Range(*claim.accept) if claim.accept else paper.range
    rows = {
        name: InSetting(one := narrowed(of_one(values), by, ratio=ratio), "–", level_of(one, accepted), values)
        for name, values in levels(claim, settings).items()
        if values
    }
    return _each(claim, paper, rows)


def _share(claim: Claim, paper: Paper, settings: Settings, *, by: float) -> Judged:
    """A share of updates or seeds: more than half, and all where the paper says all."""

    def size(values: list[float]) -> Size:
        if claim.paper is None:
            return "–"
        if len(values) < FEWEST:
            return "open"
        return "as in the paper" if all(value == 1 for value in values) else "smaller"

    rows = {
        name: InSetting(
            one := narrowed(interval_of(values), by), direction_of(one, null=0.5, side=1), size(values), values
        )
        for name, values in shares(claim, settings).items()
        if values
    }
    return _each(claim, paper, rows)


def _settings(claim: Claim, paper: Paper, settings: Settings, *, by: float) -> Judged:
    """In how many settings the direction is as claimed."""
    cost = claim.of.startswith("cost:")
    found = ratios(claim, settings) if cost else differences(claim, settings)
    of_one, null = (ratio_interval_of, 1.0) if cost else (interval_of, 0.0)
    rows = {
        name: InSetting(
            one := narrowed(of_one(values), by, ratio=cost), direction_of(one, null=null, side=1), "–", values
        )
        for name, values in found.items()
        if values
    }
    if not rows:
        return _unmeasured(claim, paper)
    directions: list[Direction] = [row.direction for row in rows.values()]
    verdict = count_of_settings(directions, wins=paper.range.low, of=paper.range.high)
    ours = f"{directions.count('yes')} of {len(rows)}, {directions.count('open')} open"
    return _if_complete(Judged(claim, paper, verdict, by_setting=rows, ours=ours), rows)


def _highest(claim: Claim, paper: Paper, settings: Settings, *, by: float) -> Judged:
    """An arm's lead over each of the others in the one setting that the claim is about."""
    [name] = claim.settings
    if name not in settings or not all(settings[name].of(arm) for arm in claim.arms):
        return _unmeasured(claim, paper)
    differences = {arm: settings[name].differences(claim.arm, arm, claim.of) for arm in claim.among}
    gaps = {arm: narrowed(interval_of(values), by) for arm, values in differences.items()}
    rival = min(gaps, key=lambda arm: gaps[arm].mean)
    direction = together([direction_of(gap, null=0.0, side=1) for gap in gaps.values()])
    ours = f"{gaps[rival].mean:+.1f} to {rival}"
    seeds = min(map(len, differences.values()))
    return Judged(claim, paper, verdict_of(direction, "–"), direction, interval=gaps[rival], ours=ours, seeds=seeds)


def _spread(claim: Claim, paper: Paper, settings: Settings, *, by: float) -> Judged:
    """The largest spread of the arms' means over settings ("up to"), beside the widest of their intervals."""
    spreads: dict[str, float] = {}
    widest, seeds = 0.0, MOST_SEEDS
    for name, one in chosen(claim, settings).items():
        means = [mean for arm in claim.among if (mean := one.mean(arm, claim.of)) and mean.count >= FEWEST]
        if len(means) == len(claim.among):
            spreads[name] = max(mean.mean for mean in means) - min(mean.mean for mean in means)
            widest = max(widest, *((mean.high - mean.low) / by for mean in means))
            seeds = min(seeds, *(mean.count for mean in means))
    if not spreads:
        return _unmeasured(claim, paper)
    largest = max(spreads.values())
    size = spread_of(largest, widest=widest, paper=paper.figure)
    ours = f"{largest:.1f} (widest interval {widest:.1f})"
    return _if_complete(Judged(claim, paper, verdict_of("–", size), size=size, ours=ours, seeds=seeds), spreads)


JUDGES: dict[str, Callable[..., Judged]] = {
    "difference": _effect,
    "ratio": _effect,
    "level": _level,
    "share": _share,
    "settings": _settings,
    "highest": _highest,
    "spread": _spread,
}


def _each(claim: Claim, paper: Paper, rows: Mapping[str, InSetting]) -> Judged:
    """A claim about every setting."""
    if not rows:
        return _unmeasured(claim, paper)
    verdict = worst([row.verdict for row in rows.values()])
    direction = together([row.direction for row in rows.values()])
    sizes: list[Size] = [row.size for row in rows.values()]
    size: Size = sizes[0] if len(set(sizes)) == 1 else "open"
    return _if_complete(Judged(claim, paper, verdict, direction, size, by_setting=rows), rows)


def _unmeasured(claim: Claim, paper: Paper) -> Judged:
    return Judged(claim, paper, "not measured here", notes=("not run",))


def _if_complete(judged: Judged, rows: Mapping[str, Any]) -> Judged:
    """Nothing is decided until every setting that the claim is about was measured."""
    unrun = tuple(name for name in judged.claim.settings or SETTINGS if name not in rows)
    return replace(judged, verdict="not decided", unrun=unrun) if unrun else judged
