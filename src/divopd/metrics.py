"""The figures of specification §9: of a batch, of a run, of a whole recording's use."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from math import exp, floor, log
from statistics import fmean, pstdev, stdev
from typing import Any, NamedTuple

from divopd.composers.composer import Candidate
from divopd.records import BatchFigures

Curve = Sequence[tuple[float, float]]  # (policy version or any cost, success rate in percent), in order


# ── a batch ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Share(NamedTuple):
    """What one rollout has in a batch, summed over its rows there."""

    versions: int = 0  # policy versions
    rows: int = 0
    dead_rows: int = 0
    tokens: int = 0
    valid_tokens: int = 0
    disagreement: float = 0.0


def batch_figures(selected: Sequence[Candidate], *, update: int) -> BatchFigures:
    """Figures of a batch; of an empty one all are 0."""
    shares: dict[str, Share] = {}
    for c in selected:
        versions, rows, dead, tokens, valid, disagreement = shares.get(c.rollout, Share())
        dead += c.valid_tokens == 0
        more = tokens + c.tokens, valid + c.valid_tokens, disagreement + c.disagreement
        shares[c.rollout] = Share(versions + c.version, rows + 1, dead, *more)
    return figures_of_shares(list(shares.values()), update=update)


def figures_of_shares(shares: Sequence[Share], *, update: int) -> BatchFigures:
    """Figures of a batch from what each of its rollouts has in it."""
    if not shares:
        return BatchFigures(0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0)
    rows, total = sum(share.rows for share in shares), sum(share.tokens for share in shares)
    parts = [share.tokens / total for share in shares] if total else [1 / len(shares)] * len(shares)
    valid_tokens = sum(share.valid_tokens for share in shares)
    return BatchFigures(
        rows=rows,
        rollouts=len(shares),
        effective_rollouts=1 / sum(p * p for p in parts),
        top1_share=max(parts),
        turns_per_rollout=rows / len(shares),
        dead_share=sum(share.dead_rows for share in shares) / rows,
        kl_per_token=sum(share.disagreement for share in shares) / valid_tokens if valid_tokens else 0.0,
        age=sum(share.rows * update - share.versions for share in shares) / rows,
        disagreement_sd=pstdev(share.disagreement for share in shares),
        tokens=total,
    )


def mean_of_last(values: Sequence[float], share: float = 0.4) -> float:
    """Mean over the final share of training, as the paper's diagnostics are averaged."""
    return fmean(values[-max(1, round(share * len(values))) :])


def late_batch(batches: Sequence[BatchFigures]) -> BatchFigures:
    """Every figure as its mean over the final 40 % of updates."""
    names = [field.name for field in fields(BatchFigures)]
    means: dict[str, Any] = {name: mean_of_last([getattr(batch, name) for batch in batches]) for name in names}
    return BatchFigures(**means)


# ── a run ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def peak(rates: Sequence[float]) -> float:
    """The best evaluation."""
    return max(rates)


def final_five(rates: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation (n - 1) of the last five evaluations; a single one has no deviation."""
    last = rates[-5:]
    return fmean(last), stdev(last) if len(last) > 1 else None


def best_five(rates: Sequence[float]) -> float:
    """Mean of the five best evaluations."""
    return fmean(sorted(rates)[-5:])


def nauc(curve: Curve, *, budget: float) -> float:
    """U⁻¹ ∫ SR dq from 0 to the budget U, linear between evaluations, flat before the first and after the last."""
    means: dict[float, list[float]] = {}
    for version, rate in curve:
        means.setdefault(version, []).append(rate)
    points = sorted((version, fmean(rates)) for version, rates in means.items())
    inside = [(v, r) for v, r in points if 0 < v < budget]
    knots = [(0.0, _interpolate(points, 0.0)), *inside, (budget, _interpolate(points, budget))]
    area = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(knots))
    return area / budget


def _interpolate(points: Sequence[tuple[float, float]], at: float) -> float:
    if at <= points[0][0]:
        return points[0][1]
    for (x0, y0), (x1, y1) in pairwise(points):
        if at <= x1:
            return y0 + (y1 - y0) * (at - x0) / (x1 - x0)
    return points[-1][1]


def target_rate(vanilla_peak: float) -> int:
    """τ: the largest multiple of 5 at or below vanilla's peak."""
    return 5 * floor(vanilla_peak / 5)


def cost_to_target(curve: Curve, target: float) -> float | None:
    """The cost at the first evaluation that reaches the target; None if none does."""
    return next((cost for cost, rate in curve if rate >= target), None)


def speedup(vanilla_cost: float | None, method_cost: float | None) -> float | None:
    """C_vanilla(τ) / C_method(τ); above one favours the method; None where one of them never got there."""
    return vanilla_cost / method_cost if vanilla_cost is not None and method_cost else None


def geometric_mean(ratios: Iterable[float]) -> float:
    """The mean of speedups across settings."""
    return exp(fmean(log(ratio) for ratio in ratios))


def arrival_per_drain(*, put: int, drained: int | None, elapsed_s: float, waited_s: float) -> float | None:
    """Turns put per second of the run, by turns drained per second in which the learner did not wait for a batch.

    Drained are the turns read into the pool, stale ones not counted. None where they or the seconds are not known.
    """
    busy_s = elapsed_s - waited_s
    return (put / elapsed_s) / (drained / busy_s) if drained and elapsed_s > 0 and busy_s > 0 else None


# ── the use of experience ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Utilization:
    """What became of the valid rollouts (those with at least one valid turn)."""

    rollouts: int
    never_selected: float  # share of them without a trained turn
    unreachable: float  # the offline bound: the share that no composer could have given a slot
    gini: float  # of trained turns, over all of them
    scored_valid_tokens: int | None  # of all turns; this and the next are None in results that counted whole rows
    trained_valid_tokens: int | None  # of the trained ones
    scored_per_trained: float | None  # their ratio; None also where nothing was trained


def utilization(available: Iterable[Candidate], selected: Sequence[Candidate], *, reachable: int) -> Utilization:
    """Compare the turns that were there with those that were trained; a dead row is not a trained turn."""
    counts: dict[str, int] = {}
    scored = trained = 0
    for c in available:
        if c.reason is None:
            counts[c.rollout] = 0
            scored += c.valid_tokens
    for c in selected:
        if c.reason is None:
            counts[c.rollout] += 1
            trained += c.valid_tokens
    return utilization_of_counts(list(counts.values()), scored=scored, trained=trained, reachable=reachable)


def utilization_of_counts(counts: Sequence[int], *, scored: int, trained: int, reachable: int) -> Utilization:
    """The same from the trained turns of every valid rollout, and the valid tokens of all turns and of the trained."""
    size = len(counts)
    return Utilization(
        rollouts=size,
        never_selected=sum(n == 0 for n in counts) / size if size else 0.0,
        unreachable=1 - reachable / size if size else 0.0,
        gini=gini(counts),
        scored_valid_tokens=scored,
        trained_valid_tokens=trained,
        scored_per_trained=scored / trained if trained else None,
    )


def gini(counts: Sequence[float]) -> float:
    """0 when all rollouts gave equally many turns, towards 1 when one gave all."""
    total = sum(counts)
    if not total:
        return 0.0
    n = len(counts)
    return 2 * sum(rank * count for rank, count in enumerate(sorted(counts), 1)) / (n * total) - (n + 1) / n
