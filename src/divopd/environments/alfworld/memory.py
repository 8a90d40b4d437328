"""What an agent in ALFWorld knows from what it has read so far: its own actions and the texts that answered them."""

import re
from dataclasses import dataclass, field

from divopd.environments.alfworld.problem import Goal
from divopd.environments.alfworld.text import NOTHING_HAPPENS, read_task
from divopd.errors import InputError

_INTRO = re.compile(r"you see (?P<around>.*)\.\s+Your task is to: (?P<task>.*)\.", re.DOTALL)
_THING = re.compile(r"\ba (\w+ \d+)")
_PLACE_NAMES = re.compile(r"\w+ \d+")
_SEEN = re.compile(r"(?:On the (?P<top>\w+ \d+)|The (?P<inside>\w+ \d+) is open\. In it), you see (?P<things>.*)\.$")
_CLOSED = re.compile(r"The (\w+ \d+) is closed\.$")
_ARRIVED = re.compile(r"You arrive at (\w+ \d+)\.")
_SHUT = re.compile(r"You close the (\w+ \d+)\.")
_TOOK = re.compile(r"You pick up the (\w+ \d+) from the (\w+ \d+)\.")
_MOVED = re.compile(r"You move the (\w+ \d+) to the (\w+ \d+)\.")
_TREATED = re.compile(r"You (clean|heat|cool) the (\w+ \d+) using the \w+ \d+\.")
_FACING = re.compile(r"You are facing the (.*)\. Next to it")
_CARRYING = re.compile(r"You are carrying: a (\w+ \d+)\.")
_UNDONE_BY = {"heat": "cool", "cool": "heat"}


def kind(name: str) -> str:
    """The kind of a named thing: "mug" of "mug 1"."""
    return name.split(" ")[0]


@dataclass(slots=True)
class Memory:
    """What has been seen. `update` adds the answer to one action; nothing here comes from anywhere else."""

    goal: Goal
    receptacles: list[str]  # in the order of the first look around
    contents: dict[str, list[str]] = field(default_factory=dict)  # receptacle → things, as last seen
    closed: set[str] = field(default_factory=set)
    here: set[str] = field(default_factory=set)  # receptacles that the agent stands at
    spots: list[set[str]] = field(default_factory=list)  # receptacles found to share one place
    held: str | None = None
    treated: set[tuple[str, str]] = field(default_factory=set)  # ("heat", "mug 1")
    refused: set[str] = field(default_factory=set)  # moves that were answered with nothing

    def update(self, action: str, answer: str) -> None:
        """Remember what an action brought. Unknown texts are no news."""
        if answer == NOTHING_HAPPENS:
            self._refuse(action.strip())
        elif match := _TOOK.match(answer):
            self.held = match[1]
            self._drop_from(match[2], match[1])
        elif match := _MOVED.match(answer):
            self.held = None
            self.contents.setdefault(match[2], []).append(match[1])
        elif match := _TREATED.match(answer):
            self.treated.discard((_UNDONE_BY.get(match[1], ""), match[2]))
            self.treated.add((match[1], match[2]))
        elif match := _SHUT.match(answer):
            self.closed.add(match[1])
        elif match := _FACING.match(answer):
            self._stand_at(set(_PLACE_NAMES.findall(match[1])))
        elif match := _CARRYING.match(answer):
            self.held = match[1]
        else:
            self._see(answer)

    def where(self, wanted: str) -> list[tuple[str, str]]:
        """Known (thing, receptacle) of a kind of thing, those at hand first."""
        found = [(thing, place) for place, things in self.contents.items() for thing in things if kind(thing) == wanted]
        return sorted(found, key=lambda pair: pair[1] not in self.here)

    def _see(self, answer: str) -> None:
        if match := _ARRIVED.match(answer):
            self._stand_at({match[1]})
        if match := _SEEN.search(answer):
            place = match["top"] or match["inside"]
            self.closed.discard(place)
            self.contents[place] = _THING.findall(match["things"])
        elif match := _CLOSED.search(answer):
            self.closed.add(match[1])

    def _stand_at(self, places: set[str]) -> None:
        self.here = next((spot for spot in self.spots if spot & places), places)

    def _refuse(self, action: str) -> None:
        """Learn from an action that was not possible: what is here cannot be gone to, what is gone cannot be taken."""
        words = action.split(" ")
        name = " ".join(words[-2:])
        if action.startswith("go to ") and name in self.receptacles and self.here:
            self.spots = [spot for spot in self.spots if not spot & self.here]
            self.here = self.here | {name}
            self.spots.append(self.here)
        elif words[0] == "move" and self.held == " ".join(words[1:3]) and name in self.here - self.closed:
            self.refused.add(action)  # it does not fit there; from elsewhere the answer would say nothing about that
        elif words[0] == "take" and not self.held and name in self.here:
            self._drop_from(name, " ".join(words[1:3]))

    def _drop_from(self, place: str, thing: str) -> None:
        self.contents[place] = [other for other in self.contents.get(place, []) if other != thing]


def first_look(intro: str) -> Memory:
    """The memory of an agent that has read the first observation of a game."""
    match = _INTRO.search(intro)
    receptacles = _THING.findall(match["around"]) if match else []
    if match is None or not receptacles:
        raise InputError(f"expected the first observation of an ALFWorld game, with receptacles; got {intro[:200]!r}")
    return Memory(goal=read_task(match["task"]), receptacles=receptacles)
