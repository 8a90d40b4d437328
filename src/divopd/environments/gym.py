"""Any Gymnasium-shaped text environment as one of ours: no subclass, no registration, only `reset` and `step`.

A task `seed/7` resets with that seed; any other task is handed over as `options={"task": TASK}`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from divopd.environments.environment import Environment, Observation
from divopd.errors import EnvironmentFailure, InputError, MissingExtraError

Describe = Callable[[Any, Mapping[str, Any]], str]


def as_text(seen: Any, info: Mapping[str, Any]) -> str:
    """What an environment shows when it shows text: the observation itself, or its field `text`."""
    text = seen.get("text") if isinstance(seen, Mapping) else seen
    if not isinstance(text, str):
        raise InputError(
            f"the environment's observation is {type(seen).__name__}, not text; give GymEnvironment a function "
            "`describe` that turns (observation, info) into text"
        )
    return text


class GymEnvironment:
    """Wraps an environment whose `reset` gives (observation, info) and whose `step` gives five values.

    `actions` names the numbers of a discrete action space: the i-th name stands for action i, and other words are
    invalid actions. Without it the text itself is the action. Allowed actions come from `actions`, or from
    `info["allowed_actions"]`; `info["valid"]` tells whether an action was understood. Success is
    `info["success"]` if the environment says so, else an end with a positive reward.
    """

    def __init__(self, env: Any, *, actions: Sequence[str] | None = None, describe: Describe = as_text) -> None:
        self._env = env
        self._actions = list(actions) if actions is not None else None
        self._describe = describe
        self._last = Observation("")

    def reset(self, task: str) -> Observation:
        seed = seed_of(task)
        options = None if seed is not None else {"task": task}
        seen, info = self._guard(lambda: self._env.reset(seed=seed, options=options))
        self._last = Observation(self._describe(seen, info), self._allowed(info))
        return self._last

    def step(self, action: str) -> Observation:
        chosen: Any = action
        if self._actions is not None:
            if action not in self._actions:
                return Observation(self._last.text, self._last.allowed_actions, valid=False)
            chosen = self._actions.index(action)
        seen, reward, terminated, truncated, info = self._guard(lambda: self._env.step(chosen))
        success = bool(info.get("success", terminated and reward > 0))
        self._last = Observation(
            self._describe(seen, info),
            self._allowed(info),
            done=bool(terminated or truncated),
            success=success and bool(terminated or truncated),
            reward=float(reward),
            valid=bool(info.get("valid", True)),
        )
        return self._last

    def _allowed(self, info: Mapping[str, Any]) -> list[str] | None:
        listed = info.get("allowed_actions", self._actions)
        return None if listed is None else [str(action) for action in listed]

    def _guard(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:  # foreign code may raise anything; what it raises must cost one rollout only
            raise EnvironmentFailure(f"{type(self._env).__name__} failed: {type(error).__name__}: {error}") from error


def seed_of(task: str) -> int | None:
    """`seed/7` → 7; None for a task that is no seed."""
    kind, _, number = task.partition("/")
    return int(number) if kind == "seed" and number.isascii() and number.isdecimal() and len(number) < 10 else None


def make_gym(name: str) -> Environment:
    """The environment that gymnasium.make knows under this name."""
    try:
        import gymnasium
    except ImportError:
        raise MissingExtraError("Gymnasium", "gym") from None
    try:
        return GymEnvironment(gymnasium.make(name, disable_env_checker=True))
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        raise InputError(f"gymnasium cannot make {name!r}: {error}") from None
