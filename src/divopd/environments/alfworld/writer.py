"""Writing a game as a PDDL problem of ALFWorld's domain, which the package and our engine read alike."""

from collections.abc import Iterable

from divopd.environments.alfworld import furniture
from divopd.environments.alfworld.furniture import FITS
from divopd.environments.alfworld.problem import GOALS, Goal

Receptacle = tuple[str, int]  # kind, and which one of it

_PROPERTIES = {
    "cleanable": furniture.CLEANABLE,
    "heatable": furniture.HEATABLE,
    "coolable": furniture.COOLABLE,
    "sliceable": furniture.SLICEABLE,
    "toggleable": furniture.TOGGLEABLE,
    "isreceptacleobject": furniture.CONTAINERS,
}


def write_problem(
    name: str,
    goal: Goal,
    *,
    receptacles: list[Receptacle],
    locations: list[int],  # of each receptacle; the agent starts at location 0
    things: list[tuple[str, Receptacle]],  # kind, and where it is
) -> str:
    """The problem text. Things of one kind are told apart by their place in the list."""
    place_of = {place: f"loc_bar_{location:02d}" for place, location in zip(receptacles, locations, strict=True)}
    objects = [(f"{kind}_bar_{i:02d}", kind, place) for i, (kind, place) in enumerate(things)]
    kinds, rooms = sorted({kind for _, kind, _ in objects}), sorted({kind for kind, _ in receptacles})
    declared = [
        "agent1 - agent",
        *_declare("otype", {f"{kind}type" for kind in (*kinds, "knife", "butterknife")}),  # the domain names these
        *_declare("rtype", {f"{kind}type" for kind in (*rooms, "sinkbasin", "microwave", "fridge")}),
        *_declare("object", {thing for thing, _, _ in objects}),
        *_declare("receptacle", map(_id, receptacles)),
        *_declare("location", {"loc_bar_00", *place_of.values()}),
    ]
    facts = ["(atlocation agent1 loc_bar_00)"]
    for place in receptacles:
        facts += _receptacle_facts(place, place_of[place])
    for thing, kind, place in objects:
        facts += [f"(inreceptacle {thing} {_id(place)})", f"(objectatlocation {thing} {place_of[place]})"]
        facts += _object_facts(thing, kind)
    facts += [f"(cancontain {place}type {kind}type)" for place in rooms for kind in kinds if kind in FITS[place]]
    lines = [f"(define (problem {name.replace('/', '_')})", "(:domain alfred)", "(:objects", *declared, ")"]
    lines += ["(:init", *facts, ")", GOALS[goal.task_type].format(thing=goal.thing, place=goal.place), ")"]
    return "\n".join(lines) + "\n"


def _receptacle_facts(place: Receptacle, location: str) -> list[str]:
    facts = [f"(receptacletype {_id(place)} {place[0]}type)", f"(receptacleatlocation {_id(place)} {location})"]
    return [*facts, f"(openable {_id(place)})"] if place[0] in furniture.OPENABLE else facts


def _object_facts(thing: str, kind: str) -> list[str]:
    properties = [fact for fact, kinds in _PROPERTIES.items() if kind in kinds]
    if kind not in furniture.TOGGLEABLE:
        properties.append("pickupable")
    return [f"(objecttype {thing} {kind}type)", *(f"({fact} {thing})" for fact in properties)]


def _id(place: Receptacle) -> str:
    """The id of a receptacle. A basin is part of a sink or tub, and named after it."""
    kind, number = place
    whole = kind.removesuffix("basin")
    return f"{whole}_bar_{number:02d}" if whole == kind else f"{whole}_bar_{number:02d}_bar_{kind}"


def _declare(kind: str, names: Iterable[str]) -> list[str]:
    return [f"{name} - {kind}" for name in sorted(names)]
