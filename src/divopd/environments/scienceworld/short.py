"""ScienceWorld's four find-* task types in few words, for small models: the real simulator, texts of a few tokens.

An animal, a living thing, a plant or a non-living thing has to be found, focused on and moved to a box in some room.
The first observation is the task alone, a look around lists things without their states and doors, and the actions
that make sense are listed at no cost: teleports, a look, and what can be done with the things seen last. The expert
here acts on what was seen, from any state; it does not need the package's gold paths.
"""

import random
import re
from dataclasses import replace

from divopd.environments.environment import Observation
from divopd.environments.scienceworld import ScienceWorld
from divopd.errors import UnknownNameError

TYPES = ("find-animal", "find-living-thing", "find-non-living-thing", "find-plant")
# Of the 300 variations of a type, three in a row have the same room, box and animals, and 30 in a row the same animals.
# The threes are dealt out, so that a test task is a new combination of what was seen in training.
_DEALT = random.Random(42).sample(range(100), 100)
SPLITS = {"train": _DEALT[:50], "test": _DEALT[50:]}
PLACES = (
    "art studio", "bathroom", "bedroom", "foundry", "greenhouse", "hallway", "kitchen", "living room", "outside",
    "workshop",
)  # fmt: skip
_TASK = re.compile(r"find a\(n\) ([\w-]+(?: thing)?)\..* to the (\w+) box in the ([a-z ]+)\.")
_LOOK = re.compile(r"This (?:room|outside location) is called the ([a-z ]+)\.")
_ARRIVAL = re.compile(r"You teleport to the ([a-z ]+)\.")
_FOCUS = re.compile(r"You focus on the ([\w -]+)\.")
_PLANT = re.compile(r"containing an? ([\w -]+?) in the \w+ stage")
_ARTICLE = re.compile(r"^(?:an?|the) ")
_STATE = re.compile(r"\. |, which|, currently| \(containing (?:nothing|a substance)")
_UNNAMED = ("the agent", "a substance called")
_SCENERY = {  # what is there besides animals and plants
    "outside": ("axe", "fire pit", "fountain", "ground", "shovel"),
    "greenhouse": ("bee hive", "flower pot", "jug", "shovel", "sink"),
}


def tasks(split: str) -> list[str]:
    """The tasks of a split: the same types in both, other variations, in one fixed shuffled order."""
    if split not in SPLITS:
        raise UnknownNameError("split of scienceworld-short", split, SPLITS)
    variations = [3 * dealt + place for dealt in SPLITS[split] for place in range(3)]
    names = [f"{name}/{variation}" for name in TYPES for variation in variations]
    random.Random(42).shuffle(names)
    return names


def things_in(text: str) -> list[str]:
    """The names of the things that a short look lists; a plant goes by its own name, not by its pot's."""
    names = (_PLANT.search(line) or _ARTICLE.sub("", line).split(" (")[0] for line in text.split("\n")[1:])
    return [name if isinstance(name, str) else name[1] for name in names]


def shorten(text: str) -> str:
    """A look around with one line a thing, without states, doors and what is everywhere; other texts as they are."""
    if not _LOOK.match(text):
        return text
    heading, *lines = text.partition("You also see:")[0].strip().split("\n")
    things = [_STATE.split(line.strip())[0] for line in lines]
    return "\n".join([heading.partition(".")[0] + ".", *(t for t in things if not t.startswith(_UNNAMED))])


class ShortScienceWorld:
    """The find-* tasks in few words; otherwise as ScienceWorld, whose settings it takes."""

    def __init__(self, *, simplifications: str = "easy", timeout_s: float = 120.0) -> None:
        self._world = ScienceWorld(simplifications=simplifications, timeout_s=timeout_s)
        self._seen: list[str] = []  # things of the last look, and what was carried away from them
        self._box = ""

    def reset(self, task: str) -> Observation:
        first = self._world.reset(task)
        text = first.text.partition("\n")[0]
        self._seen, self._box = [], _wanted(text)[1]
        return replace(first, text=text, allowed_actions=self._allowed())

    def step(self, action: str) -> Observation:
        seen = self._world.step(action)
        text = shorten(seen.text)
        if _LOOK.match(text):
            self._seen = things_in(text)
        return replace(seen, text=text, allowed_actions=self._allowed())

    def close(self) -> None:
        """End the JVM."""
        self._world.close()

    def _allowed(self) -> list[str]:
        things = [f"{verb} {thing}" for verb in ("focus on", "pick up") for thing in self._seen]
        moves = [f"move {thing} to {self._box} box" for thing in self._seen]
        return ["look around", *(f"teleport to {place}" for place in PLACES), *things, *moves]


class FindExpert:
    """Solves the find-* tasks from what it has seen, also after actions of somebody else."""

    def reset(self, observation: Observation) -> None:
        """Starts a rollout with its first observation."""
        self._kind, self._box, self._target = _wanted(observation.text)
        self._source = "greenhouse" if self._kind == "plant" else "outside"
        self._room = ""
        self._thing: str | None = "axe" if self._kind == "non-living thing" else None
        self._focused = self._held = False
        self._last = ""

    def took(self, action: str) -> None:
        """Tells that this action was taken, whatever `act` had proposed."""
        self._last = action

    def act(self, observation: Observation) -> str:
        """The expert's action here; it counts as taken unless `took` says otherwise."""
        self._remember(observation)
        self._last = "0" if observation.text.startswith("Ambiguous request") else self._decide()
        return self._last

    def _remember(self, observation: Observation) -> None:
        text = observation.text
        arrived, focused = _ARRIVAL.match(text) or _LOOK.match(text), _FOCUS.match(text)
        self._room = arrived[1] if arrived else self._room
        if focused:  # the task goes on only if it was a right one
            self._held = self._held and self._thing == focused[1]
            self._thing, self._focused = focused[1], True
        if self._last == f"pick up {self._thing}" and observation.valid:
            self._held = True
        if _LOOK.match(text) and self._room == self._source and self._thing is None:
            self._thing = self._choose(things_in(text))

    def _choose(self, things: list[str]) -> str | None:
        return next((thing for thing in things if not thing.startswith(_SCENERY[self._source])), None)

    def _decide(self) -> str:
        if not (self._focused and self._held):
            if self._room != self._source and not self._held:
                return f"teleport to {self._source}"
            if self._thing is None:
                return "look around"
            return f"pick up {self._thing}" if self._focused else f"focus on {self._thing}"
        if self._room != self._target:
            return f"teleport to {self._target}"
        return f"move {self._thing} to {self._box} box"


def _wanted(task: str) -> tuple[str, str, str]:
    """What to find, the colour of the box and its room."""
    found = _TASK.search(task)
    assert found is not None, f"no find-* task: {task}"
    return found[1], found[2], found[3]
