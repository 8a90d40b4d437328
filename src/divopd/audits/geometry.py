"""Gradient geometry: what the batches of all composers, from the same pools, do to the mean gradient of the pool.

Audited are the last updates of a run. It kept the weights from which they started (`audits.keep_last`), so every
gradient is taken where the learner took it. The pools are those of divopd over the run's turns; every composer selects
from the same ones.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from statistics import fmean
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
BY_DISAGREEMENT = ("divopd", "divopd-focus", "top-b")  # the rules that look at s(u)
UPDATES = 8
ROUNDING = 1e-5  # two composers that select the same turns in another order differ by less


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
    composers: dict[str, Alignment]  # against the mean over turns
    rollout_mean: dict[str, Alignment]  # the same against the mean over rollouts of each rollout's mean
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

    @property
    def oracle_ratio(self) -> float:
        """The oracle's projection by that of the best rule that looks at s(u)."""
        return oracle_ratio(self._projections("composers"))

    @property
    def swapped_pairs(self) -> int:
        """How many pairs of composers the rollout-mean pool gradient ranks the other way round."""
        turns, rollouts = self._projections("composers"), self._projections("rollout_mean")
        gaps = [(turns[a] - turns[b], rollouts[a] - rollouts[b]) for a, b in combinations(LINEUP, 2)]
        return sum(one * other < 0 and min(abs(one), abs(other)) > ROUNDING for one, other in gaps)

    def _projections(self, against: str) -> dict[str, float]:
        """The mean projection of every composer."""
        found: list[dict[str, Alignment]] = [getattr(one, against) for one in self.updates]
        return {name: fmean(one[name].projection for one in found) for name in found[0]}

    def as_json(self) -> dict[str, Any]:
        above = {"drawn": self.focus_above("divopd-base"), "expected": self.focus_above(EXPECTED_BASE)}
        derived = {"decided": self.decided, "focus_above_base": above}
        return asdict(self) | derived | {"oracle_ratio": self.oracle_ratio, "swapped_pairs": self.swapped_pairs}


def oracle_ratio(projections: Mapping[str, float]) -> float:
    """How much further the oracle projects than the best rule that looks at s(u) does."""
    return projections[ORACLE] / max(projections[name] for name in BY_DISAGREEMENT)


def audit_geometry(
    subject: Subject,
    *,
    updates: int = UPDATES,
    size: int = SIZE,
    report: Callable[[int], None] = lambda update: None,
) -> GeometryAudit:
    """Audit the last `updates` updates of a run as far as their weights were kept; `report` hears of each."""
    policy = RunPolicy(subject.path)
    last = range(max(0, subject.recording.updates - updates), subject.recording.updates)
    known = [version for version in policy.versions if version in last]
    if not known:
        raise InputError(
            f"{subject.path}: the weights before its last {len(last)} updates were not kept; got those of versions "
            f"{', '.join(map(str, policy.versions))}, expected a run with audits.keep_last of 1 or more"
        )
    audited: list[UpdateGeometry] = []
    for update, pool in pools(subject, known).items():
        if sum(c.reason is None for c in pool) >= 2:
            audited.append(_audit(subject, pool, update, KroneckerSketch(policy.at(update), size=size)))
        report(update)
    if not audited:
        raise InputError(f"{subject.path}: no pool of its last {len(last)} updates has two valid turns to compare")
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
    valid = [c for c in pool if c.reason is None]
    whole = subject.whole([c.key for c in valid])
    row = {c.key: place for place, c in enumerate(valid)}
    gradients = sketch.gradients([whole[c.key] for c in valid])
    chosen = {label: subject.composer(method).decide(pool, update=update).selected for label, method in LINEUP.items()}
    focus = chosen["divopd"]
    means: dict[str, tuple[Tensor, Tensor | None]] = {}  # Ĝ, and the gradients of the selected rows
    for label, selected in chosen.items():
        rows = gradients[[row[c.key] for c in selected if c.reason is None]]
        means[label] = rows.sum(0) / len(selected), rows  # a dead row counts in N
    means[EXPECTED_BASE] = expected_base(valid, focus, gradients), None
    dropped_turns, dropped_norm = _dropped(valid, focus, gradients.norm(dim=1))
    return UpdateGeometry(
        update,
        len(valid),
        composers=_against(gradients.mean(0), means, gradients, size=len(focus)),
        rollout_mean=_against(rollout_mean(valid, gradients), means, gradients, size=len(focus)),
        dropped_turns=dropped_turns,
        dropped_norm=dropped_norm,
    )


def _against(
    center: Tensor, means: Mapping[str, tuple[Tensor, Tensor | None]], gradients: Tensor, *, size: int
) -> dict[str, Alignment]:
    """Every selection beside one gradient of the pool, and the oracle for that gradient."""
    best = oracle(center, gradients, size=size)
    return {label: _alignment(center, *mean) for label, mean in {**means, ORACLE: (best.mean(0), best)}.items()}


def oracle(center: Tensor, gradients: Tensor, *, size: int) -> Tensor:
    """The gradients of the B turns with the largest ⟨G, g⟩: no other B turns project further on G."""
    return gradients[(gradients @ center).topk(min(size, len(gradients))).indices]


def rollout_mean(valid: Sequence[Candidate], gradients: Tensor) -> Tensor:
    """The rollout-mean pool gradient: the mean over rollouts of ḡ_r, the mean over a rollout's valid turns."""
    sizes = Counter(c.rollout for c in valid)
    weights = [1 / (len(sizes) * sizes[c.rollout]) for c in valid]
    return torch.tensor(weights, dtype=gradients.dtype) @ gradients


def expected_base(valid: list[Candidate], selected: list[Candidate], gradients: Tensor) -> Tensor:
    """Σ n_r/B ḡ_r: the mean over all draws of a uniform choice with the same slots per rollout.

    The paper's eq. 7, coverage-estimand.
    """
    slots, sizes = Counter(c.rollout for c in selected), Counter(c.rollout for c in valid)
    weights = [slots[c.rollout] / sizes[c.rollout] / len(selected) for c in valid]
    return torch.tensor(weights, dtype=gradients.dtype) @ gradients


def _alignment(center: Tensor, mean: Tensor, rows: Tensor | None) -> Alignment:
    product, scale = float(center @ mean), float(center.norm() * mean.norm())
    return Alignment(
        projection=product / float(center @ center),
        cosine=product / scale if scale else 0.0,  # a batch of dead rows only
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
