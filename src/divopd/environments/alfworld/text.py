"""The sentences of ALFWorld, as the package words them."""

import re
from collections.abc import Iterable

from divopd.environments.alfworld.problem import Goal, TaskType
from divopd.errors import InputError

WELCOME = "-= Welcome to TextWorld, ALFRED! =-"
NOTHING_HAPPENS = "Nothing happens."
HELP = """\
Available commands:
  look:                             look around your current location
  inventory:                        check your current inventory
  go to (receptacle):               move to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
  move (object) to (receptacle):  place an object in or on a receptacle
  examine (something):              examine a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object using a receptacle
  clean (object) with (receptacle): clean an object using a receptacle
  cool (object) with (receptacle):  cool an object using a receptacle
  slice (object) with (object):     slice an object using a sharp object
"""


def listing(items: list[str]) -> str:
    """Items as one phrase: "nothing", "x", "x, and y", "x, y, and z"."""
    if not items:
        return "nothing"
    if len(items) == 1:
        return items[0]
    return f"{', '.join(items[:-1])}, and {items[-1]}"


def things(names: Iterable[str]) -> str:
    """Names as one phrase with articles. The package never says "an"."""
    return listing([f"a {name}" for name in names])


def welcome(around: str, task: str) -> str:
    return f"{WELCOME}\n\n{around}\n\nYour task is to: {task}."


def middle_of_room(receptacles: Iterable[str]) -> str:
    return f"You are in the middle of a room. Looking quickly around you, you see {things(receptacles)}."


def facing(receptacles: Iterable[str], beside: Iterable[str]) -> str:
    return f"You are facing the {listing(list(receptacles))}. Next to it, you see {things(beside)}."


def closed(receptacle: str) -> str:
    return f"The {receptacle} is closed."


def opened(receptacle: str, contents: Iterable[str]) -> str:
    return f"The {receptacle} is open. In it, you see {things(contents)}."


def on_top(receptacle: str, contents: Iterable[str]) -> str:
    return f"On the {receptacle}, you see {things(contents)}."


def carrying(names: Iterable[str]) -> str:
    names = list(names)
    return f"You are carrying: {things(names)}." if names else "You are not carrying anything."


def container(name: str, contents: Iterable[str]) -> str:
    return f"This is a normal {name}. In it, you see {things(contents)}."


def condition(name: str, *, clean: bool, hot: bool, cool: bool, sliced: bool, toggled: bool) -> str:
    """What examining an object tells. A cool thing that is neither clean nor sliced is called cold."""
    if not (clean or hot or cool):
        if toggled:
            return f"This {name} is on."
        return f"This is a sliced {name}." if sliced else f"There's nothing special about {name}."
    warmth = "hot" if hot else "cool" if clean or sliced else "cold"
    words = [warmth] if hot or cool else []
    if clean:
        words.append("clean")
    return f"This is a {' and '.join(words)} {'sliced ' if sliced else ''}{name}."


# How a task is put into words, two ways each; {place} is the kind of receptacle, or of lamp.
TASKS: dict[TaskType, tuple[str, str]] = {
    "pick_and_place_simple": ("put a {thing} in {place}", "put some {thing} on {place}"),
    "look_at_obj_in_light": ("look at {thing} under the {place}", "examine the {thing} with the {place}"),
    "pick_clean_then_place_in_recep": ("put a clean {thing} in {place}", "clean some {thing} and put it in {place}"),
    "pick_heat_then_place_in_recep": ("put a hot {thing} in {place}", "heat some {thing} and put it in {place}"),
    "pick_cool_then_place_in_recep": ("put a cool {thing} in {place}", "cool some {thing} and put it in {place}"),
    "pick_two_obj_and_place": ("put two {thing} in {place}", "find two {thing} and put them in {place}"),
}


def read_task(words: str) -> Goal:
    """The goal that a task names. InputError if it is not worded like the package's own tasks."""
    for task_type, wordings in TASKS.items():
        for wording in wordings:
            if match := re.fullmatch(wording.format(thing=r"(\w+)", place=r"(\w+)"), words):
                return Goal(task_type, match[1], match[2])
    raise InputError(
        f"no task of ALFWorld is worded {words[:200]!r}; expected for example 'put a clean mug in cabinet'"
    )
