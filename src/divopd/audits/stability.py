"""Ranking stability: does the disagreement that was cached at generation still rank turns when the learner is ahead?

For each version whose weights were kept, turns that are so many versions older are scored again with them; the
teacher's log probabilities are the cached ones. Compared are all turns (Spearman), what a rollout would give (the
overlap of its k best turns), and the tokens' probabilities.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from divopd.audits.run_policy import RunPolicy
from divopd.audits.subject import Subject
from divopd.errors import InputError
from divopd.turns import Turn
from divopd.validity import disagreement, valid_mask, why_invalid

if TYPE_CHECKING:
    from divopd.models.transformers_policy import TransformersPolicy

LAGS = (1, 2, 5, 10)
ROLLOUTS = 16  # scored again per version and lag


@dataclass(frozen=True)
class LagStability:
    """Turns that are `lag` versions older than the weights that scored them again."""

    lag: int
    turns: int
    spearman: float
    top_k_overlap: float | None  # None: no rollout had more than k turns
    probability_correlation: float  # of tokens, Pearson
    probability_gap: float  # mean absolute difference


@dataclass(frozen=True)
class StabilityAudit:
    cap: int  # k
    max_staleness: int  # δ: greater lags are never trained
    lags: tuple[LagStability, ...]


@dataclass(frozen=True, eq=False)
class Rescored:
    """One rollout: disagreements and token probabilities, cached and now."""

    cached: np.ndarray
    now: np.ndarray
    cached_probabilities: np.ndarray
    probabilities: np.ndarray


def audit_stability(
    subject: Subject,
    *,
    lags: Sequence[int] = LAGS,
    rollouts: int = ROLLOUTS,
    report: Callable[[int], None] = lambda version: None,
) -> StabilityAudit:
    """Score turns again at every version that was kept; `report` hears of each version when it is done."""
    policy = RunPolicy(subject.path)
    made: dict[int, dict[str, list[Turn]]] = {}  # by version, then rollout
    for turn in subject.whole_turns():
        if why_invalid(turn) is None:
            made.setdefault(turn.version, {}).setdefault(turn.rollout, []).append(turn)
    again: dict[int, list[Rescored]] = {lag: [] for lag in lags}
    for version in policy.versions:
        current = policy.at(version)
        for lag in lags:
            older = list(made.get(version - lag, {}).values())[:rollouts]
            again[lag] += [rescore(current, turns) for turns in older]
        report(version)
    cap = subject.settings.cap or 4
    found = tuple(_stability(lag, rescored, cap) for lag, rescored in again.items() if rescored)
    if not found:
        raise InputError(
            f"{subject.path}: no turns that are {', '.join(map(str, lags))} versions older than weights it kept"
        )
    return StabilityAudit(cap, subject.settings.max_staleness, found)


def rescore(policy: "TransformersPolicy", turns: Sequence[Turn]) -> Rescored:
    """Score the valid turns of one rollout with these weights, shared prefixes once."""
    whole = [[*turn.prompt_ids, *turn.response_ids] for turn in turns]
    spans = [[(len(turn.prompt_ids), len(ids))] for turn, ids in zip(turns, whole, strict=True)]
    now: list[float] = []
    cached_tokens: list[np.ndarray] = []
    tokens: list[np.ndarray] = []
    for turn, [logprobs] in zip(turns, policy.score(whole, spans), strict=True):
        valid = np.asarray(valid_mask(turn), dtype=bool)
        now.append(float((logprobs - np.asarray(turn.teacher_logprobs))[valid].sum()))
        cached_tokens.append(np.exp(np.asarray(turn.student_logprobs, dtype=float)[valid]))
        tokens.append(np.exp(logprobs[valid]))
    cached = np.array([disagreement(turn) for turn in turns])
    return Rescored(cached, np.array(now), np.concatenate(cached_tokens), np.concatenate(tokens))


def _stability(lag: int, rescored: list[Rescored], cap: int) -> LagStability:
    cached, now = (np.concatenate([getattr(one, name) for one in rescored]) for name in ("cached", "now"))
    before = np.concatenate([one.cached_probabilities for one in rescored])
    after = np.concatenate([one.probabilities for one in rescored])
    overlaps = [top_k_overlap(one.cached, one.now, cap) for one in rescored if len(one.now) > cap]
    return LagStability(
        lag=lag,
        turns=len(now),
        spearman=spearman(cached, now),
        top_k_overlap=fmean(overlaps) if overlaps else None,
        probability_correlation=correlation(before, after),
        probability_gap=float(np.abs(before - after).mean()),
    )


def top_k_overlap(first: np.ndarray, second: np.ndarray, k: int) -> float:
    """The share of the k largest of one that are among the k largest of the other."""
    best = (set(np.argsort(-values, kind="stable")[:k].tolist()) for values in (first, second))
    return len(set.intersection(*best)) / k


def spearman(first: np.ndarray, second: np.ndarray) -> float:
    """The correlation of ranks; equal values share the mean of theirs."""
    return correlation(_ranks(first), _ranks(second))


def _ranks(values: np.ndarray) -> np.ndarray:
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[places]


def correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Pearson's; 0 where one of them is constant."""
    a, b = first - first.mean(), second - second.mean()
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale else 0.0
