"""Retention: what focus keeps and what it leaves when a rollout is given its first slots.

A rollout counts once, at the first update in which it gets slots: the turns it gives then are kept, its other valid
turns in the pool are dropped. Dropped turns wait, and some are trained later; the audit says how many. How far focus
moves the gradient depends on how the two sides differ (eq. 8, focus-estimand).
"""

from dataclasses import dataclass
from statistics import fmean

from divopd.audits.subject import DEPTHS, Subject, depth_of
from divopd.composers.composer import Candidate
from divopd.errors import InputError
from divopd.replay import replay


@dataclass(frozen=True)
class Side:
    """The kept or the dropped turns. `by_depth` is how many there are in each row of the paper's depth table."""

    turns: int
    depth: float  # mean turn number
    disagreement: float  # mean over turns of s
    disagreement_per_token: float  # mean over turns of s / |V|
    by_depth: dict[str, int]
    per_token_by_depth: dict[str, float | None]


@dataclass(frozen=True)
class RetentionAudit:
    rollouts: int
    dropped_share: float  # of turns
    trained_later: float  # of the dropped turns
    kept: Side
    dropped: Side


def audit_retention(subject: Subject) -> RetentionAudit:
    """Replay divopd over the subject's turns and look at both sides of every first selection."""
    kept: list[Candidate] = []
    dropped: list[Candidate] = []
    trained: set[tuple[str, int]] = set()
    seen: set[str] = set()
    for decision in replay(subject.recording, subject.composer("divopd")):
        new = {c.rollout for c in decision.selected} - seen
        kept += [c for c in decision.selected if c.rollout in new]
        dropped += [c for c in (*decision.pending, *decision.aged_out) if c.rollout in new]
        trained |= {c.key for c in decision.selected}
        seen |= new
    if not kept:
        raise InputError(f"{subject.path}: divopd selects no turn of it, so there is nothing to keep or drop")
    return RetentionAudit(
        rollouts=len(seen),
        dropped_share=len(dropped) / (len(kept) + len(dropped)),
        trained_later=sum(c.key in trained for c in dropped) / max(1, len(dropped)),
        kept=_side(kept),
        dropped=_side(dropped),
    )


def _side(turns: list[Candidate]) -> Side:
    groups: dict[str, list[Candidate]] = {depth: [] for depth in DEPTHS}
    for c in turns:
        groups[depth_of(c.turn)].append(c)
    return Side(
        turns=len(turns),
        depth=fmean(c.turn for c in turns) if turns else 0.0,
        disagreement=fmean(c.disagreement for c in turns) if turns else 0.0,
        disagreement_per_token=_per_token(turns) or 0.0,
        by_depth={depth: len(group) for depth, group in groups.items()},
        per_token_by_depth={depth: _per_token(group) for depth, group in groups.items()},
    )


def _per_token(turns: list[Candidate]) -> float | None:
    return fmean(c.disagreement / c.valid_tokens for c in turns) if turns else None
