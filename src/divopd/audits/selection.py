"""Selection: from which depth and which outcome the trained turns come, as the stages are added one by one."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from divopd.audits.subject import DEPTHS, Subject, depth_of
from divopd.composers.composer import Candidate
from divopd.errors import InputError
from divopd.replay import replay

STAGES = {"vanilla": "vanilla", "+ gate": "gate-only", "+ coverage": "divopd-base", "+ focus": "divopd"}
OUTCOMES = ("failure", "success")


@dataclass(frozen=True)
class StageSelection:
    """The turns that one stage selects. Shares are of all its selected turns, dead rows among them."""

    turns: int
    shares: dict[str, dict[str, float]]  # depth, then outcome
    success_share: float
    dead_share: float


@dataclass(frozen=True)
class SelectionAudit:
    """What was there, and what the chain of stages makes of it."""

    pool_success_share: float  # of all turns that arrived
    stages: dict[str, StageSelection]


def audit_selection(subject: Subject) -> SelectionAudit:
    """Replay the chain vanilla → gate → coverage → focus over the subject's turns."""
    succeeded = {e.candidate.rollout: e.success for e in subject.recording.turns if e.success is not None}
    if not succeeded:
        raise InputError(
            f"{subject.path}: no turn in it says how its rollout ended (field 'success'), and this audit sorts by it"
        )
    arrived = [entry.candidate for entry in subject.recording.turns]
    stages: dict[str, StageSelection] = {}
    for stage, method in STAGES.items():
        decisions = replay(subject.recording, subject.composer(method))
        stages[stage] = _stage([c for decision in decisions for c in decision.selected], succeeded)
    return SelectionAudit(_success_share(arrived, succeeded), stages)


def _stage(selected: list[Candidate], succeeded: dict[str, bool]) -> StageSelection:
    counts = Counter((depth_of(c.turn), OUTCOMES[succeeded[c.rollout]]) for c in selected if c.rollout in succeeded)
    total = max(1, counts.total())
    return StageSelection(
        turns=len(selected),
        shares={depth: {outcome: counts[depth, outcome] / total for outcome in OUTCOMES} for depth in DEPTHS},
        success_share=_success_share(selected, succeeded),
        dead_share=sum(c.reason is not None for c in selected) / max(1, len(selected)),
    )


def _success_share(turns: Iterable[Candidate], succeeded: dict[str, bool]) -> float:
    known = [succeeded[c.rollout] for c in turns if c.rollout in succeeded]
    return sum(known) / max(1, len(known))
