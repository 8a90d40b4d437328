"""The alfworld package is the referee: our engine must agree with it on every text, command and outcome.

Slow: the package needs seconds for a reset and a tenth of a second for an action. Run it where the extra is installed:
    pytest -m slow tests/test_alfworld_package.py -s
"""

import pytest

import alfworld_golden
from divopd.environments.alfworld import Games, PackageEnvironment, find_official_games, open_games
from divopd.errors import InputError

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # the package warns about its own imports

RANDOM_ACTIONS = 32  # with walkthroughs and chores in 274 official games: more than 20,000 compared actions


@pytest.fixture(autouse=True)
def quick_package(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("alfworld", reason="for want of the extra alfworld")
    alfworld_golden.remember_parses(monkeypatch.setattr)


def compare(games: Games, tasks: list[str]) -> int:
    package, compared = PackageEnvironment(games), 0
    for task in tasks:
        compared += len(alfworld_golden.play(games, task, package, random_actions=RANDOM_ACTIONS)) - 1
        print(f"{task}: {compared} actions compared, no difference", flush=True)
    return compared


@pytest.mark.parametrize("split", ["valid_seen", "valid_unseen"])
def test_native_engine_equals_package_on_official_games(split: str) -> None:
    """Same texts, same allowed actions, same outcome, on every game of the split: walkthroughs and random actions."""
    games = find_official_games()
    if games is None:
        pytest.skip("for want of the official data")
    assert compare(games, games.tasks(split)) >= 9_000


def test_native_engine_equals_package_on_train_games_with_things_that_are_nowhere() -> None:
    """A start state that mentions things without type (halves of an egg) numbers the others as the package does."""
    games = find_official_games()
    if games is None:
        pytest.skip("for want of the official data")
    tasks = [task for task in games.tasks("train") if "eggcracked" in games.game(task).problem.lower()]
    assert compare(games, tasks) > 2 * RANDOM_ACTIONS


@pytest.mark.parametrize("home", ["small", "large"])
def test_native_engine_equals_package_on_generated_games(home: str) -> None:
    """The same on generated games of all six task types."""
    games = open_games(home)
    assert compare(games, games.tasks("test")[:12]) >= 12 * RANDOM_ACTIONS


def test_package_environment_refuses_what_it_cannot_play() -> None:
    """An action before the first reset is an error with a hint, not a crash inside the package."""
    with pytest.raises(InputError, match="reset"):
        PackageEnvironment(open_games("small")).step("look")
