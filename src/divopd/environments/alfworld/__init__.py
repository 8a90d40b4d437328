"""ALFWorld: household tasks in text. The official games or generated ones, played natively or in the real package.

games = open_games("small")
environment, expert = AlfworldEnvironment(games), Expert()
observation = environment.reset(games.tasks("test")[0])
"""

from divopd.environments.alfworld.engine import AlfworldEnvironment
from divopd.environments.alfworld.expert import Expert
from divopd.environments.alfworld.games import HORIZON, MISSING_DATA, Game, Games, OfficialGames, find_official_games
from divopd.environments.alfworld.generator import GeneratedGames
from divopd.environments.alfworld.package import PackageEnvironment
from divopd.environments.alfworld.problem import TASK_TYPES
from divopd.errors import InputError, UnknownNameError

COLLECTIONS = ("official", "small", "large")

__all__ = [
    "COLLECTIONS",
    "HORIZON",
    "TASK_TYPES",
    "AlfworldEnvironment",
    "Expert",
    "Game",
    "Games",
    "GeneratedGames",
    "OfficialGames",
    "PackageEnvironment",
    "find_official_games",
    "open_games",
]


def open_games(name: str) -> Games:
    """A collection by name: the user's official games, or generated ones in small or large homes."""
    if name not in COLLECTIONS:
        raise UnknownNameError("collection of ALFWorld games", name, COLLECTIONS)
    if name == "official":
        official = find_official_games()
        if official is None:
            raise InputError(f"no official ALFWorld games were found; {MISSING_DATA}")
        return official
    return GeneratedGames("small" if name == "small" else "large")
