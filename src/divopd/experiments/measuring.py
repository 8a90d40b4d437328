"""What a claim is measured by: from a line of claims.yaml and the results, values by setting."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any, Literal

from divopd.experiments.learning import lower_shares
from divopd.experiments.results import SettingResults

Settings = Mapping[str, SettingResults]


@dataclass(frozen=True)
class Claim:
    """A line of claims.yaml, whose head says what the fields are."""

    id: str
    where: str
    claim: str
    kind: Literal["difference", "ratio", "level", "share", "settings", "highest", "spread"]
    of: str
    over: Literal["mean", "each"] = "mean"
    paper: float | tuple[float, float] | None = None
    accept: tuple[float, float] | None = None
    side: Literal[1, -1] | None = None
    arm: str = ""
    base: str = ""
    minus: str = ""
    minus_base: bool = False
    load: Literal["low", "medium", "high"] | None = None
    among: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    percent: bool = False
    withdrawn: tuple[str, ...] = ()
    unmeasured: str = ""
    construction: str = ""

    @property
    def arms(self) -> tuple[str, ...]:
        """All arms whose runs it is about."""
        return tuple(name for name in (self.arm, self.base, *self.among) if name)


def claim_of(line: Mapping[str, Any]) -> Claim:
    """A claim from its line; lists become tuples."""
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in line.items()}
    return Claim(**fields)


def chosen(claim: Claim, settings: Settings) -> dict[str, SettingResults]:
    """The settings that a claim is about and that have results."""
    return {name: one for name, one in settings.items() if not claim.settings or name in claim.settings}


def differences(claim: Claim, settings: Settings) -> dict[str, list[float]]:
    """Arm minus base, or one measure minus the other, seed by seed."""
    if claim.of == "geometry:cosine":
        return {name: _cosine_gains(one) for name, one in chosen(claim, settings).items()}
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
    """A measure of one arm, a difference or a ratio, seed by seed."""
    if claim.minus or claim.minus_base:
        return differences(claim, settings)
    if claim.base:
        return ratios(claim, settings)
    kind, _, name = claim.of.partition(":")
    audited = {"geometry": _pairwise, "stability": partial(_stability, field=name)}.get(kind)
    if audited:
        return {name: audited(one) for name, one in chosen(claim, settings).items()}
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


def _cosine_gains(results: SettingResults) -> list[float]:
    """Cosine with the pool's gradient, of focus minus of base, in the mean of the audited updates."""

    def cosine(audit: dict[str, Any], composer: str) -> float:
        return fmean(one["composers"][composer]["cosine"] for one in audit["updates"])

    return [cosine(audit, "divopd") - cosine(audit, "divopd-base") for audit in _audits(results)]


def _stability(results: SettingResults, *, field: str) -> list[float]:
    """A figure of the stability audit at the largest lag that a trained row can have."""
    audits = [one.audits["stability"] for one in results.of("divopd").values() if "stability" in one.audits]
    return [lag[field] for audit in audits for lag in audit["lags"] if lag["lag"] == audit["max_staleness"]]


def _pairwise(results: SettingResults) -> list[float]:
    return [
        fmean(one["composers"]["divopd"]["pairwise_cosine"] for one in audit["updates"]) for audit in _audits(results)
    ]
