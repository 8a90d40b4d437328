"""Transcripts of generated games in the real alfworld package, for tests that have to do without it.

Made again, where the package is installed, with:  python tests/alfworld_golden.py
"""

import json
import lzma
import random
from collections.abc import Callable
from copy import deepcopy
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from divopd.environments.alfworld import AlfworldEnvironment, Game, Games, PackageEnvironment, open_games
from divopd.environments.alfworld.problem import read_problem
from divopd.environments.environment import Observation

GOLDEN = Path(__file__).parent / "data" / "alfworld_golden.jsonl.xz"
NOT_ALLOWED = (
    "",
    "dance",
    "go to narnia 1",
    "Look",
    "look around",
    "take mug 99 from fridge 1",
    "\x1b[2J",
    "look\nlook",
)


def remember_parses(set_attribute: Callable[[Any, str, Any], None] = setattr) -> None:
    """Let the package parse each text once: it parses the same templates for each command, and each problem four times.

    This only saves time, by a factor of three; nothing else of the package is touched.
    """
    textgen, planner = import_module("textworld.envs.pddl.textgen"), import_module("fast_downward")
    parse = cache(textgen._parse_and_convert)
    set_attribute(textgen, "_parse_and_convert", lambda *args, **kwargs: deepcopy(parse(*args, **kwargs)))
    set_attribute(textgen.Rule, "parse_conjunctive_query", cache(textgen.Rule.parse_conjunctive_query))
    set_attribute(planner, "pddl2sas", lru_cache(maxsize=2)(planner.pddl2sas))


def random_action(allowed: list[str], rng: random.Random) -> str:
    """A random verb, then a random command with it: picking commands at random would mostly walk about."""
    if rng.random() < 0.05:
        return rng.choice(NOT_ALLOWED)
    verbs = sorted({command.split()[0] for command in allowed} - ({"help"} if rng.random() < 0.9 else set()))
    verb = rng.choice(verbs)
    action = rng.choice([command for command in allowed if command.split()[0] == verb])
    return f"  {action} " if rng.random() < 0.02 else action


def differences(ours: Observation, theirs: Observation) -> list[str]:
    """What two engines do not agree on, field by field."""
    fields = ("text", "allowed_actions", "done", "success", "reward", "valid")
    pairs = [(name, getattr(ours, name), getattr(theirs, name)) for name in fields]
    return [f"{name}: {mine!r} != {other!r}" for name, mine, other in pairs if mine != other]


def play(games: Games, task: str, package: PackageEnvironment, *, random_actions: int) -> list[tuple[str, Observation]]:
    """Walkthrough, chores and random actions in both engines, which must agree. What was done and seen."""
    native, rng, game = AlfworldEnvironment(games), random.Random(task), games.game(task)
    ours, theirs = native.reset(task), package.reset(task)
    assert not differences(ours, theirs), (task, "reset", differences(ours, theirs))
    script, done = [*game.walkthrough, *chores(game)], [("", theirs)]
    for turn in range(len(script) + random_actions):
        action = script[turn] if turn < len(script) else random_action(theirs.allowed_actions or [], rng)
        ours, theirs = native.step(action), package.step(action)
        done.append((action, theirs))
        assert not differences(ours, theirs), (task, [action for action, _ in done], differences(ours, theirs))
        assert turn + 1 != len(game.walkthrough) or ours.success, (task, "the walkthrough does not win")
    return done


def chores(game: Game) -> list[str]:
    """Where there are knives: slice every other food, then heat, cool and clean some, examining it all the time.

    Random actions hardly ever get there. Some of these actions are not allowed when their turn comes, which is as well.
    """
    problem = read_problem(game.problem)
    place = {
        problem.objects[o]: name
        for name, inside in zip(problem.receptacles, problem.contents, strict=True)
        for o in inside
    }
    knives = [name for name in place if "knife" in name]
    food = [name for o in sorted(problem.objects_that["sliceable"]) if (name := problem.objects[o]) in place]
    actions: list[str] = []
    for knife in knives[:1]:
        actions += _fetch(knife, place[knife])
        actions += [
            action for thing in food[::2] for action in (f"go to {place[thing]}", f"slice {thing} with {knife}")
        ]
        actions += _bring_back(knife, place[knife])
    for thing in food[:3] if knives else []:
        actions += [*_fetch(thing, place[thing]), f"examine {thing}"]
        for verb, appliance in (
            ("heat", "microwave"),
            ("cool", "fridge"),
            ("clean", "sinkbasin"),
            ("heat", "microwave"),
        ):
            actions += [f"go to {appliance} 1", f"{verb} {thing} with {appliance} 1", f"examine {thing}"]
        actions += _bring_back(thing, place[thing])
    return actions


def _fetch(thing: str, place: str) -> list[str]:
    return [f"go to {place}", f"open {place}", f"take {thing} from {place}"]


def _bring_back(thing: str, place: str) -> list[str]:
    return [f"go to {place}", f"open {place}", f"move {thing} to {place}"]


class OneGame:
    """A collection of one game."""

    def __init__(self, game: Game) -> None:
        self._game = game

    def tasks(self, split: str) -> list[str]:
        return [self._game.id]

    def game(self, task: str) -> Game:
        return self._game


def read() -> list[tuple[Game, list[tuple[str, Observation]]]]:
    """The recorded games, each with the actions and observations of its transcript."""
    with lzma.open(GOLDEN, "rt", encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    return [
        (Game(**record["game"]), [(action, Observation(*fields)) for action, *fields in record["done"]])
        for record in records
    ]


def record() -> None:
    """Play in the package and write the transcripts."""
    remember_parses()
    lines = []
    for home in ("small", "large"):
        games = open_games(home)
        package = PackageEnvironment(games)
        for task in games.tasks("train")[:12]:
            game = games.game(task)
            done = play(games, task, package, random_actions=40)
            fields = ("text", "allowed_actions", "done", "success", "reward", "valid")
            rows = [[action, *(getattr(seen, name) for name in fields)] for action, seen in done]
            kept = {"id": game.id, "task": game.task, "problem": game.problem, "walkthrough": game.walkthrough}
            lines.append(json.dumps({"game": kept, "done": rows}))
            print(task, len(rows) - 1, flush=True)
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_bytes(lzma.compress("\n".join(lines).encode()))


if __name__ == "__main__":
    record()
