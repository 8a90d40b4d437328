"""A user's own environment, with its answers checked: a mistake in it is one line that says what to return instead."""

import math
import sys
import traceback
from collections.abc import Callable, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, TypeVar, cast

from divopd.environments.environment import Environment, Observation
from divopd.errors import DivopdError, EnvironmentFailure, EnvironmentMistake
from divopd.printable import one_line

FLAGS = ("done", "success", "valid")
MOST_TEXT = 1_000_000  # characters of an observation; the listed actions together may have as many
Result = TypeVar("Result")


class CheckedEnvironment:
    """The environment itself in everything but this: what its methods raise or wrongly return is an EnvironmentMistake.

    An EnvironmentFailure that it raises is its own word, and passes.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    def reset(self, task: str) -> Observation:
        return self._observe("reset", lambda: self._environment.reset(task))

    def step(self, action: str) -> Observation:
        return self._observe("step", lambda: self._environment.step(action))

    def valid_actions(self) -> list[str] | None:
        ask = getattr(self._environment, "valid_actions", None)
        if ask is None:
            return None
        where = f"environment {type(self._environment).__name__}.valid_actions"
        allowed = guarded(where, ask)
        if wrong := _wrong_actions(allowed):
            raise EnvironmentMistake(f"{where} returned {wrong}")
        return None if allowed is None else [str(action) for action in allowed]

    def __getattr__(self, name: str) -> Any:
        if name == "_environment":  # while it is copied there is none yet
            raise AttributeError(name)
        return getattr(self._environment, name)

    def _observe(self, method: str, call: Callable[[], object]) -> Observation:
        where = f"environment {type(self._environment).__name__}.{method}"
        answer = guarded(where, call)
        if wrong := what_is_wrong(answer):
            raise EnvironmentMistake(f"{where} {wrong}")
        return plain(cast(Observation, answer))


def guarded(where: str, call: Callable[[], Result]) -> Result:
    """Call a user's code. Whatever it raises is an EnvironmentMistake of one line; `where` names the method."""
    try:
        return call()
    except EnvironmentMistake:
        raise
    except EnvironmentFailure as failure:
        raise EnvironmentFailure(one_line(_words(failure))) from None
    except SystemExit as leaving:
        raise EnvironmentMistake(f"{where} called sys.exit({one_line(repr(leaving.code))})") from None
    except DivopdError as error:  # of a part of ours that the user's code calls
        raise EnvironmentMistake(f"{where}: {one_line(_words(error))}") from None
    except Exception as error:  # foreign code may raise anything; what it raises must cost one rollout only
        told = f"{type(error).__name__}: {_words(error)}".removesuffix(": ")
        raise EnvironmentMistake(f"{where} raised {one_line(told)}{_place(error)}") from error


def what_is_wrong(answer: object) -> str | None:
    """What came and what was expected, if an answer is no observation as divopd.environments has it."""
    if not isinstance(answer, Observation):
        article = "" if answer is None else "a "
        return (
            f"returned {article}{type(answer).__name__}; expected an Observation "
            "(from divopd.environments import Observation)"
        )
    found = {name: _wrong_flag(getattr(answer, name)) for name in FLAGS} | {
        "text": _wrong_text(answer.text),
        "allowed_actions": _wrong_actions(answer.allowed_actions),
        "reward": _wrong_reward(answer.reward),
    }
    for name, wrong in found.items():
        if wrong:
            return f"returned an Observation whose {name} is {wrong}"
    return None


def plain(seen: Observation) -> Observation:
    """The same observation in Python's own types: numpy's numbers and tuples mean the same, and are not JSON."""
    allowed = seen.allowed_actions
    return Observation(
        str(seen.text),
        None if allowed is None else [str(action) for action in allowed],
        done=bool(seen.done),
        success=bool(seen.success),
        reward=float(seen.reward),
        valid=bool(seen.valid),
    )


def has_lone_surrogate(text: str) -> bool:
    """Whether half a surrogate pair is in it: neither a file nor a tokenizer takes such a text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


# ── what is wrong with one value: what it is, and what was expected ───────────────────────────────────────────────


def _wrong_flag(value: object) -> str | None:
    numpy = sys.modules.get("numpy")  # where nobody has imported it, the value is none of its
    is_flag = isinstance(value, bool) or (numpy is not None and isinstance(value, numpy.bool_))
    return None if is_flag else f"{_short(value)}; expected True or False"


def _wrong_text(value: object) -> str | None:
    if not isinstance(value, str):
        return f"{_short(value)}; expected a string"
    if len(value) > MOST_TEXT:
        return f"{len(value):,} characters long; expected at most {MOST_TEXT:,}"
    if has_lone_surrogate(value):
        return f"{_short(value)}, with half a surrogate pair in it; expected text that can be written as UTF-8"
    return None


def _wrong_actions(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in cast(Sequence[object], value)):
        return f"{_short(value)}; expected a list of strings or None"
    total = sum(len(action) + 1 for action in cast(Sequence[str], value))
    if total > MOST_TEXT:
        return f"a list of {total:,} characters; expected at most {MOST_TEXT:,}"
    return next((f"a list with {wrong}" for wrong in map(_wrong_text, cast(Sequence[str], value)) if wrong), None)


def _wrong_reward(value: object) -> str | None:
    if not isinstance(value, Real):
        return f"{_short(value)}; expected a number"
    try:
        is_finite = math.isfinite(value)
    except OverflowError:
        is_finite = False
    return None if is_finite else f"{_short(value)}; expected a finite number"


def _short(value: object) -> str:
    try:
        text = repr(value[:60]) if isinstance(value, str | bytes) else repr(value)
    except Exception as error:  # a __repr__ of the user's
        text = f"a {type(value).__name__} whose repr raises {type(error).__name__}"
    text = text.replace("\n", " ")
    return text if len(text) <= 60 else text[:57] + "..."


def _words(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # a __str__ of the user's
        return "(no words)"


def _place(error: Exception) -> str:
    """Where it was raised, for whoever has to mend it: in the user's file, not in a library that it calls."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    own = [frame for frame in frames if frame.filename == frames[0].filename]
    return f" ({one_line(Path(own[-1].filename).name)}, line {own[-1].lineno})" if own else ""
