"""The table of environments."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from divopd.environments.environment import Environment
from divopd.environments.expert import Expert
from divopd.environments.programs.source import Program
from divopd.environments.sources import (
    Alfworld,
    Gym,
    OpenEnv,
    ScienceWorldTasks,
    Shopping,
    ShortScienceWorldTasks,
    has_alfworld_games,
    has_java,
    has_webshop_products,
)
from divopd.errors import how_to_install


class Source(Protocol):
    """Lists tasks and tells their kind, makes environments and experts. Its fields are the settings."""

    def tasks(self, split: str) -> list[str]: ...

    def kind(self, task: str) -> str: ...

    def environment(self) -> Environment: ...

    def expert(self, environment: Environment) -> Expert: ...


@dataclass(frozen=True)
class EnvironmentEntry:
    """One line of the table. `settings` are given to the source."""

    summary: str
    source: Callable[..., Source]
    splits: tuple[str, ...]
    evaluation_split: str
    horizon: int  # turns of a rollout
    evaluation_tasks: int  # an evaluation plays the first so many tasks of its split
    side_by_side: int = 64  # an evaluation makes at most so many environments: some are a process each
    recorded: int | None = None  # demonstrations are so many rollouts told again: playing is slower than learning
    settings: dict[str, Any] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    checks: dict[str, Callable[[], bool]] = field(default_factory=dict)  # what else must be there, and who looks
    install: str = "nothing to install"
    in_workers: bool = False  # foreign code: it runs in processes of its own unless a config says otherwise
    program: bool = False  # it is started for each rollout, and asks the student itself
    self_contained: bool = False  # the same wherever the same packages are: it reads no data from elsewhere


ENVIRONMENTS = {
    "alfworld": EnvironmentEntry(
        "ALFWorld's official games in the native engine",
        source=Alfworld,
        settings={"games": "official"},
        splits=("train", "valid_seen", "valid_unseen", "valid_train"),
        evaluation_split="valid_seen",
        horizon=30,
        evaluation_tasks=140,
        checks={"official games": has_alfworld_games},
        install=f"{how_to_install('alfworld')}, then alfworld-download, and set ALFWORLD_DATA to the folder it made",
    ),
    "alfworld-small": EnvironmentEntry(
        "ALFWorld games generated in small homes",
        source=Alfworld,
        settings={"games": "small"},
        splits=("train", "test"),
        evaluation_split="test",
        horizon=30,
        evaluation_tasks=140,
        self_contained=True,
    ),
    "alfworld-large": EnvironmentEntry(
        "ALFWorld games generated in homes of the official size",
        source=Alfworld,
        settings={"games": "large"},
        splits=("train", "test"),
        evaluation_split="test",
        horizon=30,
        evaluation_tasks=140,
        self_contained=True,
    ),
    "scienceworld": EnvironmentEntry(
        "ScienceWorld in the real simulator",
        source=ScienceWorldTasks,
        splits=("train", "held-out"),
        evaluation_split="held-out",
        horizon=30,
        evaluation_tasks=256,
        side_by_side=8,
        modules=("scienceworld",),
        checks={"java": has_java},
        install=f"{how_to_install('scienceworld')}, and a Java runtime (Debian: apt install openjdk-17-jre-headless)",
        self_contained=True,
    ),
    "scienceworld-short": EnvironmentEntry(
        "ScienceWorld's find-* tasks in few words",
        source=ShortScienceWorldTasks,
        splits=("train", "test"),
        evaluation_split="test",
        horizon=15,
        evaluation_tasks=64,
        side_by_side=4,
        recorded=600,
        modules=("scienceworld",),
        checks={"java": has_java},
        install=f"{how_to_install('scienceworld')}, and a Java runtime (Debian: apt install openjdk-17-jre-headless)",
        self_contained=True,
    ),
    "webshop": EnvironmentEntry(
        "WebShop on its official product files",
        source=Shopping,
        settings={"catalogue": "official"},
        splits=("train", "test"),
        evaluation_split="test",
        horizon=15,
        evaluation_tasks=128,
        modules=("bm25s", "Stemmer", "rapidfuzz"),
        checks={"official products": has_webshop_products},
        install=f"{how_to_install('webshop')}, then set DIVOPD_DATA to a folder with the product files in webshop/",
    ),
    "webshop-small": EnvironmentEntry(
        "WebShop with a synthetic catalogue and short pages",
        source=Shopping,
        settings={"catalogue": "synthetic", "pages": "short"},
        splits=("train", "test"),
        evaluation_split="test",
        horizon=15,
        evaluation_tasks=128,
        modules=("bm25s", "Stemmer", "rapidfuzz"),
        install=how_to_install("webshop"),
        self_contained=True,
    ),
    "gym": EnvironmentEntry(
        "any Gymnasium text environment (setting: id)",
        source=Gym,
        splits=("train", "test"),
        evaluation_split="test",
        horizon=30,
        evaluation_tasks=128,
        modules=("gymnasium",),
        install=how_to_install("gym"),
        in_workers=True,
    ),
    "openenv": EnvironmentEntry(
        "an OpenEnv server (setting: url)",
        source=OpenEnv,
        splits=("train", "test"),
        evaluation_split="test",
        horizon=30,
        evaluation_tasks=128,
        modules=("openenv",),
        install=how_to_install("openenv"),
        in_workers=True,
    ),
    "program": EnvironmentEntry(
        "any agent program that talks to an OpenAI-compatible endpoint (environment.command)",
        source=Program,
        splits=("train", "test"),
        evaluation_split="test",
        horizon=30,
        evaluation_tasks=128,
        side_by_side=16,
        in_workers=True,
        program=True,
    ),
}
