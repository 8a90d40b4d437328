"""An expert for ALFWorld that knows no more than the agent: it searches, remembers and acts on what it has read.

It can be asked at every state of a rollout in which others act, and goes on from there: it puts down what the task does
not need, takes up what was put in the wrong place, and treats again what was spoilt.
"""

from divopd.environments.alfworld.furniture import FITS, OPENABLE
from divopd.environments.alfworld.memory import Memory, first_look, kind
from divopd.environments.alfworld.problem import TaskType
from divopd.environments.environment import Observation

_TREATMENT: dict[TaskType, tuple[str, str]] = {
    "pick_clean_then_place_in_recep": ("clean", "sinkbasin"),
    "pick_heat_then_place_in_recep": ("heat", "microwave"),
    "pick_cool_then_place_in_recep": ("cool", "fridge"),
}
_RANK = {place: rank for rank, place in enumerate(FITS)}


class Expert:
    """`reset` with the first observation; then at each turn `act`, and `took` with the action that was really taken.

    An action that `took` does not name is taken to be the one that `act` proposed.
    """

    def reset(self, observation: Observation) -> None:
        self._memory: Memory = first_look(observation.text)
        self._taken: str | None = None

    def took(self, action: str) -> None:
        """The action that was taken at the state that `act` was last asked about."""
        self._taken = action

    def act(self, observation: Observation) -> str:
        """The best action now, given everything that was read until this observation."""
        if self._taken is not None:
            self._memory.update(self._taken, observation.text)
        self._taken = decide(self._memory)
        return self._taken


def decide(memory: Memory) -> str:
    """The next action of a sensible agent with this memory."""
    goal, held = memory.goal, memory.held
    if held and kind(held) != goal.thing:
        return _put_away(memory, held)
    if goal.task_type == "look_at_obj_in_light":
        return _use_lamp(memory) if held else _fetch(memory)
    if not held:
        return _fetch(memory)
    verb, appliance = _TREATMENT.get(goal.task_type, ("", ""))
    if verb and (verb, held) not in memory.treated:
        place = next((name for name in memory.receptacles if kind(name) == appliance), appliance)
        return _walk_to(memory, place) or f"{verb} {held} with {place}"
    place = _goal_place(memory)
    return _reach(memory, place) or f"move {held} to {place}"


def _fetch(memory: Memory) -> str:
    """Take up a thing of the kind that is wanted, or go on searching for one."""
    goal = memory.goal
    known = memory.where(goal.thing)
    if goal.task_type == "pick_two_obj_and_place":  # what lies where it should is left there
        known = [(thing, place) for thing, place in known if place != _goal_place(memory)]
    if not known:
        return _search(memory, goal.thing)
    thing, place = known[0]
    return _reach(memory, place) or f"take {thing} from {place}"


def _use_lamp(memory: Memory) -> str:
    lamps = memory.where(memory.goal.place)
    if not lamps:
        return _search(memory, memory.goal.place)
    lamp, place = lamps[0]
    return _walk_to(memory, place) or f"use {lamp}"


def _goal_place(memory: Memory) -> str:
    """Where to put the thing: the receptacle of the right kind that holds most such things already, or the nearest."""
    goal = memory.goal
    places = [name for name in memory.receptacles if kind(name) == goal.place]
    count = {name: sum(kind(thing) == goal.thing for thing in memory.contents.get(name, ())) for name in places}
    order = sorted(places, key=lambda name: (-count[name], name not in memory.here, name not in memory.contents))
    return order[0] if order else f"{goal.place} 1"


def _put_away(memory: Memory, thing: str) -> str:
    """Free the hands: at hand if it fits there, else at the first place where it does."""

    def effort(name: str) -> tuple[bool, bool, bool, int]:
        needs_opening = name in memory.closed or (kind(name) in OPENABLE and name not in memory.contents)
        fits = kind(thing) in FITS.get(kind(name), ())
        return not fits, name not in memory.here, needs_opening, _RANK.get(kind(name), len(_RANK))

    places = [name for name in memory.receptacles if f"move {thing} to {name}" not in memory.refused]
    place = min(places, key=effort, default=memory.receptacles[0])
    return _reach(memory, place) or f"move {thing} to {place}"


def _search(memory: Memory, wanted: str) -> str:
    """Look into the most promising receptacle that was not looked into yet."""
    unseen = [name for name in memory.receptacles if name not in memory.contents]
    if not unseen:
        return "look"  # all was seen and it is nowhere

    def promise(name: str) -> tuple[bool, int, bool]:
        return wanted not in FITS.get(kind(name), ()), _RANK.get(kind(name), len(_RANK)), name not in memory.here

    place = min(unseen, key=promise)
    return _reach(memory, place) or f"examine {place}"


def _walk_to(memory: Memory, place: str) -> str | None:
    return None if place in memory.here else f"go to {place}"


def _reach(memory: Memory, place: str) -> str | None:
    """The next action towards an open receptacle; None when the agent stands at it."""
    return _walk_to(memory, place) or (f"open {place}" if place in memory.closed else None)
