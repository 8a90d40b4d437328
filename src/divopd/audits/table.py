"""The audits by name: each looks at a run or a recording and says its figures as JSON types."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from divopd.errors import InputError

TRUST = "trust_environment"  # a change that kinds knows: run the code of the run's own environment
Report = Callable[[int], None]  # hears of each version or update that a long audit has done
Audit = Callable[[Path, dict[str, Any], Report], dict[str, Any]]  # the second: what load_subject is told to change


def _utilization(run: Path, changes: dict[str, Any], report: Report) -> dict[str, Any]:
    from divopd.audits.subject import load_subject
    from divopd.audits.utilization import audit_utilization

    return {name: asdict(used) for name, used in audit_utilization(load_subject(run, **changes)).items()}


def uncapped_row(run: Path) -> dict[str, Any]:
    """The row of utilization that is not of the audited run: `divopd` without a cap on the recording of its own."""
    from divopd.audits.utilization import OWN_RUN, audit_uncapped

    return {OWN_RUN: asdict(audit_uncapped(run))}


def _selection(run: Path, changes: dict[str, Any], report: Report) -> dict[str, Any]:
    from divopd.audits.selection import audit_selection
    from divopd.audits.subject import load_subject

    return asdict(audit_selection(load_subject(run, **changes)))


def _retention(run: Path, changes: dict[str, Any], report: Report) -> dict[str, Any]:
    from divopd.audits.retention import audit_retention
    from divopd.audits.subject import load_subject

    return asdict(audit_retention(load_subject(run, **changes)))


def _stability(run: Path, changes: dict[str, Any], report: Report) -> dict[str, Any]:
    from divopd.audits.stability import audit_stability
    from divopd.audits.subject import load_subject

    return asdict(audit_stability(load_subject(run, **changes), report=report))


def _geometry(run: Path, changes: dict[str, Any], report: Report) -> dict[str, Any]:
    from divopd.audits.geometry import audit_geometry
    from divopd.audits.subject import load_subject

    return audit_geometry(load_subject(run, **changes), report=report).as_json()


def _cost(run: Path, changes: dict[str, Any], report: Report) -> dict[str, Any]:
    from divopd.audits.cost import audit_cost

    if changes:
        raise InputError("cost counts what a whole run did; leave out --first and the numbers of a composer")
    return audit_cost(run).as_json()


def _time(run: Path, changes: dict[str, Any], report: Report) -> dict[str, Any]:
    from divopd.audits.timing import audit_time

    if changes:
        raise InputError("time tells what a whole run did; leave out --first and the numbers of a composer")
    return audit_time(run).as_json()


def _kinds(run: Path, changes: dict[str, Any], report: Report) -> dict[str, Any]:
    from divopd.audits.kinds import audit_kinds

    trusted = changes.get(TRUST, False)
    if changes.keys() - {TRUST}:
        raise InputError("kinds counts what a whole run did; leave out --first and the numbers of a composer")
    return {name: asdict(kind) for name, kind in audit_kinds(run, trust_environment=trusted).items()}


AUDITS: dict[str, Audit] = {
    "utilization": _utilization,
    "selection": _selection,
    "retention": _retention,
    "stability": _stability,
    "geometry": _geometry,
    "cost": _cost,
    "time": _time,
    "kinds": _kinds,
}
