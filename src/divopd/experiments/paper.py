"""`divopd paper`: from items to runs, from results to tables and figures."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from divopd.errors import InputError
from divopd.experiments.arms import ARMS, CORE, SETTINGS, seeds_of
from divopd.experiments.execution import Job, missing_jobs
from divopd.experiments.items import ITEMS, Item
from divopd.experiments.results import Result, SettingResults, load_result
from divopd.experiments.sheet import Made
from divopd.experiments.wanted import Places, Wanted, settings_of


@dataclass(frozen=True)
class Plan:
    """What a command is about: where, which settings, how many seeds, and overrides for all runs."""

    places: Places
    settings: tuple[str, ...]
    seeds: int | None  # None: as many as every arm has (arms.py)
    overrides: tuple[str, ...] = ()

    def runs(self, setting: str, arms: Iterable[str]) -> list[Wanted]:
        """The runs of these arms, all arms of a seed before the next seed: when stopped, pairs are whole."""
        allowed = [arm for arm in arms if setting == "default" or arm in CORE]
        pairs = sorted((seed, arm) for arm in allowed for seed in seeds_of(setting, arm, most=self.seeds))
        return [Wanted(setting, arm, seed, self.overrides, self.places) for seed, arm in pairs]


def make_plan(places: Places, *, settings: Sequence[str], seeds: int | None, overrides: Sequence[str]) -> Plan:
    """A plan for the settings that are there; asking for one that is not is an error."""
    found = settings_of(places, tuple(settings) or None)
    for name in settings:
        if name not in SETTINGS:
            raise InputError(f"unknown setting {name!r}; expected one of {', '.join(SETTINGS)}")
        if name not in found:
            raise InputError(f"{places.configs / name}: setting {name!r} has no configurations in this checkout")
    if not found:
        raise InputError(
            f"{places.configs}: no configurations of {', '.join(SETTINGS)} there; run this in a checkout of divopd, or "
            "say where they are with --configs"
        )
    return Plan(places, tuple(found), seeds, tuple(overrides))


def wanted_by(plan: Plan, items: Iterable[Item]) -> dict[Wanted, tuple[str, ...]]:
    """All runs that items want, each with the audits wanted of it, in the order in which to make them."""
    wanted: dict[Wanted, tuple[str, ...]] = {}
    for item in items:
        for setting in plan.settings:
            for run in plan.runs(setting, item.arms):
                audits = (*wanted.get(run, ()), *item.audits_for(run.arm))
                wanted[run] = tuple(dict.fromkeys(audits))
    places = {setting: place for place, setting in enumerate(plan.settings)}

    def order(run: Wanted) -> tuple[int, bool, int]:
        return places[run.setting], run.arm not in CORE, run.seed  # the preregistered arms first

    return dict(sorted(wanted.items(), key=lambda entry: order(entry[0])))


def gather(plan: Plan, arms: Iterable[str] = ARMS) -> dict[str, SettingResults]:
    """The results that are there, of these arms and of vanilla, by setting."""
    found: dict[str, SettingResults] = {}
    for setting in plan.settings:
        runs = plan.runs(setting, dict.fromkeys(["vanilla", *arms]))
        results = [result for run in runs if (result := load_result(run)) is not None]
        if results:
            found[setting] = SettingResults(setting, results)
    return found


def make(item: Item, results: Mapping[str, SettingResults]) -> Made | None:
    """An item from the results that are there; None if they do not suffice for any setting."""
    ready = {name: one for name, one in results.items() if _suffice(item, one)}
    return item.build(ready) if ready else None


def _suffice(item: Item, results: SettingResults) -> bool:
    audited = {arm: [one for one in results.of(arm).values() if _has_audits(item, one)] for arm in item.arms}
    return any(audited.values()) and all(audited[arm] for arm in item.needs)


def _has_audits(item: Item, result: Result) -> bool:
    return all(audit in result.audits for audit in item.audits_for(result.arm))


def write(item: Item, made: Made, folder: Path) -> list[Path]:
    """NAME.md, NAME.json and NAME.png; returns what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{item.name}.{kind}" for kind in ("md", "json", "png")]
    lines = [f"# {item.title[0].upper()}{item.title[1:]} ({item.where})", "", f"`divopd paper {item.name}`", ""]
    lines += [f"![{item.title}]({item.name}.png)", ""]
    lines += [f"Picture: {made.pictured}.", ""] if made.pictured else []
    lines += [text for sheet in made.sheets for text in (sheet.markdown(), "")]
    files[0].write_text("\n".join(lines), encoding="utf-8")
    files[1].write_text(json.dumps(made.data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    made.draw(files[2])
    return files


def write_index(folder: Path) -> None:
    """README.md: what has been made so far, in the order of the items."""
    made = [item for item in ITEMS.values() if (folder / f"{item.name}.md").is_file()]
    lines = ["# Tables and figures", "", "Made by `divopd paper`; never edited by hand.", ""]
    lines += [f"- [{item.title}]({item.name}.md) ({item.where})" for item in made]
    (folder / "README.md").write_text("\n".join([*lines, ""]), encoding="utf-8")


# ── the list ──────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Outlook:
    """An item's runs: how many it wants, how many are missing, and about how many seconds of one core they take."""

    item: Item
    runs: int
    missing: int
    seconds: float


def outlook(plan: Plan) -> list[Outlook]:
    """For every item by itself; runs that items share are counted in each of them."""
    pace = {setting: _pace(plan, setting) for setting in plan.settings}
    found: list[Outlook] = []
    for item in ITEMS.values():
        wanted = wanted_by(plan, [item])
        jobs = missing_jobs(wanted)
        found.append(Outlook(item, len(wanted), len(jobs), seconds_of(jobs, pace)))
    return found


def seconds_of(jobs: Iterable[Job], pace: Mapping[str, float]) -> float:
    """About how long jobs take on one core."""
    return sum(job.size * pace[job.wanted.setting] for job in jobs)


def _pace(plan: Plan, setting: str) -> float:
    """Seconds per update: as the results that are there took, or as the setting usually takes."""
    results = gather(plan, ()).get(setting)
    stored = [one.stored for one in results.of("vanilla").values()] if results else []
    known = [one["seconds"] / len(one["updates"]["rows"]) for one in stored if one["seconds"]]
    return fmean(known) if known else SETTINGS[setting].seconds_per_update
