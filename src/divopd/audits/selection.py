"""Selection: from which depth and which outcome the trained turns come, as the stages are added one by one."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum

from divopd.audits.subject import DEPTHS, Subject, depth_of
from divopd.composers.composer import Candidate
from divopd.errors import InputError
from divopd.replay import replay
from divopd.turns import Turn
from divopd.validity import why_invalid

STAGES = {"vanilla": "vanilla", "+ gate": "gate-only", "+ coverage": "divopd-base", "+ focus": "divopd"}
OUTCOMES = ("failure", "success")


@dataclass(frozen=True)
class StageSelection:
    """The turns that one stage selects. Shares are of all its selected turns, dead rows among them."""

    turns: int
    shares: dict[str, dict[str, float]]  # depth, then outcome
    success_share: float
    dead_share: float
    effective_batch: float  # rows of a full batch that count
    disagreement: float  # mean s(u) of a row; a dead row has 0
    valid_disagreement: float  # the same over valid rows only


@dataclass(frozen=True)
class Rejected:
    """The rows that the gate rejects, and the shares of them for which the paper's three reasons hold."""

    rows: int
    truncated: float  # their prompt was cut
    failed: float  # their rollout failed
    unscored: float  # the teacher scored no token of them


@dataclass(frozen=True)
class SelectionAudit:
    """What was there, and what the chain of stages makes of it."""

    pool_success_share: float  # of all turns that arrived
    rejected: Rejected  # of all turns that arrived
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
        selected = [c for decision in decisions for c in decision.selected]
        stages[stage] = _stage(selected, succeeded, batch_size=subject.settings.batch_size)
    rejected = [turn for turn in subject.whole_turns() if why_invalid(turn) is not None]
    return SelectionAudit(_success_share(arrived, succeeded), _rejected(rejected), stages)


def effective_batch(batch_size: int, dead_share: float) -> float:
    """B_eff = (1 - d) B: the size of a batch without dead rows whose mean gradient varies as much.

    Exact where the valid rows' mean gradient is 0 and rows are independent (eq. 6, gate-variance).
    """
    return (1 - dead_share) * batch_size


def _rejected(turns: Sequence[Turn]) -> Rejected:
    rows = max(1, len(turns))
    return Rejected(
        rows=len(turns),
        truncated=sum(turn.prompt_truncated for turn in turns) / rows,
        failed=sum(turn.success is False for turn in turns) / rows,
        unscored=sum(not scored_tokens(turn) for turn in turns) / rows,
    )


def scored_tokens(turn: Turn) -> int:
    """How many of its tokens have a usable value of the teacher."""
    if turn.teacher_logprobs is None:
        return 0
    return len(turn.teacher_logprobs) if turn.teacher_mask is None else sum(turn.teacher_mask)


def _stage(selected: list[Candidate], succeeded: dict[str, bool], *, batch_size: int) -> StageSelection:
    counts = Counter((depth_of(c.turn), OUTCOMES[succeeded[c.rollout]]) for c in selected if c.rollout in succeeded)
    total, rows = max(1, counts.total()), max(1, len(selected))
    dead = sum(c.reason is not None for c in selected)
    disagreement = fsum(c.disagreement for c in selected)
    return StageSelection(
        turns=len(selected),
        shares={depth: {outcome: counts[depth, outcome] / total for outcome in OUTCOMES} for depth in DEPTHS},
        success_share=_success_share(selected, succeeded),
        dead_share=dead / rows,
        effective_batch=effective_batch(batch_size, dead / rows),
        disagreement=disagreement / rows,
        valid_disagreement=disagreement / max(1, len(selected) - dead),
    )


def _success_share(turns: Iterable[Candidate], succeeded: dict[str, bool]) -> float:
    known = [succeeded[c.rollout] for c in turns if c.rollout in succeeded]
    return sum(known) / max(1, len(known))
