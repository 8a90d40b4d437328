"""What the paper's own tables say about a claim, setting by setting: computed from paper_tables.json."""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from divopd.experiments.arms import SETTINGS
from divopd.experiments.measuring import Claim

Record = Mapping[str, Any]
LOADS = {"low load": "low", "medium load": "medium", "": "high"}
CONTROLS = {"divopd-base, no cap": ("matched_cap", "uncapped"), "vanilla-wide": ("matched_access", "vanilla")}
TIMED = ("divopd", "vanilla")  # the methods of the table of resources
SPEEDUPS = {"cost:trained_tokens": "token_speedup", "cost:learner_s": "gpu_speedup"}


@cache
def paper_tables() -> dict[str, Any]:
    """All tables of the paper, as records."""
    return json.loads((files("divopd.experiments") / "paper_tables.json").read_text(encoding="utf-8"))


def paper_values(claim: Claim) -> dict[str, float]:
    """The paper's values by setting (or environment, or load): empty where its tables do not have them.

    Of the settings of the environments that the claim is about. Differences are arm minus base, ratios base by arm.
    """
    about = {SETTINGS[name].environment for name in claim.settings or SETTINGS}
    found = dict(_values(claim))
    return {name: value for name, value in found.items() if name.split("-")[0] in about or name in LOADS.values()}


def _values(claim: Claim) -> Iterator[tuple[str, float]]:
    kind, _, name = claim.of.partition(":")
    if claim.load is not None:
        yield from _load(claim)
    elif claim.base in CONTROLS:
        table, prefix = CONTROLS[claim.base]
        yield from _pairs(table, claim.of, f"{prefix}_{claim.of}")
    elif claim.kind == "spread":
        yield from _spreads("cap_sweep", claim.of)
    elif kind == "late" and claim.base:
        yield from _quotients("composition", name, claim)
    elif kind == "late":
        yield from ((r["setting"], r[name]) for r in _records("composition", claim.arm) if name in r)
    elif kind == "audit":
        yield from _audited(claim)
    else:
        yield from _main(claim)


def _main(claim: Claim) -> Iterator[tuple[str, float]]:
    """Success, and cost to the target, of two methods of the main table."""
    for setting, arm, base in _both("main", claim):
        if claim.of in ("peak", "final_five"):
            yield setting, arm[claim.of] - base[claim.of]
        elif arm["updates"] is None or base["updates"] is None:
            continue
        elif claim.of in SPEEDUPS:
            yield setting, arm[SPEEDUPS[claim.of]] / base[SPEEDUPS[claim.of]]
        elif claim.of == "version_at_target":
            yield setting, base["updates"] / arm["updates"]
        elif claim.of == "tokens_per_update":  # the ratio of tokens to τ, without that of updates to τ
            yield setting, arm["token_speedup"] / base["token_speedup"] * arm["updates"] / base["updates"]
    if claim.of == "cost:elapsed_s" and (claim.arm, claim.base) == TIMED:
        yield from ((r["setting"], r["wall"]) for r in _records("resources") if r["setting"] != "geometric-mean")


def _load(claim: Claim) -> Iterator[tuple[str, float]]:
    """A load of the stress test: one method, or two of them."""
    of = {method: r[claim.of] for method in ("vanilla", "divopd-base") for r in _at_load(method, str(claim.load))}
    arm = claim.arm.split(",")[0]
    combine: Callable[[float, float], float] = {
        "ratio": lambda ours, other: other / ours,
        "difference": lambda ours, other: ours - other,
        "level": lambda ours, other: ours - other if claim.minus_base else ours,
    }[claim.kind]
    yield str(claim.load), combine(of[arm], of["vanilla"])


def _at_load(method: str, load: str) -> Iterator[Record]:
    yield from (record for record in _records("producer_load", method) if record["load"] == load)


def _audited(claim: Claim) -> Iterator[tuple[str, float]]:
    """Utilization, in shares; of the stages of selection, the share of one cell."""
    audit, *path = claim.of.removeprefix("audit:").split("/")
    if audit == "utilization":
        less = claim.minus.split("/")[1] if claim.minus else None
        for ours in _records("utilization", path[0]):
            others = [r for r in _records("utilization", less) if r["environment"] == ours["environment"]]
            scale = 100 if path[-1] == "never_selected" else 1
            yield ours["environment"], (ours[path[-1]] - (others[0][path[-1]] if less else 0)) / scale
    elif path[2] == "shares":
        for record in _records("depth_outcome"):
            if record["depth"] == path[3].replace(" ", "") and record["success"] == (path[4] == "success"):
                yield "alfworld-1.7b", (record["focus"] - record["coverage"]) / 100


def _pairs(table: str, ours: str, other: str) -> Iterator[tuple[str, float]]:
    yield from ((record["setting"], record[ours] - record[other]) for record in _records(table))


def _spreads(table: str, of: str) -> Iterator[tuple[str, float]]:
    for setting in dict.fromkeys(record["setting"] for record in _records(table)):
        values = [record[of] for record in _records(table) if record["setting"] == setting]
        yield setting, max(values) - min(values)


def _quotients(table: str, of: str, claim: Claim) -> Iterator[tuple[str, float]]:
    yield from ((setting, base[of] / arm[of]) for setting, arm, base in _both(table, claim))


def _both(table: str, claim: Claim) -> Iterator[tuple[str, Record, Record]]:
    """The records of the claim's two methods, setting by setting."""
    base = {record["setting"]: record for record in _records(table, claim.base)}
    yield from ((r["setting"], r, base[r["setting"]]) for r in _records(table, claim.arm) if r["setting"] in base)


def _records(table: str, method: str | None = None) -> list[Record]:
    records = paper_tables()[table]["records"]
    return [record for record in records if method is None or record["method"] == method]
