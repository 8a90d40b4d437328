"""Kinds: whether a kind of task starves, and where the disagreement is. Counted in the run itself, not replayed."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from divopd.environments import kind_of
from divopd.environments.sources import kind_in_name
from divopd.errors import InputError
from divopd.run.stored_config import stored_config
from divopd.store import Store, is_store


@dataclass(frozen=True)
class Kind:
    """One kind of task. Shares are of all kinds together, of what arrived and of what was trained."""

    rollouts: int
    used: float  # share of its rollouts that gave a trained turn
    arrived: float  # share of the turns
    trained: float  # share of the trained turns; dead rows are none
    disagreement: float  # mean over its valid turns, in nats
    success_rate: float | None  # at the last evaluation, in percent


def audit_kinds(run: Path, *, trust_environment: bool = False) -> dict[str, Kind]:
    """Look at the fates of a run by kind of task; a recording has none and is refused.

    The class of a user's own environment may tell kinds, and is imported only if it is trusted: otherwise the names of
    the tasks tell them, and a run whose evaluations know other kinds is refused.
    """
    if not (run.is_dir() or is_store(run)):
        raise InputError(f"{run}: a recording has no fates, so nothing starves in it; expected a run")
    with Store.open_read_only(run) as store, store.snapshot():
        turns, evaluations = list(store.stored_turns()), store.evaluations()
    if not turns:
        raise InputError(f"{run}: no turn has arrived in this run yet")
    environment = stored_config(run if run.is_dir() else run.parent).get("environment", {})
    rates = evaluations[max(evaluations)].by_kind if evaluations else {}
    kinds = _kinds({turn.task for turn in turns}, environment, trusted=trust_environment)
    if _is_code(environment) and not trust_environment and rates and not rates.keys() & set(kinds.values()):
        raise InputError(
            f"{run}: its environment {environment['name']} tells kinds by code of its own, which an audit does not "
            "run; add --trust-environment if you trust that code"
        )
    rollouts: dict[str, set[str]] = defaultdict(set)
    used: dict[str, set[str]] = defaultdict(set)
    valid: dict[str, list[float]] = defaultdict(list)
    arrived, trained = Counter[str](), Counter[str]()
    for turn in turns:
        kind = kinds[turn.task]
        rollouts[kind].add(turn.rollout)
        arrived[kind] += 1
        if turn.reason is not None:
            continue  # a dead row takes a slot and is not trained
        valid[kind].append(turn.disagreement)
        if turn.fate.kind == "trained":
            used[kind].add(turn.rollout)
            trained[kind] += 1
    return {
        kind: Kind(
            rollouts=len(rollouts[kind]),
            used=len(used[kind]) / len(rollouts[kind]),
            arrived=arrived[kind] / arrived.total(),
            trained=trained[kind] / max(1, trained.total()),
            disagreement=sum(valid[kind]) / max(1, len(valid[kind])),
            success_rate=rates.get(kind),
        )
        for kind in sorted(rollouts)
    }


def _is_code(environment: dict[str, Any]) -> bool:
    """Whether the environment is a user's own class: FILE.py:CLASS or MODULE:CLASS."""
    return ":" in str(environment.get("name", ""))


def _kinds(tasks: set[str], environment: dict[str, Any], *, trusted: bool) -> dict[str, str]:
    """As the environment says; without one, or with one that is not trusted, as the names of the tasks do."""
    if not environment or (_is_code(environment) and not trusted):
        return {task: kind_in_name(task) for task in tasks}
    return {task: kind_of(environment["name"], task, **environment.get("settings", {})) for task in tasks}
