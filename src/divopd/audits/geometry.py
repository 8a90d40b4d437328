"""Gradient geometry: what the batches of all composers, from the same pools, do to the mean gradient of the pool.

Audited are the updates before which the run kept its weights, so that every gradient is taken where the learner took
it. The pools are those of divopd over the run's turns; every composer selects from the same ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from divopd.audits.run_policy import RunPolicy
from divopd.audits.sketch import SIZE, KroneckerSketch
from divopd.audits.subject import Subject
from divopd.composers.composer import Candidate
from divopd.errors import InputError
from divopd.replay import replay

LINEUP = {
    "arrival order": "vanilla",
    "gate-only": "gate-only",
    "divopd-base": "divopd-base",
    "divopd": "divopd",
    "divopd-focus": "divopd-focus",
    "top-b": "top-b",
}
EXPECTED_BASE, ORACLE = "divopd-base, expected", "sketch oracle"


@dataclass(frozen=True)
class Alignment:
    """A batch's gradient beside that of its pool; the last is the mean over pairs of its rows."""

    projection: float  # ⟨G, Ĝ⟩ / ‖G‖²
    cosine: float
    pairwise_cosine: float | None  # None: an expectation has no rows


@dataclass(frozen=True)
class UpdateGeometry:
    """One audited update. Dropped: the valid turns that focus leaves in rollouts to which it gives slots."""

    update: int
    turns: int  # valid ones in the pool
    composers: dict[str, Alignment]
    dropped_turns: float
    dropped_norm: float  # share of Σ ‖g‖ of those rollouts' turns


@dataclass(frozen=True)
class GeometryAudit:
    size: int  # of the sketch
    updates: tuple[UpdateGeometry, ...]

    @property
    def decided(self) -> int:
        """Audited updates in which focus and base could select different turns."""
        return sum(one.dropped_turns > 0 for one in self.updates)

    def focus_above(self, base: str) -> int:
        """In how many of them focus has the larger projection."""
        return sum(
            one.composers["divopd"].projection > one.composers[base].projection
            for one in self.updates
            if one.dropped_turns > 0
        )

    def as_json(self) -> dict[str, Any]:
        above = {"drawn": self.focus_above("divopd-base"), "expected": self.focus_above(EXPECTED_BASE)}
        return asdict(self) | {"decided": self.decided, "focus_above_base": above}


def audit_geometry(
    subject: Subject,
    *,
    updates: int = 8,
    size: int = SIZE,
    report: Callable[[int], None] = lambda update: None,
) -> GeometryAudit:
    """Audit the last `updates` pools before which weights were kept; `report` hears of each when it is done."""
    policy = RunPolicy(subject.path)
    known = [version for version in policy.versions if version < subject.recording.updates][-updates:]
    audited: list[UpdateGeometry] = []
    for update, pool in pools(subject, known).items():
        if sum(c.reason is None for c in pool) >= 2:
            audited.append(_audit(subject, pool, update, KroneckerSketch(policy.at(update), size=size)))
        report(update)
    if not audited:
        raise InputError(f"{subject.path}: no pool with weights kept before it; expected a run with evaluations")
    return GeometryAudit(size, tuple(audited))


def pools(subject: Subject, updates: Sequence[int]) -> dict[int, list[Candidate]]:
    """The pools of divopd at these updates, stale turns left out, in arrival order."""
    arrival = {entry.candidate.key: place for place, entry in enumerate(subject.recording.turns)}
    found: dict[int, list[Candidate]] = {}
    for update, decision in enumerate(replay(subject.recording, subject.composer("divopd"))):
        if update in updates:
            pool = [*decision.selected, *decision.invalid, *decision.aged_out, *decision.pending]
            found[update] = sorted(pool, key=lambda c: arrival[c.key])
    return found


def _audit(subject: Subject, pool: list[Candidate], update: int, sketch: KroneckerSketch) -> UpdateGeometry:
    whole = {turn.key: turn for turn in subject.turns}
    valid = [c for c in pool if c.reason is None]
    row = {c.key: place for place, c in enumerate(valid)}
    gradients = sketch.gradients([whole[c.key] for c in valid])
    center = gradients.mean(0)
    chosen = {label: subject.composer(method).decide(pool, update=update).selected for label, method in LINEUP.items()}
    composers: dict[str, Alignment] = {}
    for label, selected in chosen.items():
        rows = gradients[[row[c.key] for c in selected if c.reason is None]]
        composers[label] = _alignment(center, rows.sum(0) / len(selected), rows)  # a dead row counts in N
    focus = chosen["divopd"]
    composers[EXPECTED_BASE] = _alignment(center, expected_base(valid, focus, gradients), None)
    best = gradients[(gradients @ center).topk(min(len(focus), len(valid))).indices]
    composers[ORACLE] = _alignment(center, best.mean(0), best)
    dropped_turns, dropped_norm = _dropped(valid, focus, gradients.norm(dim=1))
    return UpdateGeometry(update, len(valid), composers, dropped_turns, dropped_norm)


def expected_base(valid: list[Candidate], selected: list[Candidate], gradients: Tensor) -> Tensor:
    """Σ n_r/B ḡ_r: the mean over all draws of a uniform choice with the same slots per rollout (the paper's Cor. 1)."""
    slots: dict[str, int] = {}
    for c in selected:
        slots[c.rollout] = slots.get(c.rollout, 0) + 1
    sizes: dict[str, int] = {}
    for c in valid:
        sizes[c.rollout] = sizes.get(c.rollout, 0) + 1
    weights = [slots.get(c.rollout, 0) / sizes[c.rollout] / len(selected) for c in valid]
    return torch.tensor(weights, dtype=gradients.dtype) @ gradients


def _alignment(center: Tensor, mean: Tensor, rows: Tensor | None) -> Alignment:
    product = float(center @ mean)
    return Alignment(
        projection=product / float(center @ center),
        cosine=product / float(center.norm() * mean.norm()),
        pairwise_cosine=None if rows is None else _pairwise_cosine(rows),
    )


def _pairwise_cosine(rows: Tensor) -> float:
    """Over all pairs: of unit vectors, ‖Σ u‖² is the number of rows plus twice the sum of their cosines."""
    units = torch.nn.functional.normalize(rows[rows.norm(dim=1) > 0], dim=1)
    count = len(units)
    return float((units.sum(0).square().sum() - count) / (count * (count - 1))) if count > 1 else 0.0


def _dropped(valid: list[Candidate], selected: list[Candidate], norms: Tensor) -> tuple[float, float]:
    kept, served = {c.key for c in selected}, {c.rollout for c in selected}
    inside = [(c.key in kept, float(norm)) for c, norm in zip(valid, norms, strict=True) if c.rollout in served]
    left = [norm for is_kept, norm in inside if not is_kept]
    return len(left) / len(inside), sum(left) / sum(norm for _, norm in inside)
