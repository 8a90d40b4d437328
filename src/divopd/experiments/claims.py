"""The table of claims: each numbered claim of the paper, our measurement, and a verdict by a rule stated in advance."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import yaml

from divopd.experiments.arms import SETTINGS
from divopd.experiments.measuring import Claim, claim_of, differences, levels, ratios, shares
from divopd.experiments.results import SettingResults
from divopd.experiments.sheet import Sheet, as_json
from divopd.report.seeds import Interval, interval_of, ratio_interval_of

Settings = Mapping[str, SettingResults]
Verdict = Literal["holds", "does not hold", "not decidable here"]
HOLDS, FAILS, OPEN = "holds", "does not hold", "not decidable here"
FEWEST = 3  # pairs, seeds or settings


@dataclass(frozen=True)
class Judged:
    """A claim, what was measured (by setting, and over all of them), and the verdict."""

    claim: Claim
    verdict: Verdict
    ours: str
    interval: Interval | None
    by_setting: dict[str, list[float]]


@dataclass(frozen=True)
class ClaimsTable:
    rules: dict[str, str]
    judged: tuple[Judged, ...]
    settings: dict[str, dict[str, list[int]]]  # seeds that were there, by setting and arm

    @property
    def counts(self) -> dict[str, int]:
        found = Counter(one.verdict for one in self.judged)
        return {verdict: found[verdict] for verdict in (HOLDS, FAILS, OPEN)}

    def sheets(self) -> list[Sheet]:
        rows = [
            [one.claim.id, one.claim.where, one.claim.claim, _paper(one.claim), one.ours, one.verdict]
            for one in self.judged
        ]
        counts = ", ".join(f"{count} {verdict}" for verdict, count in self.counts.items())
        heads = ["", "where", "claim", "paper", "ours [95 %]", "verdict"]
        return [Sheet(f"claims: {counts}", heads, rows, texts=6)]


def judge_all(settings: Settings) -> ClaimsTable:
    """Judge every claim by the results that are there."""
    text = (files("divopd.experiments") / "claims.yaml").read_text(encoding="utf-8")
    data = yaml.safe_load(text)
    judged = tuple(JUDGES[claim.kind](claim, settings) for claim in map(claim_of, data["claims"]))
    seeds = {name: {arm: sorted(one.of(arm)) for arm in one.arms} for name, one in settings.items()}
    return ClaimsTable(data["rules"], judged, seeds)


# ── one judge per kind ────────────────────────────────────────────────────────────────────────────────────────────


def _difference(claim: Claim, settings: Settings) -> Judged:
    found = differences(claim, settings)
    interval = _over(found, interval_of)
    figure = _figure(claim)
    verdict: Verdict = OPEN
    if interval and interval.count >= FEWEST:
        side = 1 if figure >= 0 else -1
        low, high = sorted((side * interval.low, side * interval.high))
        verdict = _one_sided(low, high, null=0.0, paper=side * figure)
    return Judged(claim, verdict, _shown(interval, claim, sign="+"), interval, found)


def _ratio(claim: Claim, settings: Settings) -> Judged:
    found = ratios(claim, settings)
    interval = _over(found, ratio_interval_of)
    verdict: Verdict = OPEN
    if interval and interval.count >= FEWEST:
        verdict = _one_sided(interval.low, interval.high, null=1.0, paper=_figure(claim))
    return Judged(claim, verdict, _shown(interval, claim, digits=2, unit="×"), interval, found)


def _one_sided(low: float, high: float, *, null: float, paper: float) -> Verdict:
    """Claimed: above the null value."""
    if low > null:
        return HOLDS
    return FAILS if high < null or high < paper else OPEN


def _tie(claim: Claim, settings: Settings) -> Judged:
    found = differences(claim, settings)
    interval = _over(found, interval_of)
    verdict: Verdict = OPEN
    if interval and interval.count >= FEWEST:
        if interval.low > 0 or interval.high < 0:
            verdict = FAILS
        elif max(-interval.low, interval.high) <= claim.within:
            verdict = HOLDS
    return Judged(claim, verdict, _shown(interval, claim, sign="+"), interval, found)


def _level(claim: Claim, settings: Settings) -> Judged:
    found = levels(claim, settings)
    interval = _over(found, interval_of)
    assert isinstance(claim.paper, tuple)
    low, high = claim.paper
    verdict: Verdict = OPEN
    if interval and interval.count >= FEWEST:
        verdict = HOLDS if interval.low <= high and interval.high >= low else FAILS
    return Judged(claim, verdict, _shown(interval, claim, digits=2), interval, found)


def _settings(claim: Claim, settings: Settings) -> Judged:
    costs = claim.of.startswith("cost:")
    found = ratios(claim, settings) if costs else differences(claim, settings)
    known = {name: values for name, values in found.items() if values}
    null = 1.0 if costs else 0.0
    better = sum(fmean(values) > null for values in known.values())
    assert isinstance(claim.paper, tuple)
    wins, of = claim.paper
    enough = bool(known) and better / len(known) >= wins / of
    verdict: Verdict = OPEN if len(known) < FEWEST else HOLDS if enough else FAILS
    return Judged(claim, verdict, f"{better} of {len(known)}", None, found)


def _share(claim: Claim, settings: Settings) -> Judged:
    found = shares(claim, settings)
    values = list(chain.from_iterable(found.values()))
    if not values:
        return Judged(claim, OPEN, "–", None, found)
    verdict: Verdict = HOLDS if fmean(values) >= claim.at_least else FAILS
    return Judged(claim, verdict, f"{100 * fmean(values):.0f} %", interval_of(values), found)


def _near_zero(claim: Claim, settings: Settings) -> Judged:
    found = levels(claim, settings)
    interval = _over(found, interval_of)
    verdict: Verdict = OPEN
    if interval and interval.count >= FEWEST:
        if -claim.within <= interval.low and interval.high <= claim.within:
            verdict = HOLDS
        elif interval.low > claim.within or interval.high < -claim.within:
            verdict = FAILS
    return Judged(claim, verdict, _shown(interval, claim, digits=3), interval, found)


def _highest(claim: Claim, settings: Settings) -> Judged:
    for name, one in settings.items():
        means = {arm: one.mean(arm, claim.of) for arm in claim.among if one.of(arm)}
        own = one.mean(claim.arm, claim.of) if one.of(claim.arm) else None
        if name not in claim.settings or own is None or len(means) < len(claim.among):
            continue
        gaps = {arm: interval_of(one.differences(claim.arm, arm, claim.of)) for arm in means}
        rival = min(gaps, key=lambda arm: gaps[arm].mean)
        verdict: Verdict = OPEN
        if own.count >= FEWEST and any(gap.high < 0 for gap in gaps.values()):
            verdict = FAILS
        elif own.count >= FEWEST and all(gap.low > 0 for gap in gaps.values()):
            verdict = HOLDS
        ours = f"{own.mean:.1f}; {gaps[rival].mean:+.1f} to {rival}"
        return Judged(claim, verdict, ours, own, {arm: [gap.mean] for arm, gap in gaps.items()})
    return Judged(claim, OPEN, "–", None, {})


def _spread(claim: Claim, settings: Settings) -> Judged:
    """The largest spread over settings, as the paper says "up to"."""
    found: dict[str, list[float]] = {}
    widest = 0.0
    for name, one in settings.items():
        means = [one.mean(arm, claim.of) for arm in claim.among if one.of(arm)]
        known = [mean for mean in means if mean is not None and mean.count >= FEWEST]
        if len(known) == len(claim.among):
            found[name] = [max(mean.mean for mean in known) - min(mean.mean for mean in known)]
            widest = max(widest, *(mean.high - mean.low for mean in known))
    if not found:
        return Judged(claim, OPEN, "–", None, found)
    spread, needed = max(chain.from_iterable(found.values())), _figure(claim) / 2
    verdict: Verdict = OPEN
    if spread >= needed and spread > widest:
        verdict = HOLDS
    elif spread < needed and widest < needed:
        verdict = FAILS
    return Judged(claim, verdict, f"{spread:.1f} (widest interval {widest:.1f})", None, found)


JUDGES: dict[str, Callable[[Claim, Settings], Judged]] = {
    "difference": _difference,
    "ratio": _ratio,
    "tie": _tie,
    "level": _level,
    "settings": _settings,
    "share": _share,
    "near_zero": _near_zero,
    "highest": _highest,
    "spread": _spread,
}


def _over(found: Mapping[str, list[float]], mean: Callable[[list[float]], Interval]) -> Interval | None:
    """Over all seeds of all settings."""
    values = list(chain.from_iterable(found.values()))
    return mean(values) if values else None


def _figure(claim: Claim) -> float:
    assert isinstance(claim.paper, int | float)
    return float(claim.paper)


def _shown(interval: Interval | None, claim: Claim, *, digits: int = 1, sign: str = "", unit: str = "") -> str:
    if interval is None:
        return "–"
    scale, unit = (100.0, _percent_of(claim)) if claim.percent else (1.0, unit)
    digits = 1 if claim.percent else max(digits, 2 if abs(interval.mean) < 1 else digits)
    limits = f" [{scale * interval.low:.{digits}f}, {scale * interval.high:.{digits}f}]" if interval.count > 1 else ""
    return f"{scale * interval.mean:{sign}.{digits}f}{unit}{limits} (n = {interval.count})"


def _percent_of(claim: Claim) -> str:
    """Differences of percentages are in points."""
    return " points" if claim.kind in ("difference", "tie") else " %"


def _paper(claim: Claim) -> str:
    in_percent = claim.percent or claim.kind == "share"
    scale, unit = (100, _percent_of(claim)) if in_percent else (1, "×" if claim.kind == "ratio" else "")
    if isinstance(claim.paper, tuple):
        first, second = (f"{scale * value:g}" for value in claim.paper)
        return f"{first} of {second}" if claim.kind == "settings" else f"{first}–{second}{unit}"
    return f"{scale * claim.paper:{'+' if claim.kind == 'difference' else ''}.4g}{unit}"


# ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def write_claims(table: ClaimsTable, folder: Path) -> list[Path]:
    """claims.md and claims.json."""
    folder.mkdir(parents=True, exist_ok=True)
    files_written = [folder / "claims.md", folder / "claims.json"]
    files_written[0].write_text(_markdown(table), encoding="utf-8")
    files_written[1].write_text(json.dumps(_json(table), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return files_written


def _markdown(table: ClaimsTable) -> str:
    lines = [
        "# The paper's claims, measured here",
        "",
        "Made by `divopd paper claims` from the files in `results/`; never edited by hand. The runs were made by",
        "`divopd paper --all` with tiny models on the virtual clock: other models, sizes and numbers than the",
        "paper's, so what is judged is whether a claim carries over, not whether the paper is right. Claims,",
        "measures and rules stand in `src/divopd/experiments/claims.yaml`. n counts paired seeds over all settings.",
        "",
        *(text for sheet in table.sheets() for text in (sheet.markdown(), "")),
        "## Rules",
        "",
        *(f"- **{kind.replace('_', ' ')}**: {rule}" for kind, rule in table.rules.items()),
        "",
        "## Runs",
        "",
    ]
    for setting, arms in table.settings.items():
        lines += [f"{SETTINGS[setting].title} (`configs/{setting}`), seeds:", ""]
        lines += [f"- {arm}: {', '.join(map(str, seeds))}" for arm, seeds in arms.items()]
        lines.append("")
    return "\n".join(lines)


def _json(table: ClaimsTable) -> dict[str, Any]:
    claims = [
        {
            "id": one.claim.id,
            "where": one.claim.where,
            "claim": one.claim.claim,
            "kind": one.claim.kind,
            "paper": one.claim.paper,
            "ours": as_json(one.interval),
            "shown": one.ours,
            "by_setting": one.by_setting,
            "verdict": one.verdict,
        }
        for one in table.judged
    ]
    return {"counts": table.counts, "rules": table.rules, "seeds": table.settings, "claims": claims}
