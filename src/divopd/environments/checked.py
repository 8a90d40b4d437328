"""A user's own environment, with its answers checked: a mistake in it is one line that says what to return instead."""

from collections.abc import Sequence
from numbers import Real
from typing import Any, cast

import numpy as np

from divopd.environments.environment import Environment, Observation
from divopd.errors import InputError

FLAGS = ("done", "success", "valid")


class CheckedEnvironment:
    """The environment itself in everything but this: `reset` and `step` return an Observation, or are an InputError."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    def reset(self, task: str) -> Observation:
        return self._checked("reset", self._environment.reset(task))

    def step(self, action: str) -> Observation:
        return self._checked("step", self._environment.step(action))

    def valid_actions(self) -> list[str] | None:
        ask = getattr(self._environment, "valid_actions", None)
        allowed = ask() if ask is not None else None
        if not _lists_actions(allowed):
            raise InputError(
                f"environment {type(self._environment).__name__}.valid_actions returned {_short(allowed)}; "
                "expected a list of strings or None"
            )
        return allowed

    def __getattr__(self, name: str) -> Any:
        if name == "_environment":  # while it is copied there is none yet
            raise AttributeError(name)
        return getattr(self._environment, name)

    def _checked(self, method: str, answer: object) -> Observation:
        if wrong := what_is_wrong(answer):
            raise InputError(f"environment {type(self._environment).__name__}.{method} {wrong}")
        return cast(Observation, answer)


def what_is_wrong(answer: object) -> str | None:
    """What came and what was expected, if an answer is no observation as divopd.environments has it."""
    if not isinstance(answer, Observation):
        article = "" if answer is None else "a "
        return (
            f"returned {article}{type(answer).__name__}; expected an Observation "
            "(from divopd.environments import Observation)"
        )
    expected = {name: (isinstance(getattr(answer, name), bool | np.bool_), "True or False") for name in FLAGS} | {
        "text": (isinstance(answer.text, str), "a string"),
        "allowed_actions": (_lists_actions(answer.allowed_actions), "a list of strings or None"),
        "reward": (isinstance(answer.reward, Real), "a number"),
    }
    for name, (fits, kind) in expected.items():
        if not fits:
            return f"returned an Observation whose {name} is {_short(getattr(answer, name))}; expected {kind}"
    return None


def _lists_actions(actions: object) -> bool:
    if actions is None:
        return True
    return isinstance(actions, list | tuple) and all(isinstance(one, str) for one in cast(Sequence[object], actions))


def _short(value: object) -> str:
    text = repr(value).replace("\n", " ")
    return text if len(text) <= 60 else text[:57] + "..."
