"""The environments by name: where they come from, what they need, and how their tasks are split (specification §8).

    environment = make_environment("alfworld-small")
    observation = environment.reset(tasks("alfworld-small", "train")[0])

What an environment needs is imported when it is used. A name such as `rooms.py:CountingRoom` or `package.module:Class`
is a user's own environment: a class with `reset` and `step`, and a static method `tasks(split)` that lists its tasks.
"""

from importlib.util import find_spec
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from divopd.environments.environment import Environment, Observation
from divopd.environments.expert import Expert, expert_actions
from divopd.environments.sources import Own
from divopd.environments.table import ENVIRONMENTS, EnvironmentEntry, Source
from divopd.errors import InputError, UnknownNameError

__all__ = [
    "ENVIRONMENTS",
    "Environment",
    "EnvironmentEntry",
    "Expert",
    "Observation",
    "expert_actions",
    "find_entry",
    "kind_of",
    "make_environment",
    "make_expert",
    "missing_parts",
    "tasks",
]


def find_entry(name: str) -> EnvironmentEntry:
    """The line of the table, or one made for a user's own environment; UnknownNameError if it is neither."""
    if name in ENVIRONMENTS:
        return ENVIRONMENTS[name]
    if ":" not in name:
        raise UnknownNameError("environment", name, [*ENVIRONMENTS, "FILE.py:CLASS"])
    own = ("train", "test")
    return EnvironmentEntry("your own", Own, own, "test", 30, 128, settings={"path": name}, in_workers=True)


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
    return missing + [what for what, check in entry.checks.items() if not check()]


def _source(name: str, settings: dict[str, Any]) -> Source:
    entry = find_entry(name)
    make = entry.source
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
