"""The methods: which composer fills a batch, what its rows weigh, where rollouts begin and end, who helps.

A new method is one line of METHODS and, if it has a new idea, one class or function where its kind lives: composers/,
composers/weights.py, curricula.py. Its name is compared nowhere else.
"""

from dataclasses import dataclass
from typing import Any

from divopd.composers import (
    Composer,
    DivOPD,
    DivOPDAdaptive,
    DivOPDBase,
    DivOPDFocus,
    GateOnly,
    Settings,
    TopB,
    Vanilla,
    VanillaWide,
)
from divopd.composers.composer import RowWeights, equal_rows
from divopd.composers.weights import equal_rollouts, turn_aware
from divopd.curricula import AdaptedDepth, Curriculum, FullDepth, GrowingDepth, RetreatingStart
from divopd.errors import InputError, UnknownNameError


@dataclass(frozen=True)
class Method:
    """A composer with its row weights, and what the method asks of the explorers."""

    composer: type[Composer]
    weights: RowWeights = equal_rows
    weighs_by_rollout: bool = False  # its weights want to know `rollout_turns` and `rollout_valid_tokens`
    curriculum: type[Curriculum] = FullDepth
    recovers: bool = False  # the teacher acts for a stuck student
    explorers: str = ""  # what it asks of the explorers, in words
    bounds_budget: bool = True  # U of nAUC is the smallest last evaluated version of the runs of such methods

    def make_composer(self, settings: Settings) -> Composer:
        """A composer of this method."""
        return self.composer(settings, weights=self.weights)


METHODS: dict[str, Method] = {
    "vanilla": Method(Vanilla),
    "vanilla-wide": Method(VanillaWide),
    "gate-only": Method(GateOnly),
    "divopd-base": Method(DivOPDBase),
    "divopd": Method(DivOPD),
    "divopd-r": Method(DivOPD, recovers=True, explorers="teacher recovery"),
    "divopd-focus": Method(DivOPDFocus, weights=equal_rollouts, bounds_budget=False),  # some of its runs are shorter
    "top-b": Method(TopB),
    "tcod-f2b": Method(Vanilla, curriculum=GrowingDepth, explorers="a depth curriculum"),
    "tcod-b2f": Method(Vanilla, curriculum=RetreatingStart, explorers="expert actions replayed first, ever fewer"),
    "turnopd": Method(
        Vanilla, weights=turn_aware, weighs_by_rollout=True, curriculum=AdaptedDepth, explorers="adaptive depth"
    ),
    "divopd-adaptive": Method(DivOPDAdaptive),
}
BASELINE = "vanilla"  # what costs and targets refer to


def find_method(name: str) -> Method:
    """A method by its name; an UnknownNameError suggests the nearest one."""
    if name not in METHODS:
        raise UnknownNameError("method", name, METHODS)
    return METHODS[name]


def bounds_budget(name: str) -> bool:
    """Whether runs of this method count for U of nAUC (specification §9); those of a method nobody knows do."""
    return name not in METHODS or METHODS[name].bounds_budget


def make_composer(method: str, **settings: Any) -> Composer:
    """A composer by its method's name. `settings` are the fields of Settings; those left out have the paper's value."""
    kind = find_method(method)
    try:
        return kind.make_composer(Settings(method, **settings))
    except TypeError as error:
        raise InputError(f"method {method!r}: {str(error).removeprefix('Settings.__init__() ')}") from None
