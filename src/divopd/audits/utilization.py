"""Utilization: how much of the same experience each composer would have used, beside the bound none can beat."""

from dataclasses import dataclass
from pathlib import Path

from divopd.audits.subject import NO_CAP, Subject, is_run, load_subject
from divopd.composers import DivOPD
from divopd.errors import InputError
from divopd.methods import METHODS
from divopd.metrics import Utilization, batch_figures, mean_of_last
from divopd.replay import replay, utilization_of

LINEUP = (
    "vanilla",
    "vanilla-wide",
    "gate-only",
    "top-b",
    "divopd-focus",
    f"divopd-base{NO_CAP}",
    "divopd-base",
    "divopd",
    "divopd-adaptive",
)
OWN_RUN = f"divopd{NO_CAP}, own run"


@dataclass(frozen=True)
class Used:
    """What one composer used of a recording; the last two are means of the last 40 % of its updates."""

    utilization: Utilization
    effective_rollouts: float
    top1_share: float


def audit_utilization(subject: Subject) -> dict[str, Used]:
    """Replay every composer over the subject's turns."""
    return {name: _used(subject, name) for name in LINEUP}


def audit_uncapped(path: Path) -> Used:
    """`divopd` without its cap on the recording of its own run, from the first to the last update.

    Another run than such a one is refused; a recording as JSON lines cannot say whose it is, and is taken for one.
    """
    subject = load_subject(path)
    settings = subject.settings
    if is_run(path) and (METHODS[settings.method].composer is not DivOPD or settings.cap is not None):
        raise InputError(
            f"{path}: a run of {settings.method} with cap {settings.cap or 'none'}; expected one of divopd without a "
            "cap (divopd train … --set composer.cap=null)"
        )
    return _used(subject, f"divopd{NO_CAP}")


def _used(subject: Subject, name: str) -> Used:
    composer = subject.composer(name)
    decisions = list(replay(subject.recording, composer))
    settings = composer.settings
    used = utilization_of(
        subject.recording, decisions, batch_size=settings.batch_size, max_staleness=settings.max_staleness
    )
    figures = [batch_figures(decision.selected, update=update) for update, decision in enumerate(decisions)]
    return Used(
        used,
        mean_of_last([one.effective_rollouts for one in figures]) if figures else 0.0,
        mean_of_last([one.top1_share for one in figures]) if figures else 0.0,
    )
