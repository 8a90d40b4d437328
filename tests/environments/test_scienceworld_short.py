"""ScienceWorld's find-* tasks in few words: short texts, and an expert that acts on what it has seen."""

from importlib.util import find_spec

import pytest

from divopd.environments import missing_parts
from divopd.environments.environment import Observation
from divopd.environments.scienceworld.short import FindExpert, ShortScienceWorld, shorten, tasks, things_in


def test_a_look_in_few_words() -> None:
    """One line a thing, without states, doors and what is everywhere; plants keep their names, other texts stay."""
    look = (
        "This room is called the greenhouse. In it, you see: \n\tthe agent\n\ta substance called air\n"
        "\ta bee hive. The bee hive door is closed. \n"
        "\ta flower pot 2 (containing a apple tree in the adult stage, soil)\n"
        "\ta flower pot 5 (containing a substance called water)\n"
        "\ta sink, which is turned off. In the sink is: nothing.\n"
        "You also see:\n\tA door to the hallway (that is open)"
    )
    short = shorten(look)
    assert short.split("\n") == [
        "This room is called the greenhouse.",
        "a bee hive",
        "a flower pot 2 (containing a apple tree in the adult stage, soil)",
        "a flower pot 5",
        "a sink",
    ]
    assert things_in(short) == ["bee hive", "apple tree", "flower pot 5", "sink"]
    assert shorten("You focus on the apple tree.") == "You focus on the apple tree."


def test_the_find_expert_acts_on_what_was_seen() -> None:
    """Also after actions of others: it goes back, takes what was focused on, and answers questions."""
    expert = FindExpert()
    expert.reset(Observation("Your task is to find a(n) plant. … Then, move it to the red box in the living room."))
    look = (
        "This room is called the greenhouse.\na sink\na flower pot 2 (containing a pea plant in the adult stage, soil)"
    )
    for seen, action in (
        ("", "teleport to greenhouse"),
        ("You teleport to the greenhouse.", "look around"),
        (look, "focus on pea plant"),
        ("Ambiguous request: Please enter the number for the action you intended", "0"),
        ("You focus on the pea plant.", "pick up pea plant"),
        ("You move the pea plant to the inventory.", "teleport to living room"),
        ("You teleport to the living room.", "move pea plant to red box"),
    ):
        assert expert.act(Observation(seen)) == action
    expert.reset(Observation("Your task is to find a(n) animal. … Then, move it to the red box in the living room."))
    expert.act(Observation(""))
    expert.took("teleport to kitchen")
    assert expert.act(Observation("You teleport to the kitchen.")) == "teleport to outside"


@pytest.mark.slow
@pytest.mark.skipif(bool(missing_parts("scienceworld-short")), reason="for want of Java")
@pytest.mark.skipif(find_spec("scienceworld") is None, reason="for want of the extra scienceworld")
def test_the_find_expert_succeeds() -> None:
    """It solves tasks of all four types in at most eight turns; listed actions are understood."""
    environment, expert = ShortScienceWorld(), FindExpert()
    solved = 0
    for task in tasks("test")[:8]:
        observation = environment.reset(task)
        expert.reset(observation)
        for _ in range(8):
            action = expert.act(observation)
            assert action in (observation.allowed_actions or []) or action.endswith(" axe") or " axe to " in action
            observation = environment.step(action)
            if observation.done:
                break
        solved += observation.success
    environment.close()
    assert solved == 8
