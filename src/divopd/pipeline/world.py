"""What the training loop asks of the world around it: time, explorers, evaluation.

A world is one thing, not a clock and a feed, because virtual time passes by arrivals: simulated.py has the virtual one,
live.py the real one.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from divopd.composers import Composer
from divopd.curricula import Outcome
from divopd.errors import InputError
from divopd.learner import Learner
from divopd.records import Clock
from divopd.store import JournaledBatch


class Waited(NamedTuple):
    """How long the learner waited for a batch."""

    seconds: float = 0.0
    starved_s: float = 0.0  # of it, with nothing in the queue that could be trained


def refuse_to_starve(
    outcomes: Iterable[Outcome], *, newest: int, waited_s: float, limit_s: float, batch_size: int
) -> None:
    """End a wait that leads nowhere: after the limit a batch of turns has arrived, and none of them can be trained.

    `outcomes` are the rollouts that arrived meanwhile. Only those count that began with the newest weights that
    explorers can have: older ones may be stale because a role was away for a while, and the next ones need not be.
    """
    arrived = sum(len(outcome.turns) for outcome in outcomes if outcome.version >= newest)
    if waited_s > limit_s and arrived >= batch_size:
        raise InputError(
            f"none of the {arrived} turns that arrived while the learner waited {waited_s:.0f} s can be trained; "
            "`divopd why RUN ROLLOUT` tells the reason of each; if prompts are cut, raise prompts.max_prompt_tokens"
        )


def refuse_to_pause(backlog: int, *, bound: int | None, waited_s: float, limit_s: float) -> None:
    """End a wait for explorers that pause: so many turns wait that none is played, and not one of them can be trained.

    `waited_s` is how long nothing has arrived, though there is nothing that a teacher has still to score.
    """
    if bound is not None and backlog >= bound and waited_s > limit_s:
        raise InputError(
            f"explorers pause because {backlog} turns wait (explorer.max_backlog is {bound}), none of them can be "
            f"trained, and nothing has arrived for {waited_s:.0f} s; raise explorer.max_backlog above "
            "composer.batch_size, or leave it out; `divopd why RUN ROLLOUT` tells why a turn is not trained"
        )


class World(Protocol):
    """Everything around the learner, with a clock of its own."""

    heed: Callable[[], None]  # set by the loop, called wherever the run may stop: it saves what is wanted, or stops

    @property
    def clock(self) -> Clock: ...

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start of the run."""
        ...

    @property
    def learner_s(self) -> float:
        """Of them, those in which the learner trained."""
        ...

    def publish(self, version: int, learner: Learner) -> None:
        """Give the learner's weights to the explorers, when it is their turn."""
        ...

    def evaluate(self, version: int, learner: Learner) -> None:
        """See to it that the version is evaluated, when it is due."""
        ...

    def wait(self, composer: Composer, *, update: int) -> Waited:
        """Until a batch can be had: a full one, or after a limit one with at least a row."""
        ...

    def updating(self, batch: JournaledBatch) -> AbstractContextManager[None]:
        """The time that training on a batch takes; explorers go on meanwhile."""
        ...

    def state(self) -> dict[str, Any]:
        """All that a resume needs to know of the world as it is now; cheap, and not changed by what happens later."""
        ...

    def write_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """Such a state as JSON types; what it refers to is on disk when this returns."""
        ...

    def restore(self, state: dict[str, Any], *, version: int, learner: Learner) -> None:
        """Go on from a written state; the learner holds the weights of the version."""
        ...
