"""How a prompt looks and how a response is read, as settings."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from divopd.environments.environment import Observation
from divopd.errors import InputError
from divopd.prompts.formats import FORMAT_SETTINGS, Format, check_format, experiment_text, tool_text
from divopd.prompts.systems import ANSWER_FORM, SYSTEM_TEXTS

MAX_ACTION_CHARS = 1_000
_ACTION = re.compile(r"<action>(.*?)</action>", re.DOTALL)
_LABELLED = re.compile(r"Action:\s*(.*?)(?:\n|$)")


@dataclass(frozen=True)
class PromptStyle:
    """Settings of prompts and parsing."""

    system: str = ""
    """The system text; empty: the prompt has none."""
    history: Literal["full", "none"] | int = "full"
    """`full`: every observation and response as they were, so that a prompt extends the one before, and shared prefixes
    are trained once. A number: the last so many actions with their observations, as text, after the first observation.
    `none`: the first observation only."""
    actions: Literal["listed", "unlisted"] = "listed"
    """Whether the allowed actions are listed, where the environment tells them."""
    answer: Literal["think", "labelled", "terse"] = "think"
    """`think`: `<think>…</think><action>…</action>`; `labelled`: the lines `Thought: …` and `Action: …`; `terse`: the
    bare action."""
    format: Format = "chat"
    """`chat` is ours; the others are those of the paper's teachers (formats.py)."""
    max_observation_chars: int = 12_000
    """A longer observation is cut."""
    max_prompt_tokens: int = 10_240
    """A longer prompt is cut, and its turn is marked invalid."""
    template: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Arguments for the chat template of the tokenizer, such as `enable_thinking`."""

    def __post_init__(self) -> None:
        named = self.history in ("full", "none")
        if not named and (isinstance(self.history, str | bool) or self.history < 0):
            raise InputError(f"prompt history is {self.history!r}; expected full, none, or how many actions to keep")
        for name in ("max_observation_chars", "max_prompt_tokens"):
            if getattr(self, name) < 1:
                raise InputError(f"prompt {name} is {getattr(self, name)}; expected 1 or more")
        check_format(self.format, vars(self))

    @property
    def kept_actions(self) -> int:
        """How many past actions a prompt without full history shows."""
        return self.history if isinstance(self.history, int) else 0

    def parse(self, response: str) -> str | None:
        """The action in a response, or None if there is none: an invalid action, never an error.

        `think`: the last `<action>…</action>` after the thoughts. `labelled`: the first line after `Action:`. `terse`:
        the first line that is not blank.
        """
        if self.answer == "think":
            answer = response.rpartition("</think>")[2]
            found = [] if "<think>" in answer else _ACTION.findall(answer)  # a thought that was cut off is no answer
            action = found[-1] if found else ""
        elif self.answer == "labelled":
            labelled = _LABELLED.search(response)
            action = labelled[1] if labelled else ""
        else:
            action = response.strip().partition("\n")[0]
        action = " ".join(action.split())
        return action if 0 < len(action) <= MAX_ACTION_CHARS else None

    def render(self, action: str, *, thought: str = "") -> str:
        """The response that says this action: what `parse` reads back."""
        if self.answer == "labelled":
            return f"Thought: {thought}\nAction: {action}"
        return f"<think>{thought}</think><action>{action}</action>" if self.answer == "think" else action

    def describe_first(self, observation: Observation) -> str:
        """The observation after the reset, which holds the task, as the prompt shows it."""
        if self.format == "embodied-planner":
            return experiment_text(self.capped(observation.text))
        return self.describe(observation)

    def describe(self, observation: Observation) -> str:
        """An observation as the prompt shows it."""
        text = self.capped(observation.text)
        if self.format == "embodied-planner":
            return tool_text(text)
        if self.actions == "unlisted" or observation.allowed_actions is None:
            return text
        listed = self.capped("; ".join(observation.allowed_actions))
        return f"{text}\n\nAllowed actions: {listed}"

    def capped(self, text: str) -> str:
        """Text of an environment, cut if it is too long."""
        limit = self.max_observation_chars
        return text if len(text) <= limit else f"{text[:limit]} […]"

    def unparsed(self, previous: Observation) -> Observation:
        """What a student sees after a response without an action: the environment did not move."""
        form = {"think": f" {ANSWER_FORM}", "labelled": " Answer with the lines Thought: … and Action: …", "terse": ""}
        text = f"There was no action in the answer.{form[self.answer]}"
        return replace(previous, text=text, reward=0.0, valid=False)


def style_for(environment: str, **changes: Any) -> PromptStyle:
    """The style of an environment by name, with some settings changed; an unknown name gets a general system text."""
    terse = changes.get("answer") == "terse"
    # a small model learns its environment by heart: a text that never changes only costs it tokens
    text = SYSTEM_TEXTS.get(environment.partition("-")[0], SYSTEM_TEXTS["other"])  # alfworld-small is an alfworld
    system = "" if terse else f"{text}\n\n{ANSWER_FORM}"
    # ScienceWorld's valid actions are some 12,000 tokens: its system text lists their forms instead
    actions = "unlisted" if environment == "scienceworld" else "listed"
    usual = {"system": system, "actions": actions} | FORMAT_SETTINGS.get(changes.get("format", "chat"), {})
    settings: dict[str, Any] = {**usual, **changes}
    try:
        return PromptStyle(**settings)
    except TypeError:
        known = ", ".join(PromptStyle.__dataclass_fields__)
        raise InputError(f"unknown prompt setting among {', '.join(changes)}; known: {known}") from None
