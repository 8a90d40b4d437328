"""What an environment can do. A user's own environment is this protocol and nothing more."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, Protocol, runtime_checkable

Method = Literal["reset", "step", "valid_actions"]


@dataclass(frozen=True, slots=True)
class Observation:
    """What the agent gets to see after a reset or an action, and what became of the rollout."""

    text: str
    allowed_actions: list[str] | None = None  # None: the environment does not list them
    done: bool = False
    success: bool = False
    reward: float = 0.0
    valid: bool = True  # was the action understood; an invalid action changes nothing


class Environment(Protocol):
    """One task at a time. `reset` starts it, `step` acts in it until an observation says `done`.

    An environment that cannot go on raises EnvironmentFailure: the rollout is lost, the run goes on, and the next
    `reset` works again. What hangs or crashes is ended from outside (pool.py).
    """

    def reset(self, task: str) -> Observation: ...

    def step(self, action: str) -> Observation: ...


@runtime_checkable
class TellsActions(Protocol):
    """An environment may have this method too, if its observations do not list what is allowed.

    Recovery (specification §6.3) calls it where an action is repeated, and never in an evaluation. It changes nothing.
    Without it, an unchanged text stands for an unchanged set.
    """

    def valid_actions(self) -> list[str] | None:
        """Every action that is allowed now; None: it cannot be told."""
        ...


class Call(NamedTuple):
    """One thing to be asked of an environment, by whoever holds it."""

    method: Method
    argument: str | None = None


Returned = Observation | list[str] | None  # by a call


@runtime_checkable
class AnswersLater(Protocol):
    """An environment that works elsewhere: several are asked first and waited for then, and work at the same time."""

    def submit(self, call: Call) -> Callable[[], Returned]:
        """Ask; what is returned waits for the answer, and raises what the call would."""
        ...


def submit(environment: Environment, call: Call) -> Callable[[], Returned]:
    """Ask an environment; what is returned gives the answer. One that works here begins only then."""
    return environment.submit(call) if isinstance(environment, AnswersLater) else partial(answer, environment, call)


def answer(environment: Environment, call: Call) -> Returned:
    """Do what is asked. The answer to `valid_actions` is None where the environment does not tell them."""
    if call.method == "valid_actions":
        return environment.valid_actions() if isinstance(environment, TellsActions) else None
    assert call.argument is not None, f"{call.method} wants an argument"
    return environment.reset(call.argument) if call.method == "reset" else environment.step(call.argument)
