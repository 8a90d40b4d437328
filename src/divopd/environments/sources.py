"""One small class per line of the table: lists tasks and tells their kind, makes environments and experts.

Its fields are the settings.

A source is cheap to make. What is expensive (a shop with its index, a collection of games) is loaded when it is first
needed and shared by all environments of the process that have the same settings.
"""

import importlib.util
import os
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from divopd.environments.checked import CheckedEnvironment, guarded, has_lone_surrogate
from divopd.environments.environment import Environment
from divopd.environments.expert import Expert
from divopd.environments.limited import limited
from divopd.errors import InputError
from divopd.printable import one_line

MOST_TASKS = 1_000_000  # of a split of a user's class
MOST_NAME = 10_000  # characters of the name of a task
LOADING_S = 360.0  # of importing a user's file, or of listing its tasks: as long as a reset


@dataclass(frozen=True, kw_only=True)
class Alfworld:
    """`games`: official, small or large. `engine`: native, or package for the real alfworld package (slow)."""

    games: str = "official"
    engine: Literal["native", "package"] = "native"

    def tasks(self, split: str) -> list[str]:
        names = list(_games(self.games).tasks(split))
        if split == "train":  # the official file is sorted by task type
            names.sort()
            random.Random(42).shuffle(names)
        return names

    def kind(self, task: str) -> str:
        """The task type, one of six."""
        from divopd.environments.alfworld.problem import read_problem

        return read_problem(_games(self.games).game(task).problem).goal.task_type

    def environment(self) -> Environment:
        from divopd.environments import alfworld

        make = alfworld.PackageEnvironment if self.engine == "package" else alfworld.AlfworldEnvironment
        return make(_games(self.games))

    def expert(self, environment: Environment) -> Expert:
        from divopd.environments.alfworld import Expert

        return Expert()


@dataclass(frozen=True, kw_only=True)
class ScienceWorldTasks:
    """The settings of scienceworld.ScienceWorld. Listing its tasks needs neither java nor the package."""

    simplifications: str = "easy"
    actions: Literal["listed", "unlisted"] = "unlisted"
    timeout_s: float = 120.0

    def tasks(self, split: str) -> list[str]:
        from divopd.environments.scienceworld.split import tasks

        return tasks(split)

    def kind(self, task: str) -> str:
        return kind_in_name(task)

    def environment(self) -> Environment:
        from divopd.environments.scienceworld import ScienceWorld

        return ScienceWorld(simplifications=self.simplifications, actions=self.actions, timeout_s=self.timeout_s)

    def expert(self, environment: Any) -> Expert:
        from divopd.environments.scienceworld.gold import GoldExpert

        return GoldExpert(environment)


@dataclass(frozen=True, kw_only=True)
class ShortScienceWorldTasks:
    """The settings of scienceworld.short.ShortScienceWorld."""

    simplifications: str = "easy"
    timeout_s: float = 120.0

    def tasks(self, split: str) -> list[str]:
        from divopd.environments.scienceworld.short import tasks

        return tasks(split)

    def kind(self, task: str) -> str:
        return kind_in_name(task)

    def environment(self) -> Environment:
        from divopd.environments.scienceworld.short import ShortScienceWorld

        return ShortScienceWorld(simplifications=self.simplifications, timeout_s=self.timeout_s)

    def expert(self, environment: Environment) -> Expert:
        from divopd.environments.scienceworld.short import FindExpert

        return FindExpert()


@dataclass(frozen=True, kw_only=True)
class Shopping:
    """`catalogue`: official, synthetic, or a path to product files (see webshop/catalogue.py). `goals`: synthetic or
    human. `pages`: full as in the original, or short for small models. `products` and `kinds` size a synthetic
    catalogue (300 products of 30 kinds unless they are said); `seed` is of its contents and of all hidden draws.
    """

    catalogue: str = "official"
    goals: Literal["synthetic", "human"] = "synthetic"
    pages: Literal["full", "short"] = "full"
    products: int | None = None
    kinds: int | None = None
    seed: int = 0

    def tasks(self, split: Any) -> list[str]:
        return self._shop().tasks(split)

    def kind(self, task: str) -> str:
        """By how many options have to be chosen: it says most about the length of a rollout."""
        number = len(self._shop().goal(task).options)
        return f"{number} option{'s' * (number != 1)}"

    def environment(self) -> Environment:
        from divopd.environments import webshop

        return webshop.WebShop(self._shop(), layout=webshop.SHORT if self.pages == "short" else webshop.FULL)

    def expert(self, environment: Any) -> Expert:
        from divopd.environments.webshop import SHORT, Expert

        return Expert(emphasis=1) if environment.layout is SHORT else Expert()  # a small model has to write the query

    def _shop(self) -> Any:
        if self.catalogue == "synthetic":
            size = {"products": self.products, "kinds": self.kinds}
            return _made_up_shop(self.goals, self.seed, **{name: size[name] for name in size if size[name] is not None})
        if self.products is not None or self.kinds is not None:
            raise InputError(
                f"products and kinds size a synthetic catalogue, but the catalogue is {self.catalogue!r}; "
                "leave them out, or set the catalogue to synthetic"
            )
        return _shop(self.catalogue, self.goals, self.seed)


@dataclass(frozen=True, kw_only=True)
class Gym:
    """`id` as gymnasium.make takes it (`module:Name-v0` imports the module first). Tasks are seeds."""

    id: str = ""

    def tasks(self, split: str) -> list[str]:
        return _seeds(split)

    def kind(self, task: str) -> str:
        return kind_in_name(task)

    def environment(self) -> Environment:
        from divopd.environments.gym import make_gym

        if not self.id:
            raise InputError("environment gym: the setting id is missing; expected what gymnasium.make takes")
        return make_gym(self.id)

    def expert(self, environment: Environment) -> Expert:
        raise InputError("a Gymnasium environment brings no expert; act yourself, or with the policy random")


@dataclass(frozen=True, kw_only=True)
class OpenEnv:
    """`url` of the server; the fields are those of its action and observation that hold text. Tasks are seeds."""

    url: str = ""
    action_field: str = "text"
    text_field: str = "text"

    def tasks(self, split: str) -> list[str]:
        return _seeds(split)

    def kind(self, task: str) -> str:
        return kind_in_name(task)

    def environment(self) -> Environment:
        from divopd.environments.openenv import OpenEnvEnvironment

        if not self.url:
            raise InputError("environment openenv: the setting url is missing; expected the address of a server")
        return OpenEnvEnvironment(self.url, action_field=self.action_field, text_field=self.text_field)

    def expert(self, environment: Environment) -> Expert:
        raise InputError("an OpenEnv server brings no expert; act yourself, or with the policy random")


@dataclass(frozen=True, kw_only=True)
class Own:
    """A user's class, as `FILE.py:CLASS` or `MODULE:CLASS`; static methods `expert()` and `kind(task)` are optional.

    `loading_s`: how long its import, `tasks`, `kind` and `expert` may each take; the command's own process runs them.
    """

    path: str
    loading_s: float = LOADING_S

    def tasks(self, split: str) -> list[str]:
        listed = self._part("tasks")
        names = self._call(f"tasks({split!r})", lambda: list(islice(listed(split), MOST_TASKS + 1)))
        if len(names) > MOST_TASKS:
            raise InputError(f"{self.path}: tasks({split!r}) has more than {MOST_TASKS:,} names; expected fewer")
        if wrong := [name for name in names if not isinstance(name, str)]:
            raise InputError(f"{self.path}: tasks({split!r}) has {wrong[0]!r} in it; expected a list of strings")
        if wrong := [name for name in names if has_lone_surrogate(name)]:
            raise InputError(
                f"{self.path}: tasks({split!r}) has {wrong[0]!a} in it, with half a surrogate pair; "
                "expected names that can be written as UTF-8"
            )
        if wrong := [name for name in names if len(name) > MOST_NAME]:
            got = f"a name of {len(wrong[0]):,} characters in it, {wrong[0][:40]!a}…"
            raise InputError(f"{self.path}: tasks({split!r}) has {got}; expected at most {MOST_NAME:,}")
        return names

    def kind(self, task: str) -> str:
        tell = getattr(self._class(), "kind", kind_in_name)
        kind = self._call(f"kind({task!r})", lambda: tell(task))
        if not isinstance(kind, str) or has_lone_surrogate(kind):
            raise InputError(f"{self.path}: kind({task!r}) is {kind!a}; expected a string")
        return kind

    def environment(self) -> Environment:
        own = self._class()
        return CheckedEnvironment(guarded(f"environment {own.__name__}()", own))

    def expert(self, environment: Environment) -> Expert:
        return self._call("expert()", self._part("expert"))

    def _class(self) -> Any:
        with limited(f"environment {self.path}: importing it", seconds=self.loading_s):
            return _own_class(self.path)

    def _call(self, what: str, call: Callable[[], Any]) -> Any:
        where = f"{self.path}: {what}"
        with limited(where, seconds=self.loading_s):
            return guarded(where, call)

    def _part(self, name: str) -> Any:
        part = getattr(self._class(), name, None)
        if part is None:
            raise InputError(f"{self.path} has no static method {name!r}; see examples/counting_room")
        return part


# ── what is shared, and what is there ─────────────────────────────────────────────────────────────────────────────


def has_java() -> bool:
    from divopd.environments.scienceworld.jvm import find_java

    try:
        find_java()
    except InputError:
        return False
    return True


def has_alfworld_games() -> bool:
    from divopd.environments.alfworld import find_official_games

    return find_official_games() is not None


def has_webshop_products() -> bool:
    return _official_products() is not None


def _official_products() -> Path | None:
    folder = Path(os.environ.get("DIVOPD_DATA") or "") / "webshop"
    return folder if os.environ.get("DIVOPD_DATA") and folder.is_dir() else None


@lru_cache(maxsize=4)
def _games(name: str) -> Any:
    from divopd.environments.alfworld import open_games

    return open_games(name)


@lru_cache(maxsize=2)
def _shop(catalogue: str, goals: Any, seed: int) -> Any:
    from divopd.environments.webshop import open_shop

    data = Path(catalogue)
    if catalogue == "official":
        data = _official_products()
        if data is None:
            raise InputError(
                "WebShop's official product files were not found; set DIVOPD_DATA to a folder that has them in "
                "webshop/, set the catalogue to their path, or shop in webshop-small, which needs none"
            )
    return open_shop(data, goals=goals, seed=seed)


@lru_cache(maxsize=2)
def _made_up_shop(goals: Any, seed: int, **size: int) -> Any:
    from divopd.environments.webshop import make_catalogue, stock_shop

    return stock_shop(make_catalogue(seed=seed, **size), goals=goals, seed=seed)


def kind_in_name(task: str) -> str:
    """A task's name up to the first /; tasks without one are all of one kind."""
    kind, slash, _ = task.partition("/")
    return kind if slash else "all"


def _seeds(split: str) -> list[str]:
    """Seeds as tasks: 0–127 to evaluate, 1,000–10,999 to train."""
    return [f"seed/{number}" for number in (range(128) if split == "test" else range(1_000, 11_000))]


@lru_cache(maxsize=8)
def _own_class(path: str) -> Any:
    where, _, name = path.rpartition(":")
    try:
        module = _load_file(Path(where)) if where.endswith(".py") else import_module(where)
    except (ModuleNotFoundError, FileNotFoundError, ValueError) as error:
        raise InputError(f"environment {path}: cannot import {where!r} ({error})") from None
    except (Exception, SystemExit) as error:  # a mistake in the user's file
        told = one_line(f"{type(error).__name__}: {error}")
        raise InputError(f"environment {path}: importing {where!r} raised {told}") from error
    found = getattr(module, name, None)
    if not (
        isinstance(found, type) and callable(getattr(found, "reset", None)) and callable(getattr(found, "step", None))
    ):
        raise InputError(f"environment {path}: expected a class {name!r} with the methods reset and step in {where!r}")
    return found


def _load_file(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"divopd_own_{file.stem}", file)
    assert spec is not None  # the name ends in .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    return module
