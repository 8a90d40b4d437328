"""divopd as it was when its explorer played in lock-step, with the engine of that time. Runs in .venv-before.

All rollouts are answered together, the environments act one after the other, and the next turn begins when the last
of them is done. Environment, student and tasks are the default setting's, one thread.
"""

from itertools import count, islice

import torch
from answering import answer, measured

from divopd.environments import make_environment, tasks
from divopd.explorer import Acting, Played, Start, play_each
from divopd.models.model_files import model_folder
from divopd.models.transformers_policy import TransformersPolicy
from divopd.prompts import Codec, style_for

state: dict = {}


def about() -> dict:
    return {"patched": "nothing", "engine": "its own"}


def begin(places: int, turns: int) -> None:
    torch.set_num_threads(1)
    name = "alfworld-small"
    state["student"] = student = TransformersPolicy.load(
        model_folder("embedded:student"), dtype="float32", device="cpu"
    )
    style = style_for(name, answer="terse", actions="unlisted")
    acting = Acting(style, Codec(student.tokenizer), temperature=1.0, max_response_tokens=24, seed=0)
    order = tasks(name, "train")
    starts = (Start(number, order[number % len(order)], turns) for number in count())
    environments = [make_environment(name) for _ in range(places)]
    state["rollouts"] = play_each(starts, acting, student=student, environments=environments)


def play(rollouts: int) -> dict:
    """What a turn took, over so many rollouts more."""
    played: list[Played] = []
    taken = measured(lambda: played.extend(islice(state["rollouts"], rollouts)))
    turns = sum(len(one.turns) for one in played)
    return {name: seconds / turns for name, seconds in taken.items()}


answer({"about": about, "begin": begin, "play": play})
