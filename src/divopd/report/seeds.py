"""Several seeds of one method: means with 95 % intervals, and differences between runs of the same seed."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import atan, cos, exp, inf, log, pi, sin, sqrt
from statistics import fmean, stdev


@dataclass(frozen=True)
class Interval:
    """A mean of `count` values and its interval, of 95 % unless said; without limits from a single value."""

    mean: float
    low: float
    high: float
    count: int


def interval_of(values: Sequence[float], *, coverage: float = 0.95) -> Interval:
    """Student's t interval of the mean."""
    mean = fmean(values)
    if len(values) < 2:
        return Interval(mean, -inf, inf, len(values))
    half = t_quantile(len(values) - 1, coverage=coverage) * stdev(values) / sqrt(len(values))
    return Interval(mean, mean - half, mean + half, len(values))


def seeds_to_decide(values: Sequence[float], *, coverage: float = 0.95) -> int | None:
    """How many values would put 0 outside the interval, were mean and spread to stay; None if no number would."""
    mean, spread = fmean(values), stdev(values)
    if not mean:
        return None
    count = 2
    while t_quantile(count - 1, coverage=coverage) * spread / sqrt(count) >= abs(mean):
        count += max(1, count // 50)  # "about" is enough, and an effect near 0 would take for ever
    return count


def ratio_interval_of(ratios: Sequence[float]) -> Interval:
    """The geometric mean, with the t interval of the logarithms."""
    logs = interval_of([log(ratio) for ratio in ratios])
    high = exp(logs.high) if logs.high < inf else inf
    return Interval(exp(logs.mean), exp(logs.low), high, logs.count)


def t_quantile(degrees: int, *, coverage: float = 0.95) -> float:
    """The t within which Student's distribution has this coverage, symmetric about 0, by bisection."""
    low, high = 0.0, 1.0
    while _coverage(high, degrees) < coverage:
        high *= 2
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _coverage(middle, degrees) < coverage else (low, middle)
    return high


def _coverage(t: float, degrees: int) -> float:
    """P(|T| ≤ t): for a whole number of degrees of freedom a finite sum (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = atan(t / sqrt(degrees))
    odd = degrees % 2
    term = total = (cos(angle) if degrees > 1 else 0.0) if odd else 1.0
    for power in range(2 + odd, degrees - 1, 2):
        term *= (power - 1) / power * cos(angle) ** 2
        total += term
    return 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total
