"""The alfworld package is the referee: our engine must agree with it on every text, command and outcome.

Slow: the package needs seconds for a reset and a tenth of a second for an action. Run it where the extra is installed,
    pytest -m slow tests/test_alfworld_package.py -s
"""

import random

import pytest

from divopd.environments.alfworld.engine import AlfworldEnvironment
from divopd.environments.alfworld.games import Games, find_official_games
from divopd.environments.alfworld.package import PackageEnvironment
from divopd.environments.environment import Observation

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # the package warns about its own imports

RANDOM_ACTIONS = 75  # with 274 official games: more than 20,000 compared actions
NOT_ALLOWED = ("", "dance", "go to narnia 1", "Look", "look around", "take mug 99 from fridge 1", "\x1b[2J", "look\nlook")


def differences(ours: Observation, theirs: Observation) -> list[str]:
    fields = ("text", "allowed_actions", "done", "success", "reward", "valid")
    pairs = [(name, getattr(ours, name), getattr(theirs, name)) for name in fields]
    return [f"{name}: {mine!r} != {other!r}" for name, mine, other in pairs if mine != other]


def random_action(allowed: list[str], rng: random.Random) -> str:
    """A random verb, then a random command with it: picking commands at random would mostly walk about."""
    if rng.random() < 0.05:
        return rng.choice(NOT_ALLOWED)
    verb = rng.choice(sorted({command.split()[0] for command in allowed}))
    action = rng.choice([command for command in allowed if command.split()[0] == verb])
    return f"  {action} " if rng.random() < 0.02 else action


def compare_game(games: Games, task: str, package: PackageEnvironment, *, random_actions: int) -> int:
    """Replay the walkthrough, then act at random, in both engines. The number of compared actions."""
    native, rng = AlfworldEnvironment(games), random.Random(task)
    ours, theirs = native.reset(task), package.reset(task)
    assert not differences(ours, theirs), (task, "reset", differences(ours, theirs))
    walkthrough, done = list(games.game(task).walkthrough), []
    for turn in range(len(walkthrough) + random_actions):
        action = walkthrough[turn] if turn < len(walkthrough) else random_action(theirs.allowed_actions or [], rng)
        ours, theirs = native.step(action), package.step(action)
        done.append(action)
        assert not differences(ours, theirs), (task, done, differences(ours, theirs))
        assert turn + 1 != len(walkthrough) or ours.success, (task, "the walkthrough does not win")
    return len(done)


@pytest.mark.parametrize("split", ["valid_seen", "valid_unseen"])
def test_native_engine_equals_package_on_official_games(split: str) -> None:
    """Same texts, same allowed actions, same outcome, on every game of the split: walkthroughs and random actions."""
    pytest.importorskip("alfworld")
    games = find_official_games()
    if games is None:
        pytest.skip("no official games: set DIVOPD_DATA or ALFWORLD_DATA")
    package, compared = PackageEnvironment(games), 0
    for task in games.tasks(split):
        compared += compare_game(games, task, package, random_actions=RANDOM_ACTIONS)
        print(f"{split}: {compared} actions compared, no difference", flush=True)
