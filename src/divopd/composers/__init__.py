"""Composers: which turns enter a learner batch. A new method is one class and one line in METHODS."""

from typing import Any

from divopd.composers.adaptive import DivOPDAdaptive
from divopd.composers.arrival import GateOnly, TurnOPD, Vanilla, VanillaWide
from divopd.composers.composer import Batch, Candidate, Composer, Decision, Settings, candidate_of
from divopd.composers.rollout_first import DivOPD, DivOPDBase
from divopd.composers.task_first import DivOPDFocus
from divopd.composers.top_scores import TopB
from divopd.errors import InputError, UnknownNameError

METHODS: dict[str, type[Composer]] = {
    "vanilla": Vanilla,
    "vanilla-wide": VanillaWide,
    "gate-only": GateOnly,
    "divopd-base": DivOPDBase,
    "divopd": DivOPD,
    "divopd-r": DivOPD,  # recovery is the explorer's part
    "divopd-focus": DivOPDFocus,
    "top-b": TopB,
    "tcod-f2b": Vanilla,  # the depth curriculum is the explorer's part
    "turnopd": TurnOPD,
    "divopd-adaptive": DivOPDAdaptive,
}
# what a method does besides composing; a replay of recorded turns cannot show it
EXPLORER_PARTS = {
    "divopd-r": "with teacher recovery in the explorer",
    "tcod-f2b": "with a depth curriculum in the explorer",
    "turnopd": "with adaptive depth in the explorer",
}


def make_composer(method: str, **settings: Any) -> Composer:
    """A composer by its name. `settings` are the fields of Settings; what is left out has the paper's value."""
    if method not in METHODS:
        raise UnknownNameError("method", method, METHODS)
    try:
        return METHODS[method](Settings(method, **settings))
    except TypeError as error:
        raise InputError(f"method {method!r}: {str(error).removeprefix('Settings.__init__() ')}") from None


__all__ = [
    "EXPLORER_PARTS",
    "METHODS",
    "Batch",
    "Candidate",
    "Composer",
    "Decision",
    "Settings",
    "candidate_of",
    "make_composer",
]
