"""Actions per second of the native ALFWorld engine against the alfworld package, on the same games and actions.

The package is used as it is. If this Python does not have it, DIVOPD_ALFWORLD_PYTHON names one that does: it runs this
file with the games on standard input and prints what it measured.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from divopd.environments.alfworld import (
    HORIZON,
    AlfworldEnvironment,
    Game,
    PackageEnvironment,
    find_official_games,
    open_games,
)
from divopd.environments.environment import Environment
from divopd.errors import EnvironmentFailure, InputError, how_to_install


class Sizes(NamedTuple):
    games: int
    native_rounds: int  # the native engine is done too soon to be timed on one
    horizon: int = HORIZON


FULL = Sizes(games=6, native_rounds=50)
QUICK = Sizes(games=1, native_rounds=1, horizon=3)


class Chosen:
    """The games of this measurement."""

    def __init__(self, games: list[Game]) -> None:
        self._games = {game.id: game for game in games}

    def tasks(self, split: str) -> list[str]:
        return list(self._games)

    def game(self, task: str) -> Game:
        return self._games[task]


def measure(environment: Environment, games: Chosen, *, rounds: int, horizon: int) -> dict[str, float]:
    """Actions per second and time of a reset, on random actions that are the same for engines that agree.

    Processor time: both engines compute in this process and wait for nothing, and other work must not count.
    """
    resets = actions = 0.0
    for _ in range(rounds):
        for task in games.tasks(""):
            start, rng = time.process_time(), random.Random(task)
            observation = environment.reset(task)
            resets += time.process_time() - start
            for _ in range(horizon):
                action = rng.choice(observation.allowed_actions or [])
                start = time.process_time()
                observation = environment.step(action)
                actions += time.process_time() - start
    played = rounds * len(games.tasks(""))
    return {
        "actions_per_s": played * horizon / actions,
        "reset_ms": 1000 * resets / played,
        "actions": played * horizon,
    }


def measure_package(games: Chosen, *, horizon: int) -> dict[str, float]:
    if find_spec("textworld"):  # not "alfworld": that may find this very file
        return measure(PackageEnvironment(games), games, rounds=1, horizon=horizon)
    python = os.environ.get("DIVOPD_ALFWORLD_PYTHON")
    if not python:
        raise InputError(
            f"the alfworld package is not here to compare with; run {how_to_install('alfworld')}, or set "
            "DIVOPD_ALFWORLD_PYTHON to a Python that has it"
        )
    source = str(Path(sys.modules["divopd"].__path__[0]).parent)
    records = json.dumps([asdict(games.game(task)) for task in games.tasks("")])
    # Run by path from elsewhere: in its own folder, this file would be imported as "alfworld".
    program = f"import runpy; runpy.run_path({str(Path(__file__).resolve())!r}, run_name='__main__')"
    command = [python, "-c", program, str(horizon)]
    settings = {"env": {**os.environ, "PYTHONPATH": source}, "cwd": tempfile.gettempdir()}
    try:
        done = subprocess.run(command, input=records, capture_output=True, text=True, check=False, **settings)
    except OSError as error:
        raise InputError(f"DIVOPD_ALFWORLD_PYTHON={python} cannot be run ({error}); set it to a Python") from None
    if done.returncode:
        raise EnvironmentFailure(f"{python} could not play in the alfworld package: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout.splitlines()[-1])


def run(sizes: Sizes) -> dict:
    """Both engines in one run: ratio of actions per second."""
    official = find_official_games()
    source = official or open_games("large")
    tasks = source.tasks("valid_seen" if official else "test")
    games = Chosen([source.game(task) for task in tasks[:: len(tasks) // sizes.games][: sizes.games]])
    native = AlfworldEnvironment(games)
    ours = measure(native, games, rounds=sizes.native_rounds, horizon=sizes.horizon)
    theirs = measure_package(games, horizon=sizes.horizon)
    return {
        "bench": "alfworld",
        "ratio": ours["actions_per_s"] / theirs["actions_per_s"],
        "unit": "actions per second of processor time",
        "ours": ours["actions_per_s"],
        "reference": theirs["actions_per_s"],
        "detail": {
            "games": "official valid_seen" if official else "generated, large homes",
            "native": ours,
            "package": theirs,
        },
    }


if __name__ == "__main__":
    handed = Chosen([Game(**record) for record in json.load(sys.stdin)])
    print(json.dumps(measure(PackageEnvironment(handed), handed, rounds=1, horizon=int(sys.argv[1]))))
