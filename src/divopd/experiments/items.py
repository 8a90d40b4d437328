"""The paper's tables and figures, one item each: which runs it wants, which audits of them, what it makes of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from divopd.experiments import audited, controls, explored, learning, preregistered
from divopd.experiments.arms import CAPS, CORE, LOADS, MAIN, READERS, UNCAPPED
from divopd.experiments.results import SettingResults
from divopd.experiments.sheet import Made

Build = Callable[[Mapping[str, SettingResults]], Made]


@dataclass(frozen=True)
class Item:
    """A table or figure. In other settings than the default one only the arms of CORE are run.

    `needs` are the arms without which a setting is left out; `audits` are made of the runs of `divopd`, or of all arms
    (`audits_of_all`).
    """

    name: str
    title: str
    where: str  # in the paper
    arms: tuple[str, ...]
    build: Build
    needs: tuple[str, ...] = ()
    audits: tuple[str, ...] = ()
    audits_of_all: tuple[str, ...] = ()

    def audits_for(self, arm: str) -> tuple[str, ...]:
        return self.audits_of_all + (self.audits if arm == audited.SOURCE else ())


def _control(
    name: str,
    title: str,
    where: str,
    *,
    arm: str,
    base: str,
    measures: tuple[str, ...],
    costs: tuple[str, ...] = (),
    note: str = "",
) -> Item:
    build = partial(controls.control, arm=arm, base=base, measures=measures, costs=costs, note=note)
    arms = tuple(dict.fromkeys(("vanilla", base, arm)))
    return Item(name, title, where, arms, build, needs=(arm, base))


def _audit(name: str, title: str, where: str, build: Build, *audits: str, beside: tuple[str, ...] = ()) -> Item:
    return Item(name, title, where, (audited.SOURCE, *beside), build, needs=(audited.SOURCE,), audits=audits)


ITEMS = {
    item.name: item
    for item in (
        Item(
            "preregistered",
            "the comparisons of the preregistration",
            "ours: docs/preregistration.md",
            (*CORE, *(arm for arm, _ in preregistered.EXTRA)),
            preregistered.build,
            needs=CORE,
        ),
        Item(
            "exploratory",
            "what was tried beside the preregistered comparisons",
            "ours: docs/preregistration.md",
            explored.ARMS,
            explored.build,
            needs=("vanilla",),
        ),
        Item("main", "success and cost to τ of all methods", "Tables 1 and 7", MAIN, learning.main_table),
        Item("composition", "how batches are composed", "Table 9, Figure 2", MAIN, learning.composition),
        Item("fixed-budget", "learning curves and nAUC", "Figures 3 and 4", MAIN, learning.fixed_budget),
        Item(
            "load",
            "low, medium and high producer load, and admission control",
            "Table 2",
            (
                *READERS,
                *(f"{reader}, {load} load" for load in LOADS for reader in READERS),
                *(f"{reader}, admission" for reader in READERS),
            ),
            learning.producer_load,
            needs=tuple(f"{reader}, {load} load" for load in LOADS for reader in READERS),
        ),
        _control(
            "cap",
            "cap against no cap, same candidates",
            "Table 18, Figure 5a; there one seed, 42",
            arm="divopd-base",
            base="divopd-base, no cap",
            measures=("peak", "final_five"),
        ),
        _control(
            "access",
            "rollout-first against arrival order, same candidates",
            "Table 17",
            arm="divopd-base",
            base="vanilla-wide",
            measures=("peak", "best_five", "final"),
            note="vanilla-wide composes exactly vanilla's batches if W ≥ δ − 1: an empty control here (see claims.md).",
        ),
        _control(
            "focus",
            "focus against uniform choice, same allocation",
            "Figure 5b and c",
            arm="divopd",
            base="divopd-base",
            measures=("peak", "final_five"),
            costs=("learner_s",),
        ),
        Item(
            "cap-sweep",
            "first-pass cap k = 3 … 6",
            "Table 19",
            tuple(f"divopd, k={cap}" for cap in CAPS),
            controls.cap_sweep,
            needs=tuple(f"divopd, k={cap}" for cap in CAPS),
        ),
        Item(
            "staleness",
            "staleness limit 2 against 4",
            "Table 12",
            ("vanilla", "vanilla, staleness 4"),
            controls.staleness,
            needs=("vanilla", "vanilla, staleness 4"),
        ),
        _control(
            "recovery",
            "teacher recovery against none",
            "Figure 9",
            arm="divopd-r",
            base="divopd",
            measures=("peak", "final_five"),
            costs=("learner_s",),
        ),
        _audit(
            "utilization",
            "rollouts never selected, and the bound",
            "Table 11",
            audited.utilization,
            "utilization",
            beside=(UNCAPPED,),
        ),
        _audit("selection", "selected turns by depth and outcome", "Table 14", audited.selection, "selection"),
        _audit("retention", "what focus keeps and drops", "Table 10", audited.retention, "retention", "geometry"),
        _audit("geometry", "selected gradients against the pool's", "Table 13", audited.geometry, "geometry"),
        _audit("stability", "cached against recomputed disagreement", "Appendix E.2", audited.stability, "stability"),
        Item(
            "cost",
            "tokens and seconds of explorers, teacher, learner",
            "Tables 15 and 16, Figure 8",
            MAIN,
            audited.cost,
            audits_of_all=("cost",),
        ),
        Item(
            "disagreement",
            "spread of disagreement over a batch's rollouts",
            "Figures 6 and 7",
            ("vanilla", "divopd"),
            learning.disagreement,
            needs=("vanilla", "divopd"),
        ),
    )
}
