"""Utilization: how much of the same experience each composer would have used, beside the bound none can beat."""

from dataclasses import dataclass

from divopd.audits.subject import NO_CAP, Subject
from divopd.metrics import Utilization, batch_figures, mean_of_last
from divopd.replay import replay, utilization_of

LINEUP = (
    "vanilla",
    "vanilla-wide",
    "gate-only",
    "top-b",
    "divopd-focus",
    NO_CAP,
    "divopd-base",
    "divopd",
    "divopd-adaptive",
)


@dataclass(frozen=True)
class Used:
    """What one composer used of a recording; the last two are means of the last 40 % of its batches."""

    utilization: Utilization
    effective_rollouts: float
    top1_share: float


def audit_utilization(subject: Subject, *, updates: int | None = None) -> dict[str, Used]:
    """Replay every composer over the subject's turns (the first `updates` of them, as the paper takes 100)."""
    return {
        name: _used(subject, name, min(updates or subject.recording.updates, subject.recording.updates))
        for name in LINEUP
    }


def _used(subject: Subject, name: str, updates: int) -> Used:
    composer = subject.composer(name)
    decisions = list(replay(subject.recording, composer, updates=updates))
    settings = composer.settings
    used = utilization_of(
        subject.recording, decisions, batch_size=settings.batch_size, max_staleness=settings.max_staleness
    )
    figures = [batch_figures(decision.selected, update=update) for update, decision in enumerate(decisions)]
    filled = [one for one in figures if one.rows]
    return Used(
        used,
        mean_of_last([one.effective_rollouts for one in filled]) if filled else 0.0,
        mean_of_last([one.top1_share for one in filled]) if filled else 0.0,
    )
