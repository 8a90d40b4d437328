"""Generated ALFWorld games and the expert that plays them: reproducible, solvable, imitable."""

import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from divopd.environments.alfworld import (
    HORIZON,
    TASK_TYPES,
    AlfworldEnvironment,
    Expert,
    Games,
    find_official_games,
    open_games,
)
from divopd.environments.alfworld.problem import read_problem
from divopd.environments.environment import Observation
from divopd.errors import InputError


def success_rate(games: Games, tasks: list[str], *, noise: float = 0.0, strangers_turns: int = 0) -> float:
    """The expert's success within the horizon; random actions first, and instead of its own with that probability."""
    environment, expert, rng, won = AlfworldEnvironment(games), Expert(), random.Random(0), 0
    for task in tasks:
        observation = environment.reset(task)
        expert.reset(observation)
        for turn in range(HORIZON + strangers_turns):
            action = expert.act(observation)
            if turn < strangers_turns or rng.random() < noise:
                action = rng.choice(observation.allowed_actions or [])
            expert.took(action)
            observation = environment.step(action)
            if observation.done:
                break
        won += observation.success
    return won / len(tasks)


@pytest.mark.parametrize("home", ["small", "large"])
def test_expert_solves_generated_games(home: str) -> None:
    """At least 95 % of the test games within 30 actions, from nothing but what it has read."""
    games = open_games(home)
    assert success_rate(games, games.tasks("test")) >= 0.95


@pytest.mark.parametrize("split", ["valid_seen", "valid_unseen"])
def test_expert_solves_official_games(split: str) -> None:
    """At least 95 % of the official games within 30 actions."""
    games = find_official_games()
    if games is None:
        pytest.skip("for want of the official data")
    assert success_rate(games, games.tasks(split)) >= 0.95


def test_expert_goes_on_from_any_state() -> None:
    """With a quarter of random actions, and after ten random actions in a row, it still succeeds."""
    games = open_games("small")
    assert success_rate(games, games.tasks("test"), noise=0.25) >= 0.95
    assert success_rate(games, games.tasks("test"), strangers_turns=10) >= 0.95


def test_expert_is_not_confused_by_actions_that_are_not_possible() -> None:
    """Between its own actions, a stranger tries commands of earlier states, possible now or not: it still succeeds."""
    games, rng, won = open_games("small"), random.Random(0), 0
    environment, expert, tasks = AlfworldEnvironment(games), Expert(), games.tasks("test")
    for task in tasks:
        observation = environment.reset(task)
        expert.reset(observation)
        known = {*(observation.allowed_actions or []), "take mug 9 from bed 9", "move", "go to", ""}
        for turn in range(2 * HORIZON):
            action = expert.act(observation)
            if turn % 2:
                action = rng.choice(sorted(known))
            expert.took(action)
            observation = environment.step(action)
            known.update(observation.allowed_actions or [])
            if observation.done:
                break
        won += observation.success
    assert won / len(tasks) >= 0.95


def test_expert_uses_only_what_was_read() -> None:
    """Texts alone are enough: without the list of allowed actions, or the outcome, it acts the same."""
    games = open_games("large")
    environment, full, blind = AlfworldEnvironment(games), Expert(), Expert()

    def text_only(observation: Observation) -> Observation:
        return replace(observation, allowed_actions=None, done=False, success=False, reward=0.0, valid=True)

    for task in games.tasks("test")[:30]:
        observation = environment.reset(task)
        full.reset(observation)
        blind.reset(text_only(observation))
        for _ in range(HORIZON):
            action = full.act(observation)
            assert blind.act(text_only(observation)) == action
            observation = environment.step(action)


def test_expert_asks_only_for_what_is_allowed_in_small_homes() -> None:
    """No wasted turns to imitate: every action of the expert is understood."""
    games = open_games("small")
    environment, expert = AlfworldEnvironment(games), Expert()
    for task in games.tasks("test"):
        observation = environment.reset(task)
        expert.reset(observation)
        while not observation.done:
            observation = environment.step(expert.act(observation))
            assert observation.valid


@pytest.mark.parametrize("text", ["", "You arrive at bed 1.", "you see a bed 1.\n\nYour task is to: dance."])
def test_expert_refuses_what_is_no_game(text: str) -> None:
    """A first observation that is not ALFWorld's is an error with what was expected."""
    with pytest.raises(InputError, match="ALFWorld"):
        Expert().reset(Observation(text))


@pytest.mark.parametrize("home", ["small", "large"])
def test_generated_games_are_solved_and_of_all_types(home: str) -> None:
    """Each game starts unsolved, its walkthrough wins within the horizon, and the six types come equally often."""
    games = open_games(home)
    environment, types = AlfworldEnvironment(games), Counter()
    for task in games.tasks("train")[:120]:
        game = games.game(task)
        assert not environment.reset(task).success
        assert [environment.step(action).success for action in game.walkthrough].index(True) == len(
            game.walkthrough
        ) - 1
        assert len(game.walkthrough) <= HORIZON
        types[read_problem(game.problem).goal.task_type] += 1
    assert types == dict.fromkeys(TASK_TYPES, 20)


def test_test_games_are_not_among_the_train_games() -> None:
    """No test game of small homes is a train game under another name."""
    games = open_games("small")

    def content(task: str) -> tuple[str, str]:
        return games.game(task).task, games.game(task).problem.split("\n", 1)[1]

    test, train = ({content(task) for task in games.tasks(split)[:600]} for split in ("test", "train"))
    assert len(test) == 140
    assert not test & train


DIGEST = """
import hashlib
from divopd.environments.alfworld import open_games
digest = hashlib.sha256()
for home in ("small", "large"):
    games = open_games(home)
    for split in ("train", "test"):
        for task in games.tasks(split)[:60]:
            game = games.game(task)
            digest.update(repr((game.id, game.task, game.problem, game.walkthrough)).encode())
print(digest.hexdigest())
"""


def test_games_are_the_same_with_any_hash_seed() -> None:
    """Names give the same games, in the same order, in processes with different hash seeds, and as they always did."""
    digests = {
        subprocess.run(
            [sys.executable, "-c", DIGEST],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert digests == {KNOWN_DIGEST}


KNOWN_DIGEST = "b57160a2494a8c870877a1fde9b8e507b43d1cdf34cb66f601a033b4733ec7a5"
