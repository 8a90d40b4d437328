"""An expert for ScienceWorld that follows the package's gold path.

It knows what the agent has not seen: the path is computed from the simulator's hidden state, and ScienceWorld offers
no other expert. So it is a source of successful rollouts, not a policy that a student could always imitate.
Gold paths walk and look around a lot; here doors and walking become one teleport, to fit the horizon.
"""

import re
from dataclasses import dataclass

from divopd.environments.environment import Observation
from divopd.environments.scienceworld import ScienceWorld

HORIZON = 30
LOOK = "look around"
_ARRIVAL = re.compile(r"^You (?:teleport|move) to the (.+?)\.$")
_ROOM = re.compile(r"^This (?:room|outside location) is called the (.+?)\.", re.MULTILINE)
_READING = re.compile(r"measures a temperature of (-?\d+) degrees")
_BOXES = re.compile(
    r"temperature is above (?P<limit>[-\d.]+) degrees celsius, place it in the (?P<above>\w+) box\. "
    r".*?temperature is below [-\d.]+ degrees celsius, place it in the (?P<below>\w+) box"
)


@dataclass(frozen=True)
class PathAction:
    """An action of a path and the room in which it belongs."""

    action: str
    room: str


def shorten(path: list[str], *, start_room: str, limit: int = HORIZON) -> list[PathAction]:
    """The same deeds with teleports for walks. A look around after each arrival stays if all then fits `limit`."""
    with_looks: list[PathAction] = []
    room, pending = start_room, start_room  # where the path is, and where it will have walked to
    looked = True  # the first observation shows the first room
    for action in path:
        if action.startswith("open door to "):
            continue
        if action.startswith("go to "):
            pending = action.removeprefix("go to ")
            continue
        if action == LOOK:
            continue
        if pending != room:
            room, looked = pending, False
            with_looks.append(PathAction(f"teleport to {room}", room))
        if not looked:
            looked = True
            with_looks.append(PathAction(LOOK, room))
        with_looks.append(PathAction(action, room))
    if with_looks and with_looks[-1].action == "wait1":
        with_looks.pop()  # gold paths end by waiting one step after the task is done
    without = [entry for entry in with_looks if entry.action != LOOK]
    return with_looks if len(with_looks) <= limit else without


class GoldExpert:
    """Follows the shortened gold path of the environment's task, also when other actions come in between.

    It proposes the same action until that was done, goes back to the room where it belongs first, answers the
    simulator's questions, waits for what has not grown yet, and chooses the box that a measured temperature asks for.
    It cannot mend a world that other actions have spoiled.
    """

    def __init__(self, environment: ScienceWorld) -> None:
        self._environment = environment
        self._path: list[PathAction] = []
        self._task_text = ""

    def reset(self, observation: Observation) -> None:
        """Right after the environment's reset; asks the simulator for the gold path, which takes seconds."""
        self._task_text = observation.text
        self._room = _room_in(observation.text) or ""
        self._path = shorten(self._environment.gold_path(), start_room=self._room)
        self._next = 0
        self._from_path: str | None = None  # the proposal, if doing it means a step ahead on the path
        self._taken = ""
        self._box: str | None = None

    def act(self, observation: Observation) -> str:
        """The expert's action at this state; taken to be done unless `took` says otherwise."""
        advanced = self._taken == self._from_path
        self._next += advanced
        self._from_path = None
        self._room = _room_in(observation.text) or self._room
        self._box = _box_for(self._task_text, observation.text) or self._box
        if advanced and not observation.valid and self._path[self._next - 1].action.startswith("focus on "):
            self._next -= 1  # not there yet: things grow while one waits
            self._taken = "wait1"
        else:
            self._taken = self._decide(observation)
        return self._taken

    def took(self, action: str) -> None:
        """The action that was really taken at the state that `act` was last asked about."""
        self._taken = action

    def _decide(self, observation: Observation) -> str:
        if observation.text.startswith("Ambiguous request"):
            return self._propose(self._path[self._next].action) if self._ahead_is_answer() else "0"
        while self._ahead_is_answer():
            self._next += 1  # an answer to a question that was not asked this time
        if self._next == len(self._path):
            return "wait1"
        ahead = self._path[self._next]
        if ahead.room != self._room and not ahead.action.startswith("teleport to "):
            return f"teleport to {ahead.room}"
        return self._propose(_into_box(ahead.action, self._box))

    def _ahead_is_answer(self) -> bool:
        return self._next < len(self._path) and self._path[self._next].action.isdecimal()

    def _propose(self, action: str) -> str:
        self._from_path = action
        return action


def _box_for(task: str, observation: str) -> str | None:
    """The colour of the box that the task of use-thermometer asks for, given a reading in the observation."""
    rule, reading = _BOXES.search(task), _READING.search(observation)
    if rule is None or reading is None:
        return None
    return rule["above"] if float(reading[1]) > float(rule["limit"]) else rule["below"]


def _into_box(action: str, colour: str | None) -> str:
    # temperatures drift with time, so the reading of this rollout decides, not that of the gold path
    return re.sub(r" to \w+ box$", f" to {colour} box", action) if colour else action


def _room_in(text: str) -> str | None:
    found = _ARRIVAL.search(text) or _ROOM.search(text)
    return found[1] if found else None
