"""ALFWorld's text games in plain Python: the rules of its domain, state by state, with the package's own words.

The package grounds the domain with a planner's translator and questions it after each action; here each rule is a few
lines over sets of numbers. tests/environments/test_alfworld_package.py holds both side by side.
"""

from collections import defaultdict
from collections.abc import Callable

from divopd.environments.alfworld import text
from divopd.environments.alfworld.games import Games
from divopd.environments.alfworld.problem import Problem, read_problem
from divopd.environments.environment import Observation
from divopd.errors import InputError

Command = tuple[Callable[..., str], tuple[int, ...]]  # what to call on the house, and with which entities

_MARKS = ("isclean", "ishot", "iscool", "issliced", "istoggled")
_KNIVES = ("knife", "butterknife")
_GOAL_MARKS = {
    "pick_clean_then_place_in_recep": ("cleanable", "isclean"),
    "pick_heat_then_place_in_recep": ("heatable", "ishot"),
    "pick_cool_then_place_in_recep": ("coolable", "iscool"),
}


class House:
    """The state of one game. `commands` are the actions that are allowed now; `act` does one of them."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.place = problem.start
        self.held: int | None = None
        self.contents = [set(things) for things in problem.contents]
        self.near = defaultdict(set, {place: set(things) for place, things in problem.near.items()})
        self.opened = set(problem.receptacles_that["opened"])
        self.marked = {mark: set(problem.objects_that[mark]) for mark in _MARKS}
        self._taken_from: set[tuple[int, int]] = set()  # (object, receptacle) until it is put back: "look" shows it
        self._goal_things = {o for o, kind in enumerate(problem.object_types) if kind == problem.goal.thing}
        self._goal_places = [r for r, kind in enumerate(problem.receptacle_types) if kind == problem.goal.place]
        self.commands = self._find_commands()

    def intro(self, task: str) -> str:
        """What the agent reads before its first action."""
        around = self._look() if self._here() else text.middle_of_room(self.problem.receptacles)
        return text.welcome(around, task)

    def act(self, action: str) -> str | None:
        """Do one action and say what is seen then. None, and no change, if it is not allowed now."""
        command = self.commands.get(action.strip())
        if command is None:
            return None
        rule, entities = command
        seen = rule(self, *entities)
        self.commands = self._find_commands()
        return seen

    def is_won(self) -> bool:
        """Does the goal hold now. Undoing it later makes this false again, as in the package."""
        problem, goal = self.problem, self.problem.goal
        if goal.task_type == "look_at_obj_in_light":
            lit = self.marked["istoggled"] & problem.objects_that["toggleable"]
            lamps = {o for o in lit if problem.object_types[o] == goal.place}
            return self.held in self._goal_things and any(lamps & self.contents[r] for r in self._here())
        done = self._goal_things
        if goal.task_type in _GOAL_MARKS:
            able, mark = _GOAL_MARKS[goal.task_type]
            done = done & problem.objects_that[able] & self.marked[mark]
        needed = 2 if goal.task_type == "pick_two_obj_and_place" else 1
        return any(len(done & self.contents[r]) >= needed for r in self._goal_places)

    def _here(self) -> list[int]:
        """Receptacles at the agent's place, in the order of their ids."""
        return [r for r, place in enumerate(self.problem.location_of) if place == self.place]

    def _is_shut(self, receptacle: int) -> bool:
        return receptacle in self.problem.receptacles_that["openable"] and receptacle not in self.opened

    # What is allowed.

    def _find_commands(self) -> dict[str, Command]:
        objects, receptacles = self.problem.objects, self.problem.receptacles
        # What stands at the agent's own place cannot be gone to: the translator drops actions that change nothing.
        found: dict[str, Command] = {
            f"go to {receptacles[r]}": (House._go, (r,))
            for r, place in enumerate(self.problem.location_of)
            if place != self.place
        }
        found |= {"look": (House._look, ()), "inventory": (House._inventory, ()), "help": (House._help, ())}
        for r in self._here():
            self._add_commands_at(r, found)
        if self.held is not None:  # the domain means to let one examine all in sight, but only this ever holds in it
            found[f"examine {objects[self.held]}"] = (House._examine_object, (self.held,))
            self._add_slicing(self.held, found)
        return found

    def _add_commands_at(self, r: int, found: dict[str, Command]) -> None:
        problem, objects, name = self.problem, self.problem.objects, self.problem.receptacles[r]
        found[f"examine {name}"] = (House._examine_receptacle, (r,))
        if r in problem.receptacles_that["openable"]:
            is_open = r in self.opened
            found[f"{'close' if is_open else 'open'} {name}"] = (House._close if is_open else House._open, (r,))
        for o in self.contents[r] & problem.objects_that["toggleable"]:
            found[f"use {objects[o]}"] = (House._use, (o,))  # a shut door does not hide a switch
        if self.held is None and not self._is_shut(r):
            for o in self.contents[r] & problem.objects_that["pickupable"]:
                found[f"take {objects[o]} from {name}"] = (House._take, (o, r))
        if self.held is not None:
            self._add_commands_for_held(self.held, r, found)

    def _add_commands_for_held(self, o: int, r: int, found: dict[str, Command]) -> None:
        problem, held, name = self.problem, self.problem.objects[o], self.problem.receptacles[r]
        kind = problem.receptacle_types[r]
        if not self._is_shut(r) and (kind, problem.object_types[o]) in problem.can_contain:
            found[f"move {held} to {name}"] = (House._move, (o, r))
        if kind == "sinkbasin" and o in problem.objects_that["cleanable"]:
            found[f"clean {held} with {name}"] = (House._clean, (o, r))
        if kind == "microwave" and o in problem.objects_that["heatable"]:
            found[f"heat {held} with {name}"] = (House._heat, (o, r))
        if kind == "fridge" and o in problem.objects_that["coolable"]:
            found[f"cool {held} with {name}"] = (House._cool, (o, r))

    def _add_slicing(self, knife: int, found: dict[str, Command]) -> None:
        if self.problem.object_types[knife] in _KNIVES:
            objects = self.problem.objects
            for o in self.near[self.place] & self.problem.objects_that["sliceable"]:
                found[f"slice {objects[o]} with {objects[knife]}"] = (House._slice, (o, knife))

    # What it does, and what is seen then.

    def _names(self, things: set[int]) -> list[str]:
        return [self.problem.objects[o] for o in sorted(things)]

    def _go(self, r: int) -> str:
        self.place = self.problem.location_of[r]
        return f"You arrive at {self.problem.receptacles[r]}. {self._examine_receptacle(r)}"

    def _open(self, r: int) -> str:
        self.opened.add(r)
        return f"You open the {self.problem.receptacles[r]}. {self._examine_receptacle(r)}"

    def _close(self, r: int) -> str:
        self.opened.discard(r)
        return f"You close the {self.problem.receptacles[r]}."

    def _take(self, o: int, r: int) -> str:
        self.held = o
        self.contents[r].discard(o)
        self.near[self.place].discard(o)
        self._taken_from.add((o, r))
        return f"You pick up the {self.problem.objects[o]} from the {self.problem.receptacles[r]}."

    def _move(self, o: int, r: int) -> str:
        self.held = None
        self.contents[r].add(o)
        self.near[self.place].add(o)
        self._taken_from.discard((o, r))
        return f"You move the {self.problem.objects[o]} to the {self.problem.receptacles[r]}."

    def _clean(self, o: int, r: int) -> str:
        self.marked["isclean"].add(o)
        return f"You clean the {self.problem.objects[o]} using the {self.problem.receptacles[r]}."

    def _heat(self, o: int, r: int) -> str:
        self.marked["ishot"].add(o)
        self.marked["iscool"].discard(o)
        return f"You heat the {self.problem.objects[o]} using the {self.problem.receptacles[r]}."

    def _cool(self, o: int, r: int) -> str:
        self.marked["iscool"].add(o)
        self.marked["ishot"].discard(o)
        return f"You cool the {self.problem.objects[o]} using the {self.problem.receptacles[r]}."

    def _use(self, o: int) -> str:
        self.marked["istoggled"].add(o)  # for good: the domain remembers that a switch was used, not where it stands
        return f"You turn on the {self.problem.objects[o]}."

    def _slice(self, o: int, knife: int) -> str:
        self.marked["issliced"].add(o)
        return f"You sliced the {self.problem.objects[o]} with the {self.problem.objects[knife]}."

    def _look(self) -> str:
        here = self._here()
        if not here:
            return text.middle_of_room([])
        beside = [(o, r) for o in sorted(self.near[self.place]) for r in here if (o, r) in self._taken_from]
        return text.facing([self.problem.receptacles[r] for r in here], [self.problem.objects[o] for o, _ in beside])

    def _inventory(self) -> str:
        return text.carrying(self._names(set() if self.held is None else {self.held}))

    def _help(self) -> str:
        return text.HELP

    def _examine_receptacle(self, r: int) -> str:
        name = self.problem.receptacles[r]
        if self._is_shut(r):
            return text.closed(name)
        openable = r in self.problem.receptacles_that["openable"]
        return (text.opened if openable else text.on_top)(name, self._names(self.contents[r]))

    def _examine_object(self, o: int) -> str:
        name, problem = self.problem.objects[o], self.problem
        if o in problem.objects_that["isreceptacleobject"]:
            return text.container(name, [problem.objects[inner] for inner in problem.inside.get(o, ())])
        return text.condition(
            name,
            clean=o in self.marked["isclean"],
            hot=o in self.marked["ishot"],
            cool=o in self.marked["iscool"],
            sliced=o in self.marked["issliced"],
            toggled=o in self.marked["istoggled"] and o in problem.objects_that["toggleable"],
        )


class AlfworldEnvironment:
    """Plays the games of a collection, natively: no JVM, no compiler, no download. Allowed actions come sorted."""

    def __init__(self, games: Games) -> None:
        self._games = games
        self._house: House | None = None

    def reset(self, task: str) -> Observation:
        """Start a game. InputError if the collection has none of that name."""
        game = self._games.game(task)
        self._house = House(read_problem(game.problem))
        return _observation(self._house, self._house.intro(game.task))

    def step(self, action: str) -> Observation:
        """Act. What is not allowed now changes nothing and is answered with "Nothing happens."."""
        if self._house is None:
            raise InputError("no game is being played; call reset(task) before step(action)")
        seen = self._house.act(action)
        return _observation(self._house, seen)


def _observation(house: House, seen: str | None) -> Observation:
    won = house.is_won()
    return Observation(
        text=text.NOTHING_HAPPENS if seen is None else seen,
        allowed_actions=sorted(house.commands),
        done=won,
        success=won,
        reward=float(won),
        valid=seen is not None,
    )
