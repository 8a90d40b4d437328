"""New ALFWorld games, made from a task name: of all six task types, each one solved before it is given out.

Small homes have one room of six to eight receptacles and five kinds of things, so that a model of a million parameters
can learn them; large homes are as full as the official ones. A game is a PDDL problem that the package plays too.
"""

import random
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

from divopd.environments.alfworld import furniture
from divopd.environments.alfworld.furniture import FITS
from divopd.environments.alfworld.games import HORIZON, Game
from divopd.environments.alfworld.problem import TASK_TYPES, Goal, TaskType
from divopd.environments.alfworld.solver import solve
from divopd.environments.alfworld.text import TASKS
from divopd.environments.alfworld.writer import Receptacle, write_problem
from divopd.errors import InputError, UnknownNameError

Home = Literal["small", "large"]
SPLIT_SIZES = {"train": 10_000, "test": 140}  # as many test games as the paper has


@dataclass(frozen=True, slots=True)
class Room:
    """What a room is furnished with. The last two numbers are the least and the most things that lie about."""

    task_types: tuple[TaskType, ...]
    receptacles: dict[str, tuple[int, int]]  # kind → least and most of it
    things: tuple[str, ...]
    amount: tuple[int, int]
    lamp: str | None = None


_PLACE, _LIGHT, _CLEAN, _HEAT, _COOL, _TWO = TASK_TYPES
_ONE, _ONE_OR_TWO = (1, 1), (1, 2)
ROOMS: dict[Home, tuple[Room, ...]] = {
    "small": (
        Room(
            (_PLACE, _CLEAN, _HEAT, _COOL, _TWO),
            dict.fromkeys(("countertop", "diningtable", "fridge", "microwave", "sinkbasin"), _ONE)
            | {"cabinet": (1, 3)},
            ("apple", "cup", "egg", "mug", "plate"),
            (3, 6),
        ),
        Room(
            (_PLACE, _LIGHT, _TWO),
            dict.fromkeys(("bed", "desk", "dresser", "sidetable"), _ONE) | {"drawer": (2, 4)},
            ("book", "cd", "cellphone", "keychain", "pen"),
            (3, 6),
            lamp="desklamp",
        ),
    ),
    "large": (
        Room(
            (_PLACE, _CLEAN, _HEAT, _COOL, _TWO),
            dict.fromkeys(("coffeemachine", "fridge", "garbagecan", "microwave", "sinkbasin"), _ONE)
            | {"cabinet": (4, 12), "countertop": (1, 3), "diningtable": _ONE_OR_TWO, "drawer": (3, 9)}
            | {"shelf": (0, 3), "stoveburner": (4, 4)},
            tuple(
                thing for thing in FITS["countertop"] if thing in {*FITS["sinkbasin"], *FITS["fridge"], "saltshaker"}
            ),
            (15, 30),
        ),
        Room(
            (_PLACE, _LIGHT, _TWO),
            dict.fromkeys(("bed", "desk", "dresser", "garbagecan"), _ONE)
            | {"drawer": (3, 10), "safe": (0, 1), "shelf": (0, 4), "sidetable": _ONE_OR_TWO},
            (*FITS["safe"], *FITS["bed"], "alarmclock", "bowl", "mug", "pen", "pencil", "tissuebox"),
            (10, 20),
            lamp="desklamp",
        ),
        Room(
            (_PLACE, _LIGHT, _TWO),
            dict.fromkeys(("coffeetable", "garbagecan", "sofa", "tvstand"), _ONE)
            | {"armchair": (0, 2), "cabinet": (0, 3), "drawer": (0, 4), "shelf": (0, 3), "sidetable": _ONE_OR_TWO},
            (*FITS["sofa"], "pen", "pencil", "plate", "statue", "tissuebox", "vase", "watch"),
            (8, 16),
            lamp="floorlamp",
        ),
        Room(
            (_PLACE, _CLEAN, _TWO),
            dict.fromkeys(("bathtubbasin", "countertop", "garbagecan", "toilet", "toiletpaperhanger"), _ONE)
            | {"cabinet": (1, 4), "drawer": (0, 3), "handtowelholder": _ONE_OR_TWO, "sinkbasin": _ONE_OR_TWO},
            (*FITS["cart"],),
            (6, 12),
        ),
    ),
}
_ABLE = {_CLEAN: furniture.CLEANABLE, _HEAT: furniture.HEATABLE, _COOL: furniture.COOLABLE}


class GeneratedGames:
    """Games made from their names, such as small/train/00042. Task types take turns: any six neighbours have all."""

    def __init__(self, home: Home) -> None:
        if home not in get_args(Home):
            raise UnknownNameError("size of an ALFWorld home", home, get_args(Home))
        self._home: Home = home

    def tasks(self, split: str) -> list[str]:
        """The task names of a split, in fixed order."""
        if split not in SPLIT_SIZES:
            raise UnknownNameError("split of generated ALFWorld games", split, SPLIT_SIZES)
        return [f"{self._home}/{split}/{number:05d}" for number in range(SPLIT_SIZES[split])]

    def game(self, task: str) -> Game:
        """The game of that name. InputError if it is no name of these splits."""
        match = re.fullmatch(r"(\w+)/(\w+)/([0-9]{5})", task)
        if match is None or match[1] != self._home or int(match[3]) >= SPLIT_SIZES.get(match[2], 0):
            known = " or ".join(f"{self._home}/{split}/00000 to {size - 1:05d}" for split, size in SPLIT_SIZES.items())
            raise InputError(f"unknown generated ALFWorld task {task[:200]!r}; expected {known}")
        return generate(task, home=self._home, task_type=TASK_TYPES[int(match[3]) % len(TASK_TYPES)])


@lru_cache(maxsize=1024)
def generate(name: str, *, home: Home, task_type: TaskType) -> Game:
    """A game of that type; the same name always gives the same game. It can be won within the horizon."""
    rng = random.Random(f"alfworld/{name}")  # a string seeds alike on any machine and with any hash seed
    while True:
        goal, problem = _furnish(name, home, task_type, rng)
        walkthrough = solve(problem, horizon=HORIZON)
        if walkthrough:
            words = rng.choice(TASKS[task_type]).format(thing=goal.thing, place=goal.place)
            return Game(name, words, problem, tuple(walkthrough))


def _furnish(name: str, home: Home, task_type: TaskType, rng: random.Random) -> tuple[Goal, str]:
    room = rng.choice([room for room in ROOMS[home] if task_type in room.task_types])
    receptacles = [(kind, i) for kind, bounds in room.receptacles.items() for i in range(rng.randint(*bounds))]
    goal = _choose_goal(room, task_type, {kind for kind, _ in receptacles}, rng)
    wanted = rng.randint(2, 3) if task_type == _TWO else rng.randint(1, 2)
    kinds = [goal.thing] * wanted
    others = [thing for thing in room.things if thing != goal.thing]
    kinds += [rng.choice(others) for _ in range(rng.randint(*room.amount) - wanted)]
    kinds += [room.lamp] if room.lamp else []
    spread: list[tuple[str, Receptacle]] = []
    for kind in kinds:
        # What is wanted never starts where it should end: each game needs at least one action that places something.
        avoid = goal.place if kind == goal.thing else None
        options = [place for place in receptacles if kind in FITS[place[0]] and place[0] != avoid]
        if options:
            spread.append((kind, rng.choice(options)))
    locations = _locate(receptacles, home, rng)
    return goal, write_problem(name, goal, receptacles=receptacles, locations=locations, things=spread)


def _choose_goal(room: Room, task_type: TaskType, kinds: set[str], rng: random.Random) -> Goal:
    """A thing and a place that make a task: the thing fits there, and into another receptacle in which it can start."""
    things = sorted(set(room.things) & (_ABLE.get(task_type) or set(room.things)))
    if task_type == _LIGHT and room.lamp:
        return Goal(task_type, rng.choice(things), room.lamp)
    pairs = [(thing, place) for thing in things for place in sorted(kinds) if thing in FITS[place]]
    return Goal(task_type, *rng.choice([pair for pair in pairs if sum(pair[0] in FITS[kind] for kind in kinds) > 1]))


def _locate(receptacles: list[Receptacle], home: Home, rng: random.Random) -> list[int]:
    """A location for each receptacle. In large homes some share one, as official homes have it."""
    locations = list(range(1, len(receptacles) + 1))
    for i in range(1, len(receptacles) if home == "large" else 0):
        if rng.random() < 0.15:
            locations[i] = locations[i - 1]
    return locations
