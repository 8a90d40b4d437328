"""What a claim is measured by: from a line of claims.yaml and the results, values by setting."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from divopd.experiments.learning import lower_shares
from divopd.experiments.results import SettingResults

Settings = Mapping[str, SettingResults]


@dataclass(frozen=True)
class Claim:
    """A line of claims.yaml. `paper` is a figure or a range; `minus` is a second measure of the same runs."""

    id: str
    where: str
    claim: str
    kind: str
    paper: float | tuple[float, float]
    of: str
    arm: str = ""
    base: str = ""
    minus: str = ""
    among: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    within: float = 0.0
    at_least: float = 0.0
    percent: bool = False


def claim_of(line: Mapping[str, Any]) -> Claim:
    """A claim from its line; lists become tuples."""
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in line.items()}
    return Claim(**fields)


def chosen(claim: Claim, settings: Settings) -> dict[str, SettingResults]:
    """The settings that a claim is about and that have results."""
    return {name: one for name, one in settings.items() if not claim.settings or name in claim.settings}


def differences(claim: Claim, settings: Settings) -> dict[str, list[float]]:
    """Arm minus base, or one measure minus the other, seed by seed."""
    if claim.minus:
        return {name: _minus(claim, one) for name, one in chosen(claim, settings).items()}
    return {name: one.differences(claim.arm, claim.base, claim.of) for name, one in chosen(claim, settings).items()}


def _minus(claim: Claim, results: SettingResults) -> list[float]:
    of, other = results.values(claim.arm, claim.of), results.values(claim.arm, claim.minus)
    return [of[seed] - other[seed] for seed in of if seed in other]


def ratios(claim: Claim, settings: Settings) -> dict[str, list[float]]:
    """Base by arm, seed by seed; of a cost, for the seeds in which both came to the target."""
    found: dict[str, list[float]] = {}
    for name, one in chosen(claim, settings).items():
        if claim.of.startswith("cost:"):
            currency = claim.of.removeprefix("cost:")
            found[name] = one.cost_quotients(claim.arm, claim.base, currency) if one.target else []
        else:
            found[name] = one.quotients(claim.arm, claim.base, claim.of)
    return found


def levels(claim: Claim, settings: Settings) -> dict[str, list[float]]:
    """A measure of one arm, seed by seed."""
    if claim.base:
        return ratios(claim, settings)
    if claim.of == "geometry:pairwise":
        return {name: _pairwise(one) for name, one in chosen(claim, settings).items()}
    return {name: list(one.values(claim.arm, claim.of).values()) for name, one in chosen(claim, settings).items()}


def shares(claim: Claim, settings: Settings) -> dict[str, list[float]]:
    """A share, seed by seed."""
    of = {"reached": _reached, "disagreement": lower_shares}.get(claim.of)
    if of is None:
        kind = claim.of.removeprefix("geometry:")
        return {name: _focus_above(one, kind) for name, one in chosen(claim, settings).items()}
    return {name: of(one) for name, one in chosen(claim, settings).items()}


def _reached(results: SettingResults) -> list[float]:
    """Whether each seed of divopd came to the target: 1 or 0."""
    if not results.target:
        return []
    return [float(results.standings["divopd", seed].costs_to_target is not None) for seed in results.of("divopd")]


def _audits(results: SettingResults) -> list[dict[str, Any]]:
    return [one.audits["geometry"] for one in results.of("divopd").values() if "geometry" in one.audits]


def _focus_above(results: SettingResults, kind: str) -> list[float]:
    return [audit["focus_above_base"][kind] / audit["decided"] for audit in _audits(results) if audit["decided"]]


def _pairwise(results: SettingResults) -> list[float]:
    return [
        fmean(one["composers"]["divopd"]["pairwise_cosine"] for one in audit["updates"]) for audit in _audits(results)
    ]
