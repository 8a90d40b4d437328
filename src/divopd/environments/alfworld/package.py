"""The same games in the real `alfworld` package, as it is: slow (seconds for a reset), and our engine's referee."""

import os
import tempfile
from typing import Any

from divopd.environments.alfworld.games import Games
from divopd.environments.alfworld.problem import read_problem
from divopd.environments.environment import Observation
from divopd.errors import InputError, MissingExtraError


class PackageEnvironment:
    """Plays the games of a collection in the package. MissingExtraError if it is not installed."""

    def __init__(self, games: Games) -> None:
        self._games = games
        self._env, self._domain, self._grammar = _open_package()
        self._loaded = ""
        self._allowed: list[str] | None = None

    def reset(self, task: str) -> Observation:
        """Start a game. InputError if the collection has none of that name."""
        game = self._games.game(task)
        read_problem(game.problem)  # the package would end the process on a problem that it cannot read
        if task != self._loaded:
            grammar = self._grammar.replace("UNKNOWN GOAL", game.task)
            self._env.load({"pddl_domain": self._domain, "grammar": grammar, "pddl_problem": game.problem})
            self._loaded = task
        state = self._env.reset()
        return self._observe(state)

    def step(self, action: str) -> Observation:
        """Act. What is not allowed now changes nothing and is answered with "Nothing happens."."""
        if self._allowed is None:
            raise InputError("no game is being played; call reset(task) before step(action)")
        understood = action.strip() in self._allowed
        state, _, _ = self._env.step(action)
        return self._observe(state, valid=understood)

    def _observe(self, state: Any, *, valid: bool = True) -> Observation:
        self._allowed = list(state["admissible_commands"])
        won = bool(state["won"])
        return Observation(state.feedback, self._allowed, done=won, success=won, reward=float(won), valid=valid)


def _open_package() -> tuple[Any, str, str]:
    """The package's environment, its domain and its grammar."""
    known = os.environ.get("ALFWORLD_DATA")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ALFWORLD_DATA"] = known or folder  # without it, the import makes a folder in the user's home
        try:
            import textworld  # pyright: ignore[reportMissingImports]
            from alfworld.agents.environment.alfred_tw_env import AlfredDemangler  # pyright: ignore[reportMissingImports]
            from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH  # pyright: ignore[reportMissingImports]
            from textworld.envs.pddl import PddlEnv  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise MissingExtraError("the alfworld package", "alfworld") from None
        finally:
            os.environ.pop("ALFWORLD_DATA")
            if known:
                os.environ["ALFWORLD_DATA"] = known
    env = AlfredDemangler(PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True)), shuffle=False)
    with open(ALFRED_PDDL_PATH, encoding="utf-8") as domain, open(ALFRED_TWL2_PATH, encoding="utf-8") as grammar:
        return env, domain.read(), grammar.read()
