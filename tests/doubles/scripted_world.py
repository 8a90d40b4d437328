"""A world in which rollouts arrive by a script: rollout n is always the same, and one arrives every virtual second."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Protocol

from divopd.composers import Composer
from divopd.learner import Learner
from divopd.pipeline.world import Waited
from divopd.records import Clock
from divopd.store import JournaledBatch, Ledger, Queue
from divopd.turns import Rollout

UPDATE_S = 2.0


class BothFaces(Queue, Ledger, Protocol):
    """A store that is asked by explorers and by the learner."""


class ScriptedWorld:
    """Puts `script(number, version)` until a batch can be had. `published` and `evaluated` are what it was given."""

    clock: Clock = "virtual"

    def __init__(self, store: BothFaces, script: Callable[[int, int], Rollout], *, batch_size: int) -> None:
        self.store, self.script, self.batch_size = store, script, batch_size
        self.heed: Callable[[], None] = lambda: None
        self.learner_s = 0.0
        self.version = 0
        self.published: list[tuple[int, Any]] = []
        self.evaluated: list[int] = []

    @property
    def elapsed_s(self) -> float:
        return self.store.arrived().rollouts + self.learner_s

    def publish(self, version: int, learner: Learner) -> None:
        self.version = version
        self.published.append((version, dict(learner.weights())))

    def evaluate(self, version: int, learner: Learner) -> None:
        self.evaluated.append(version)

    def wait(self, composer: Composer, *, update: int) -> Waited:
        self.heed()
        began = self.elapsed_s
        while update >= self.store.updates and self.store.rows(composer, update=update) < self.batch_size:
            self.arrive(self.script(self.store.arrived().rollouts, self.version))
            self.heed()
        return Waited(self.elapsed_s - began)

    def arrive(self, rollout: Rollout) -> None:
        self.store.put(rollout)

    @contextmanager
    def updating(self, batch: JournaledBatch) -> Generator[None]:
        self.learner_s += UPDATE_S
        self.heed()
        yield

    def state(self) -> dict[str, Any]:
        return {"learner_s": self.learner_s}

    def write_state(self, state: dict[str, Any]) -> dict[str, Any]:
        return state

    def restore(self, state: dict[str, Any], *, version: int, learner: Learner) -> None:
        self.version = version
        self.learner_s = state["learner_s"]
