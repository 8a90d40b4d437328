"""The environments by name: where they come from, what they need, and how their tasks are split (SPEC §8).

    environment = make_environment("alfworld-small")
    observation = environment.reset(tasks("alfworld-small", "train")[0])

Nothing is imported before it is used. A name such as `rooms.py:CountingRoom` or `package.module:Class` is a user's own
environment: a class with `reset` and `step`, and a static method `tasks(split)` that lists its tasks.
"""

from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from divopd.environments.environment import Environment, Observation
from divopd.environments.expert import Expert
from divopd.errors import InputError, UnknownNameError, how_to_install

__all__ = [
    "ENVIRONMENTS",
    "Environment",
    "EnvironmentEntry",
    "Expert",
    "Observation",
    "find_entry",
    "kind_of",
    "make_environment",
    "make_expert",
    "missing_parts",
    "tasks",
]


@dataclass(frozen=True)
class EnvironmentEntry:
    """One line of the table. `source` is the class in sources.py that makes it; `settings` are given to that class."""

    summary: str
    source: str
    splits: tuple[str, ...]
    evaluation_split: str
    horizon: int  # turns of a rollout
    evaluation_tasks: int  # an evaluation plays the first so many tasks of its split
    side_by_side: int = 64  # an evaluation makes at most so many environments: some are a process each
    recorded: int | None = None  # demonstrations are so many rollouts told again: playing is slower than learning
    settings: dict[str, Any] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    checks: dict[str, str] = field(
        default_factory=dict
    )  # what else must be there: the function in sources.py that looks
    install: str = "nothing to install"


ENVIRONMENTS = {
    "alfworld": EnvironmentEntry(
        "ALFWorld's official games in the native engine",
        source="Alfworld",
        settings={"games": "official"},
        splits=("train", "valid_seen", "valid_unseen", "valid_train"),
        evaluation_split="valid_seen",
        horizon=30,
        evaluation_tasks=140,
        checks={"official games": "has_alfworld_games"},
        install=f"{how_to_install('alfworld')}, then alfworld-download, and set ALFWORLD_DATA to the folder it made",
    ),
    "alfworld-small": EnvironmentEntry(
        "ALFWorld games generated in small homes",
        source="Alfworld",
        settings={"games": "small"},
        splits=("train", "test"),
        evaluation_split="test",
        horizon=30,
        evaluation_tasks=140,
    ),
    "alfworld-large": EnvironmentEntry(
        "ALFWorld games generated in homes of the official size",
        source="Alfworld",
        settings={"games": "large"},
        splits=("train", "test"),
        evaluation_split="test",
        horizon=30,
        evaluation_tasks=140,
    ),
    "scienceworld": EnvironmentEntry(
        "ScienceWorld in the real simulator",
        source="ScienceWorldTasks",
        splits=("train", "held-out"),
        evaluation_split="held-out",
        horizon=30,
        evaluation_tasks=256,
        side_by_side=8,
        modules=("scienceworld",),
        checks={"java": "has_java"},
        install=f"{how_to_install('scienceworld')}, and a Java runtime (Debian: apt install openjdk-17-jre-headless)",
    ),
    "scienceworld-short": EnvironmentEntry(
        "ScienceWorld's find-* tasks in few words",
        source="ShortScienceWorldTasks",
        splits=("train", "test"),
        evaluation_split="test",
        horizon=15,
        evaluation_tasks=64,
        side_by_side=4,
        recorded=600,
        modules=("scienceworld",),
        checks={"java": "has_java"},
        install=f"{how_to_install('scienceworld')}, and a Java runtime (Debian: apt install openjdk-17-jre-headless)",
    ),
    "webshop": EnvironmentEntry(
        "WebShop on its official product files",
        source="Shopping",
        settings={"catalogue": "official"},
        splits=("train", "test"),
        evaluation_split="test",
        horizon=15,
        evaluation_tasks=128,
        modules=("bm25s", "Stemmer", "rapidfuzz"),
        checks={"official products": "has_webshop_products"},
        install=f"{how_to_install('webshop')}, then set DIVOPD_DATA to a folder with the product files in webshop/",
    ),
    "webshop-small": EnvironmentEntry(
        "WebShop with a synthetic catalogue and short pages",
        source="Shopping",
        settings={"catalogue": "synthetic", "pages": "short"},
        splits=("train", "test"),
        evaluation_split="test",
        horizon=15,
        evaluation_tasks=128,
        modules=("bm25s", "Stemmer", "rapidfuzz"),
        install=how_to_install("webshop"),
    ),
    "gym": EnvironmentEntry(
        "any Gymnasium text environment (setting: id)",
        source="Gym",
        splits=("train", "test"),
        evaluation_split="test",
        horizon=30,
        evaluation_tasks=128,
        modules=("gymnasium",),
        install=how_to_install("gym"),
    ),
    "openenv": EnvironmentEntry(
        "an OpenEnv server (setting: url)",
        source="OpenEnv",
        splits=("train", "test"),
        evaluation_split="test",
        horizon=30,
        evaluation_tasks=128,
        modules=("openenv",),
        install=how_to_install("openenv"),
    ),
}


def find_entry(name: str) -> EnvironmentEntry:
    """The line of the table, or one made for a user's own environment; UnknownNameError if it is neither."""
    if name in ENVIRONMENTS:
        return ENVIRONMENTS[name]
    if ":" not in name:
        raise UnknownNameError("environment", name, [*ENVIRONMENTS, "FILE.py:CLASS"])
    own = ("train", "test")
    return EnvironmentEntry("your own", "Own", own, "test", 30, 128, settings={"path": name})


def make_environment(name: str, **settings: Any) -> Environment:
    """A new environment. Several may be made and used side by side, each by one thread at a time."""
    return _source(name, settings).environment()


def make_expert(name: str, environment: Environment) -> Expert:
    """The expert for an environment that `make_environment(name)` made; InputError if there is none."""
    return _source(name, {}).expert(environment)


def tasks(name: str, split: str, **settings: Any) -> list[str]:
    """The tasks of a split in training or evaluation order: the same on any machine and with any hash seed."""
    entry = find_entry(name)
    if split not in entry.splits:
        raise UnknownNameError(f"split of {name}", split, entry.splits)
    return _source(name, settings).tasks(split)


def kind_of(name: str, task: str, **settings: Any) -> str:
    """What kind of task it is, for tables: ALFWorld's and ScienceWorld's task types, WebShop's number of options.

    A user's own environment says it with a static method `kind(task)`; without one it is the name up to the first /,
    and `all` for a name without one.
    """
    return _source(name, settings).kind(task)


def missing_parts(name: str) -> list[str]:
    """What has to be installed or downloaded before the environment runs; empty if it is ready."""
    entry = find_entry(name)
    missing = [module for module in entry.modules if find_spec(module) is None]
    return missing + [what for what, check in entry.checks.items() if not _in_sources(check)()]


def _source(name: str, settings: dict[str, Any]) -> Any:
    entry = find_entry(name)
    make = _in_sources(entry.source)
    known = get_type_hints(make)
    for setting, value in settings.items():
        if setting not in known:
            raise UnknownNameError(f"setting of {name}", setting, list(known))
        _check(f"{setting} of {name}", value, known[setting])
    return make(**entry.settings | settings)


def _check(what: str, value: Any, wanted: Any) -> None:
    """Settings come from files and command lines: a wrong word or type is told before anything is loaded."""
    if get_origin(wanted) is Literal:
        if value not in get_args(wanted):
            raise UnknownNameError(what, str(value), get_args(wanted))
        return
    wanted = wanted | int if wanted is float else wanted
    if not isinstance(value, wanted) or isinstance(value, bool):
        kinds = get_args(wanted) if isinstance(wanted, UnionType) else (wanted,)
        raise InputError(f"{what} is {value!r}; expected {' or '.join(kind.__name__ for kind in kinds)}")


def _in_sources(name: str) -> Any:
    return getattr(import_module("divopd.environments.sources"), name)
