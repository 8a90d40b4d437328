"""How a verdict on a claim is made: its direction, its size, and what both say together.

Pure functions of intervals. docs/claims.md explains them to its readers (claims.yaml, `rules`).
"""

from collections.abc import Mapping, Sequence
from math import exp, floor, inf, log, sqrt
from statistics import fmean, variance
from typing import Literal, NamedTuple, get_args

from divopd.report.seeds import Interval, t_quantile

Direction = Literal["yes", "no", "open", "–"]
Size = Literal["as in the paper", "smaller", "larger", "open", "–"]
Verdict = Literal[
    "holds",
    "direction only",
    "does not hold",
    "not decided",
    "by construction",
    "withdrawn",
    "not measured here",
]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
FEWEST = 3  # pairs or seeds of a setting


class Range(NamedTuple):
    """From low to high; a single figure is a range of no width."""

    low: float
    high: float


# ── means over settings ───────────────────────────────────────────────────────────────────────────────────────────


def mean_over_settings(found: Mapping[str, Sequence[float]]) -> Interval | None:
    """The mean over settings, which count equally, and its 95 % interval over seeds; None without values.

    The seeds of a setting are averaged first. Settings are fixed and seeds are drawn, so the variance of the mean is
    that of the settings' means (Welch and Satterthwaite's degrees of freedom, rounded down). A setting with a single
    value tells nothing about it: then the interval has no limits.
    """
    groups = [values for values in found.values() if values]
    if not groups:
        return None
    mean, count = fmean(map(fmean, groups)), sum(map(len, groups))
    if any(len(values) < 2 for values in groups):
        return Interval(mean, -inf, inf, count)
    parts = [variance(values) / len(values) for values in groups]
    if not any(parts):
        return Interval(mean, mean, mean, count)
    spread = sum(part**2 / (len(values) - 1) for part, values in zip(parts, groups, strict=True))
    degrees = floor(sum(parts) ** 2 / spread + 1e-9)
    half = t_quantile(degrees) * sqrt(sum(parts)) / len(groups)
    return Interval(mean, mean - half, mean + half, count)


def ratio_over_settings(found: Mapping[str, Sequence[float]]) -> Interval | None:
    """The geometric mean over settings, which count equally: the mean of logarithms, and its interval."""
    logs = mean_over_settings({name: [log(value) for value in values] for name, values in found.items()})
    if logs is None:
        return None
    return Interval(exp(logs.mean), exp(logs.low), exp(logs.high) if logs.high < inf else inf, logs.count)


# ── direction and size ────────────────────────────────────────────────────────────────────────────────────────────


def direction_of(interval: Interval, *, null: float, side: int) -> Direction:
    """Whether the interval lies on the claimed side of the null value: above it (side 1) or below it (side -1)."""
    if interval.count < FEWEST:
        return "open"
    above, below = interval.low > null, interval.high < null
    if not (above or below):
        return "open"
    return "yes" if above == (side > 0) else "no"


def size_of(interval: Interval, paper: Range, *, side: int) -> Size:
    """How an effect compares with the paper's range; `smaller` is nearer to no effect, on either side."""
    if interval.count < FEWEST:
        return "open"
    if side < 0:
        interval = Interval(-interval.mean, -interval.high, -interval.low, interval.count)
        paper = Range(-paper.high, -paper.low)
    if interval.high < paper.low:
        return "smaller"
    if interval.low > paper.high:
        return "larger"
    covered = interval.low <= paper.low and paper.high <= interval.high
    return "as in the paper" if covered or paper.low <= interval.mean <= paper.high else "open"


def level_of(interval: Interval, accepted: Range) -> Size:
    """How a level compares with the paper's range: without a null value, only an interval wholly inside is as in it."""
    if interval.count < FEWEST:
        return "open"
    if interval.high < accepted.low:
        return "smaller"
    if interval.low > accepted.high:
        return "larger"
    return "as in the paper" if accepted.low <= interval.low and interval.high <= accepted.high else "open"


def spread_of(spread: float, *, widest: float, paper: float) -> Size:
    """How a spread between means compares with the paper's, given the widest of their intervals."""
    if widest >= max(spread, paper / 2):
        return "open"
    return "as in the paper" if spread >= paper / 2 else "smaller"


# ── verdicts ──────────────────────────────────────────────────────────────────────────────────────────────────────


def verdict_of(direction: Direction, size: Size) -> Verdict:
    """What direction and size say together; – where a claim has only one of them."""
    if direction == "no":
        return "does not hold"
    if direction == "yes":
        return "holds" if size in ("as in the paper", "–") else "direction only"
    if size in ("smaller", "larger"):
        return "does not hold"  # an effect of the paper's size is excluded, and no other is shown
    return "holds" if direction == "–" and size == "as in the paper" else "not decided"


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict on a claim about every setting, from those on each."""
    order: tuple[Verdict, ...] = ("does not hold", "not decided", "direction only", "holds")
    return min(verdicts, key=order.index)


def together(directions: Sequence[Direction]) -> Direction:
    """The direction of a claim about every setting: yes only if it is yes in each."""
    order: tuple[Direction, ...] = ("no", "open", "yes", "–")
    return min(directions, key=order.index)


def count_of_settings(directions: Sequence[Direction], *, wins: float, of: float) -> Verdict:
    """Whether as large a share of our settings shows the direction as of the paper's, whatever the open ones are."""
    needed = wins / of * len(directions)
    if directions.count("yes") >= needed:
        return "holds"
    return "does not hold" if directions.count("yes") + directions.count("open") < needed else "not decided"
