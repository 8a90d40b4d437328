"""The table of claims for readers: docs/claims.md, docs/claims.json and the terminal."""

import json
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any

from divopd.experiments.arms import SETTINGS
from divopd.experiments.claims import ClaimsTable, InSetting, Judged
from divopd.experiments.measuring import Claim
from divopd.experiments.sheet import MISSING, Sheet, as_json
from divopd.report.seeds import Interval

INTRODUCTION = """\
# The paper's claims, measured here

Made by `divopd paper claims` from the files in `results/`; never edited by hand. The runs were made by
`divopd paper --all` with tiny models on the virtual clock: other models, sizes and numbers than the paper's, so what is
judged is whether a claim carries over, not whether the paper is right. Claims and rules stand in
`src/divopd/experiments/claims.yaml`; what the paper has is computed from its tables where they have it. n counts seeds,
or pairs of runs of one seed.
"""


def sheets(table: ClaimsTable) -> list[Sheet]:
    """The claims with their verdicts, and what was measured in each setting."""
    counts = ", ".join(f"{count} {verdict}" for verdict, count in table.counts.items() if count)
    rows = [
        [
            one.claim.id,
            one.claim.where,
            one.claim.claim,
            paper_cell(one),
            ours_cell(one),
            *_words(one),
            verdict_cell(one),
            missing_cell(one),
        ]
        for one in table.judged
    ]
    heads = ["", "where", "claim", "paper", "ours [95 %]", "direction", "size", "verdict", "what would decide it"]
    by_setting = [
        [one.claim.id, _short(name), _shown(row.interval, one.claim), row.direction, row.size]
        for one in table.judged
        if len(one.by_setting) > 1
        for name, row in one.by_setting.items()
    ]
    below = ["", "setting", "ours [95 %]", "direction", "size"]
    return [
        Sheet(f"{len(rows)} claims: {counts}", heads, rows, texts=len(heads)),
        Sheet("Setting by setting, against the range over the paper's settings", below, by_setting, texts=len(below)),
    ]


def write_claims(table: ClaimsTable, folder: Path) -> list[Path]:
    """claims.md and claims.json."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "claims.md", folder / "claims.json"]
    written[0].write_text(_markdown(table), encoding="utf-8")
    written[1].write_text(json.dumps(_json(table), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return written


# ── cells ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def paper_cell(judged: Judged) -> str:
    """The paper's figure, and its range over settings where it has one."""
    claim, paper = judged.claim, judged.paper
    low, high = paper.range
    if claim.kind == "settings":
        return f"{low:g} of {high:g}"
    if claim.kind == "share" and claim.paper is None:
        return "more than half"
    if claim.kind == "share":
        return f"{100 * paper.figure:g} %"
    if claim.kind in ("spread", "highest"):
        return f"{paper.figure:g} {'points' if claim.kind == 'spread' else '%'}"
    shown = _number(low, claim) if low == high else f"{_number(low, claim)} to {_number(high, claim)}"
    if low == high or claim.kind == "level" or claim.paper is not None:
        return shown + _unit(claim)
    mean = f"{_number(paper.figure, claim)}{_unit(claim)}"
    return f"{shown}{_unit(claim)} (mean {mean})" if claim.over == "each" else f"{mean} (in its settings {shown})"


def ours_cell(judged: Judged) -> str:
    """The mean over settings, or the value of every setting."""
    if judged.ours:
        return judged.ours
    if judged.interval:
        settings = f"{len(judged.by_setting)} settings, " if len(judged.by_setting) > 1 else ""
        return _shown(judged.interval, judged.claim).replace("(n", f"({settings}n")
    found = [f"{_short(name)} {_shown(row.interval, judged.claim)}" for name, row in judged.by_setting.items()]
    return "; ".join(found) or MISSING


def verdict_cell(judged: Judged) -> str:
    return f"{judged.verdict} ({', '.join(judged.notes)})" if judged.notes else judged.verdict


def missing_cell(judged: Judged) -> str:
    """What a claim that is not decided lacks: settings that were not run, or seeds."""
    if judged.verdict != "not decided":
        return ""
    if judged.unrun:
        return f"runs of {', '.join(map(_short, judged.unrun))}"
    if judged.seeds_to_decide is None:
        return "no number of seeds"
    return f"about {judged.seeds_to_decide:,} seeds"


def _words(judged: Judged) -> tuple[str, str]:
    """Direction and size; where settings differ, how many are which."""
    if judged.interval is not None or not judged.by_setting:
        return judged.direction, judged.size
    rows = list(judged.by_setting.values())
    return _counted([row.direction for row in rows]), _counted([row.size for row in rows])


def _counted(words: list[Any]) -> str:
    if len(set(words)) == 1:
        return words[0]
    return ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))


def _shown(interval: Interval, claim: Claim) -> str:
    shown = _number(interval.mean, claim) + _unit(claim)
    if interval.low > -inf and interval.high < inf and interval.count > 1:
        shown += f" [{_number(interval.low, claim)}, {_number(interval.high, claim)}]"
    return f"{shown} (n = {interval.count})"


def _number(value: float, claim: Claim) -> str:
    """With a sign if it is a difference; digits by what is measured, so that all numbers of a row have as many."""
    if claim.kind == "share" or claim.percent:
        return f"{100 * value:{_sign(claim)}.1f}"
    if isinstance(value, int):
        return str(value)
    digits = 3 if claim.of.startswith(("stability", "geometry")) else 1 if _in_points(claim) else 2
    return f"{value:{_sign(claim)}.{digits}f}"


def _sign(claim: Claim) -> str:
    cost = claim.of.startswith("cost:")
    return "+" if claim.kind == "difference" or claim.minus_base or (claim.kind == "settings" and not cost) else ""


def _in_points(claim: Claim) -> bool:
    """Whether it is a success rate or its area, which are in percent already."""
    return claim.of in ("peak", "final", "final_five", "best_five", "nauc")


def _unit(claim: Claim) -> str:
    if claim.kind == "ratio" or claim.of.startswith("cost:"):
        return "×"
    if _in_points(claim) or (claim.percent and (claim.kind == "difference" or claim.minus)):
        return " points"
    return " %" if claim.percent or claim.kind == "share" else ""


def _short(name: str) -> str:
    return SETTINGS[name].title.split(",")[0]


# ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _markdown(table: ClaimsTable) -> str:
    main, by_setting = (sheet.markdown() for sheet in sheets(table))
    lines = [INTRODUCTION, main, "", "## Notes", "", *_notes(table), "", by_setting, ""]
    lines += ["## How a verdict is made", "", *(f"- **{name}**: {rule}" for name, rule in table.rules.items()), ""]
    lines += ["## Runs", ""]
    for setting, arms in table.settings.items():
        lines += [f"{SETTINGS[setting].title} (`configs/{setting}`), seeds:", ""]
        lines += [f"- {arm}: {', '.join(map(str, seeds))}" for arm, seeds in arms.items()]
        lines.append("")
    return "\n".join(lines)


def _notes(table: ClaimsTable) -> Iterator[str]:
    """Why a claim was withdrawn or is not measured: every note with the claims that refer to it."""
    for name, text in table.notes.items():
        claims = ", ".join(one.claim.id for one in table.judged if name in one.notes)
        if claims:
            yield f"- **{name}** ({claims}): {text}"


def _json(table: ClaimsTable) -> dict[str, Any]:
    claims = [
        {
            "id": one.claim.id,
            "where": one.claim.where,
            "claim": one.claim.claim,
            "kind": one.claim.kind,
            "paper": {"figure": one.paper.figure, "range": one.paper.range, "by_setting": one.paper.values},
            "ours": as_json(one.interval),
            "shown": ours_cell(one),
            "by_setting": {name: _setting_json(row) for name, row in one.by_setting.items()},
            "direction": one.direction,
            "size": one.size,
            "verdict": one.verdict,
            "notes": one.notes,
            "unrun": one.unrun,
            "seeds_to_decide": one.seeds_to_decide,
        }
        for one in table.judged
    ]
    return {
        "counts": table.counts,
        "rules": table.rules,
        "notes": table.notes,
        "seeds": table.settings,
        "claims": claims,
    }


def _setting_json(row: InSetting) -> dict[str, Any]:
    return {
        "values": row.values,
        "interval": as_json(row.interval),
        "direction": row.direction,
        "size": row.size,
        "verdict": row.verdict,
    }
