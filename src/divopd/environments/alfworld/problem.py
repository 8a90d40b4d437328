"""Reading one game: the PDDL problem text of ALFWorld, turned into tables that the engine can play.

Only what ALFWorld's text games use is read: the start state as plain facts, and a goal of one of the six task types.
Names are numbered as the package numbers them: entities of one kind, sorted by id, count downwards, so the last id is
number 1.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

from divopd.errors import InputError

TaskType = Literal[
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
]
TASK_TYPES: tuple[TaskType, ...] = get_args(TaskType)

_IN_PLACE = "(objecttype ?o {thing}type) (receptacletype ?r {place}type)"
_ONE = "(:goal (and (exists (?r - receptacle) (exists (?o - object) (and {body} )))))"
# Spaces are there for the reader: they are removed before goals are compared.
GOALS: Mapping[TaskType, str] = {
    "pick_and_place_simple": _ONE.format(body=f"(inreceptacle ?o ?r) {_IN_PLACE}"),
    "look_at_obj_in_light": (
        "(:goal (and (exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and (objecttype ?ot {place}type) "
        "(toggleable ?ot) (istoggled ?ot) (receptacleatlocation ?r ?l) (atlocation ?a ?l) (inreceptacle ?ot ?r))) "
        "(exists (?o - object ?a - agent) (and (objecttype ?o {thing}type) (holds ?a ?o)))))"
    ),
    "pick_clean_then_place_in_recep": _ONE.format(body=f"(cleanable ?o) {_IN_PLACE} (isclean ?o) (inreceptacle ?o ?r)"),
    "pick_heat_then_place_in_recep": _ONE.format(body=f"(heatable ?o) {_IN_PLACE} (ishot ?o) (inreceptacle ?o ?r)"),
    "pick_cool_then_place_in_recep": _ONE.format(body=f"(coolable ?o) {_IN_PLACE} (iscool ?o) (inreceptacle ?o ?r)"),
    "pick_two_obj_and_place": (
        "(:goal (and (exists (?r - receptacle) (exists (?o1 - object) (and (objecttype ?o1 {thing}type) "
        "(receptacletype ?r {place}type) (inreceptacle ?o1 ?r) (exists (?o2 - object) (and (not (= ?o1 ?o2)) "
        "(objecttype ?o2 {thing}type) (receptacletype ?r {place}type) (inreceptacle ?o2 ?r))))))))"
    ),
}

# What a start state may say, with the number of arguments. The second group changes nothing that can be seen.
_FACTS = {
    "atlocation": 2,
    "receptacleatlocation": 2,
    "objectatlocation": 2,
    "inreceptacle": 2,
    "inreceptacleobject": 2,
    "receptacletype": 2,
    "objecttype": 2,
    "cancontain": 2,
    **dict.fromkeys(("openable", "opened", "pickupable", "isreceptacleobject", "toggleable", "istoggled"), 1),
    **dict.fromkeys(("cleanable", "isclean", "heatable", "ishot", "coolable", "iscool", "sliceable", "issliced"), 1),
    **dict.fromkeys(("moveable", "checked", "examined", "full", "ison", "isreceptacleobjectfull"), 1),
    **dict.fromkeys(("wasinreceptacle", "distance"), 2),
}
_FACT = re.compile(r"\(\s*([a-z][a-z0-9_-]*)((?:\s+[a-z0-9_-]+)+)\s*\)")


@dataclass(frozen=True, slots=True)
class Goal:
    """What has to be true in the end. For `look_at_obj_in_light`, `place` is the kind of lamp."""

    task_type: TaskType
    thing: str
    place: str


@dataclass(frozen=True, slots=True)
class Problem:
    """One game before its first action. Objects, receptacles and locations are numbers, in the order of their ids."""

    goal: Goal
    objects: tuple[str, ...]  # "mug 1"; the order is the one in which observations list them
    receptacles: tuple[str, ...]
    object_types: tuple[str, ...]  # "mug"
    receptacle_types: tuple[str, ...]
    location_of: tuple[int, ...]  # of each receptacle
    start: int  # location of the agent
    contents: tuple[frozenset[int], ...]  # objects in each receptacle; one object may be in two
    near: Mapping[int, frozenset[int]]  # location → objects there, in a receptacle or beside it
    inside: Mapping[int, tuple[int, ...]]  # object → objects in it; never changes
    can_contain: frozenset[tuple[str, str]]  # (receptacle type, object type)
    objects_that: Mapping[str, frozenset[int]]  # "pickupable", "isclean" … → objects
    receptacles_that: Mapping[str, frozenset[int]]  # "openable", "opened" → receptacles


@lru_cache(maxsize=256)
def read_problem(text: str) -> Problem:
    """The game that the PDDL problem describes. InputError if it is not a game of ALFWorld's six task types."""
    text = re.sub(r";[^\n]*", "", text).lower()
    before, _, goal = text.partition("(:goal")
    _, init, facts = before.partition("(:init")
    if not (init and goal):
        raise InputError("an ALFWorld problem needs (:init …) and (:goal …); give the PDDL text of one game")
    try:
        return _build(_read_facts(facts), read_goal("(:goal" + goal))
    except KeyError as error:
        raise InputError(
            f"{error.args[0]} has no type, location or number in the start state; ids of things look like Mug_bar_1"
        ) from None


def read_goal(text: str) -> Goal:
    """The goal that the (:goal …) part of a problem describes."""
    squeezed = re.sub(r"\s+", "", text.lower())
    for task_type, pattern in _goal_patterns().items():
        if match := pattern.match(squeezed):
            return Goal(task_type, match["thing"], match["place"])
    raise InputError(f"the goal {text[:200]!r} is none of ALFWorld's six task types: {', '.join(TASK_TYPES)}")


@lru_cache(maxsize=1)
def _goal_patterns() -> dict[TaskType, re.Pattern[str]]:
    patterns: dict[TaskType, re.Pattern[str]] = {}
    for task_type, goal in GOALS.items():
        pattern = re.escape(re.sub(r"\s+", "", goal))
        for word in ("thing", "place"):  # the first mention names the kind, later ones must repeat it
            hole = re.escape(f"{{{word}}}")
            pattern = pattern.replace(hole, f"(?P<{word}>[a-z]+)", 1).replace(hole, f"(?P={word})")
        patterns[task_type] = re.compile(pattern)
    return patterns


def _read_facts(text: str) -> dict[str, list[tuple[str, ...]]]:
    facts: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for name, rest in _FACT.findall(text):
        arguments = tuple(rest.split())
        if _FACTS.get(name) != len(arguments):
            raise InputError(
                f"({name} {' '.join(arguments)}) cannot start an ALFWorld text game; known: {', '.join(_FACTS)}"
            )
        facts[name].append(arguments)
    return facts


def _build(facts: Mapping[str, list[tuple[str, ...]]], goal: Goal) -> Problem:
    """The tables of a problem. KeyError with the id of an entity that has no type or location."""
    object_types, receptacle_types = _one_each(facts, "objecttype"), _one_each(facts, "receptacletype")
    places, agents = _one_each(facts, "receptacleatlocation"), _one_each(facts, "atlocation")
    if len(agents) != 1:
        raise InputError(f"an ALFWorld game has one agent that is somewhere; this one has {len(agents)}")
    locations = sorted({*agents.values(), *places.values(), *(place for _, place in facts.get("objectatlocation", ()))})
    objects, receptacles = sorted(object_types), sorted(receptacle_types)
    number = {entity: i for group in (objects, receptacles, locations) for i, entity in enumerate(group)}
    # Some games mention things that are nowhere (the halves of an egg); these take numbers all the same.
    names = _number_names({entity for rows in facts.values() for row in rows for entity in row} - {*agents, *locations})
    contents, near, inside = defaultdict(set), defaultdict(set), defaultdict(list)
    for thing, receptacle in facts.get("inreceptacle", ()):
        contents[number[receptacle]].add(number[thing])
    for thing, place in facts.get("objectatlocation", ()):
        near[number[place]].add(number[thing])
    for inner, outer in sorted(facts.get("inreceptacleobject", ())):
        inside[number[outer]].append(number[inner])
    marks = {name: {entity for (entity,) in facts.get(name, ())} for name, count in _FACTS.items() if count == 1}
    return Problem(
        goal=goal,
        objects=tuple(names[thing] for thing in objects),
        receptacles=tuple(names[receptacle] for receptacle in receptacles),
        object_types=tuple(_kind(object_types[thing]) for thing in objects),
        receptacle_types=tuple(_kind(receptacle_types[receptacle]) for receptacle in receptacles),
        location_of=tuple(number[places[receptacle]] for receptacle in receptacles),
        start=number[next(iter(agents.values()))],
        contents=tuple(frozenset(contents[i]) for i in range(len(receptacles))),
        near={place: frozenset(things) for place, things in near.items()},
        inside={outer: tuple(inner) for outer, inner in inside.items()},
        can_contain=frozenset((_kind(place), _kind(thing)) for place, thing in facts.get("cancontain", ())),
        objects_that={name: frozenset(number[o] for o in marked & set(objects)) for name, marked in marks.items()},
        receptacles_that={
            name: frozenset(number[r] for r in marked & set(receptacles)) for name, marked in marks.items()
        },
    )


def _one_each(facts: Mapping[str, list[tuple[str, ...]]], name: str) -> dict[str, str]:
    pairs = {(row[0], row[1]) for row in facts.get(name, ())}
    table = dict(pairs)
    if len(table) != len(pairs):
        raise InputError(f"an ALFWorld game has one {name} for each entity; got {len(pairs)} for {len(table)} entities")
    return table


def _number_names(entities: set[str]) -> dict[str, str]:
    """Ids like fridge_bar__plus_01_dot_50 as names like "fridge 1". Basins count apart from what they are in."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for entity in sorted(entities):
        kind, bar, _ = entity.partition("_bar_")
        if bar:
            kinds[kind + "basin" if "basin" in entity else kind].append(entity)
    return {entity: f"{kind} {len(ids) - i}" for kind, ids in kinds.items() for i, entity in enumerate(ids)}


def _kind(type_name: str) -> str:
    return type_name.removesuffix("type")
