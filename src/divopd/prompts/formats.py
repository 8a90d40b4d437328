"""The prompt formats on which the paper's teachers were trained, letter by letter.

A teacher that reads another format than its own scores worse than it could. These texts are a wire format, spelling
mistakes included: do not edit them.

- `gigpo-alfworld`, `gigpo-webshop`: verl-agent (the GiGPO authors, Apache License 2.0), the files alfworld.py and
  webshop.py of agent_system/environments/prompts, filled in as env_manager.py beside them does. Every prompt is one
  user message: the last steps, what is seen now, the admissible actions. verl-agent keeps the last 2 steps.
- `embodied-planner`: Embodied-Planner-R1 (OpenMOSS, Apache License 2.0), the system text of
  examples/grpo_trainer/sci_easy.sh and the messages of vllm_rollout/sci_rollout.py. Observations after the first one
  are messages of a tool, as Qwen's chat template writes them.

Not as there: after an answer without an action the environment is not asked, and the agent reads so in our words;
ScienceWorld's observations have no blanks at their ends.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

from divopd.environments.environment import Observation
from divopd.errors import InputError

Format = Literal["chat", "gigpo-alfworld", "gigpo-webshop", "embodied-planner"]
Past = Sequence[tuple[str | None, Observation]]  # the actions so far, each with what was seen after it

_ALFWORLD_TASK = "Your task is to: "
_ALFWORLD_END = """
Your admissible actions of the current situation are: [{actions}].

Now it's your turn to take an action.
You should first reason step-by-step about the current situation. This reasoning process MUST be enclosed within <think> </think> tags. 
Once you've finished your reasoning, you should choose an admissible action for current step and present it within <action> </action> tags.
"""  # noqa: E501, W291 (a wire format)
_ALFWORLD_FIRST = (
    """
You are an expert agent operating in the ALFRED Embodied Environment.
Your current observation is: {seen}"""
    + _ALFWORLD_END
)
_ALFWORLD_LATER = (
    """
You are an expert agent operating in the ALFRED Embodied Environment. Your task is to: {task}
Prior to this step, you have already taken {steps} step(s). Below are the most recent {shown} observaitons and the corresponding actions you took: {history}
You are now at step {now} and your current observation is: {seen}"""  # noqa: E501
    + _ALFWORLD_END
)

_WEBSHOP_SEPARATOR = " [SEP] "
_WEBSHOP_MOST_CHARS = 13_000  # a longer message is written without its history
_WEBSHOP_END = """.
Your admissible actions of the current situation are: 
[
{actions}
].

Now it's your turn to take one action for the current step.
You should first reason step-by-step about the current situation, then think carefully which admissible action best advances the shopping goal. This reasoning process MUST be enclosed within <think> </think> tags. 
Once you've finished your reasoning, you should choose an admissible action for current step and present it within <action> </action> tags.
"""  # noqa: E501, W291
_WEBSHOP_FIRST = (
    """
You are an expert autonomous agent operating in the WebShop e‑commerce environment. 
Your task is to: {task}.
Your current observation is: {seen}"""  # noqa: W291
    + _WEBSHOP_END
)
_WEBSHOP_LATER = (
    """
You are an expert autonomous agent operating in the WebShop e‑commerce environment.
Your task is to: {task}.
Prior to this step, you have already taken {steps} step(s). Below are the most recent {shown} observations and the corresponding actions you took: {history}
You are now at step {now} and your current observation is: {seen}"""  # noqa: E501
    + _WEBSHOP_END
)

_EMBODIED_PLANNER_SYSTEM = """You are a helpful assistant to do some scientific experiment in an environment.
You should explore the environment and find the items you need to complete the experiment.

In the environment, there are several rooms: kitchen, foundry, workshop, bathroom, outside, living room, bedroom, greenhouse, art studio, hallway.
You can teleport to any room in one step.
The available actions are:
activate OBJ
close OBJ
connect OBJ to OBJ
deactivate OBJ
disconnect OBJ
dunk OBJ in OBJ
eat OBJ
flush OBJ
focus on OBJ
go LOC
inventory
look around
look at OBJ
look in OBJ
mix OBJ
move OBJ to OBJ
open OBJ
pick up OBJ
pour OBJ in OBJ
put down OBJ
read OBJ
use OBKJ on OBJ
teleport to LOC
wait: wait 10 steps
wait1: wait 1 step
task: check your task
done: indicate that you believe the task is complete
When arrive a new location, you should use look around to check the OBj you can interact with.
Use focus on OBJ only neccessary as incorrect use will cause environment ends.
Do not proceed with any further exploration or actions until you receive the feedback from the environment after your action.
Your response should use the following format:

Thought: <your thoughts>
Action: <your next action>"""  # noqa: E501

# what a format says about the other settings of prompts, where a configuration does not
FORMAT_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "gigpo-alfworld": {"system": "", "history": 2, "actions": "listed", "answer": "think"},
    "gigpo-webshop": {"system": "", "history": 2, "actions": "listed", "answer": "think"},
    "embodied-planner": {
        "system": _EMBODIED_PLANNER_SYSTEM,
        "history": "full",
        "actions": "unlisted",
        "answer": "labelled",
    },
}


def check_format(name: str, settings: Mapping[str, Any]) -> None:
    """InputError if this format is not known or does not go with these settings of prompts."""
    if name not in get_args(Format):
        raise InputError(f"prompt format is {name!r}; expected {', '.join(get_args(Format))}")
    for key in ("history", "actions", "answer"):
        wanted, got = FORMAT_SETTINGS.get(name, {}).get(key), settings[key]
        kept = isinstance(wanted, int) and isinstance(got, int)  # how many steps are kept may be chosen
        if wanted is not None and got != wanted and not kept:
            raise InputError(f"prompt {key} is {got!r}; the format {name} needs {wanted!r}: leave it out")


def alfworld_message(first: Observation, past: Past, kept: int) -> str:
    """The prompt of GiGPO's ALFWorld agent, as the text of one user message."""
    _, found, task = first.text.partition(_ALFWORLD_TASK)
    if not found:
        raise _no_task("gigpo-alfworld", _ALFWORLD_TASK, first.text)
    seen = [first, *(observation for _, observation in past)]
    actions = "\n ".join(f"'{action}'" for action in seen[-1].allowed_actions or () if action != "help")
    if not past or not kept:
        return _ALFWORLD_FIRST.format(seen=seen[-1].text, actions=actions)
    history = _history([observation.text for observation in seen], past, kept)
    return _ALFWORLD_LATER.format(task=task.strip(), seen=seen[-1].text, actions=actions, **history)


def webshop_message(first: Observation, past: Past, kept: int) -> str:
    """The prompt of GiGPO's WebShop agent, as the text of one user message."""
    heading, _, rest = first.text.partition(f"Instruction:{_WEBSHOP_SEPARATOR}")
    task = rest.split(_WEBSHOP_SEPARATOR)[0]
    if not task or len(heading.split(_WEBSHOP_SEPARATOR)) != 2:  # the page's name comes first
        raise _no_task("gigpo-webshop", f"Instruction:{_WEBSHOP_SEPARATOR}", first.text)
    seen = [first, *(observation for _, observation in past)]
    texts = [_page_after(task, observation.text) for observation in seen]
    actions = "\n".join(f"'{action}'," for action in seen[-1].allowed_actions or ())
    if past and kept:
        history = _history(texts, past, kept)
        message = _WEBSHOP_LATER.format(task=task, seen=texts[-1], actions=actions, **history)
        if len(message) <= _WEBSHOP_MOST_CHARS:
            return message
    return _WEBSHOP_FIRST.format(task=task, seen=texts[-1], actions=actions)


# formats whose every prompt is one user message
ONE_MESSAGE: Mapping[str, Callable[[Observation, Past, int], str]] = {
    "gigpo-alfworld": alfworld_message,
    "gigpo-webshop": webshop_message,
}


# a first observation that each format takes: with it a prompt shows the format's own text
EXAMPLES: Mapping[Format, str] = {
    "chat": "",
    "gigpo-alfworld": f"{_ALFWORLD_TASK}x",
    "gigpo-webshop": _WEBSHOP_SEPARATOR.join(["WebShop", "Instruction:", "x", "Search"]),
    "embodied-planner": "x\n\nx",
}


def experiment_text(text: str) -> str:
    """ScienceWorld's first observation (the task, a blank line, a look around) as Embodied-Planner-R1 reads it."""
    task, found, seen = text.partition("\n\n")
    if not found:
        raise _no_task("embodied-planner", "the task, a blank line and what is seen", text)
    return f"Task Description:\n{task}\n\nObservation:{seen}"


def tool_text(text: str) -> str:
    """A later observation as Embodied-Planner-R1 reads it."""
    return f"<tool_response>\nObservation:{text}\n</tool_response>"


def _history(texts: Sequence[str], past: Past, kept: int) -> dict[str, Any]:
    """The last `kept` steps, each with what was seen before its action, and the numbers around them."""
    steps = len(past)
    shown = range(max(0, steps - kept), steps)
    lines = [f"[Observation {n + 1}: '{texts[n]}', Action {n + 1}: '{past[n][0] or ''}']" for n in shown]
    return {"steps": steps, "shown": len(shown), "now": steps + 1, "history": "\n".join(lines)}


def _page_after(task: str, text: str) -> str:
    """What stands on a page after the instruction, each string in quotes; a page without it as it is."""
    strings = text.split(_WEBSHOP_SEPARATOR)
    if task not in strings:
        return text
    return _WEBSHOP_SEPARATOR.join(f"'{string}'" for string in strings[strings.index(task) + 1 :])


def _no_task(name: str, wanted: str, text: str) -> InputError:
    return InputError(
        f"prompts.format is {name}, but the first observation, {text[:60]!r}, holds no {wanted!r}; "
        "use prompts.format: chat with this environment"
    )
