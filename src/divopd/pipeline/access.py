"""All that a role of the live clock may touch, the same in a process (processes.py) as in an actor (on_ray.py)."""

import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch

from divopd.config import Config
from divopd.learner.meeting import Place
from divopd.models.engine import StudentEngine
from divopd.pipeline.engine_way import Listener
from divopd.pipeline.publishing import FolderWay, Publishing
from divopd.pipeline.rollouts import is_synced
from divopd.pipeline.wishes import Stopped
from divopd.run.checkpoints import read_weights
from divopd.run.doing import silent
from divopd.run.folder import RunFolder
from divopd.store import Calls, Ledger, Questions, Queue

POLL_S = 0.05


class RunStore(Queue, Questions, Calls, Ledger, Protocol):
    """A store as the roles of one run share it."""


class PublishedWeights(Protocol):
    """The policy versions that the learner has published."""

    def versions(self) -> list[int]:
        """Those that are there now, the newest last."""
        ...

    def load(self, version: int, engine: StudentEngine) -> None:
        """Fill an engine; a CheckpointError means that the version is gone, replaced by newer ones."""
        ...

    def publishing(self, config: Config, run: RunFolder, *, evaluated: Callable[[], Collection[int]]) -> Publishing:
        """The learner's end of the same way."""
        ...

    def listener(self, config: Config, engine: StudentEngine, *, name: str) -> Listener | None:
        """An explorer's end, where weights are sent into its engine; None: it fetches them."""
        ...


class WeightsFolder:
    """Published versions in the run's folder."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run

    def versions(self) -> list[int]:
        return self._run.versions()

    def load(self, version: int, engine: StudentEngine) -> None:
        path = self._run.weights_of(version)
        engine.fill_weights(read_weights(path), source=str(path))

    def publishing(self, config: Config, run: RunFolder, *, evaluated: Callable[[], Collection[int]]) -> Publishing:
        return FolderWay(config, run, evaluated=evaluated)

    def listener(self, config: Config, engine: StudentEngine, *, name: str) -> Listener | None:
        return None


@dataclass
class Access:
    """What a role works with. `folder`, the run's, is there for the learner only: others may be elsewhere."""

    config: Config
    store: RunStore
    weights: PublishedWeights
    is_over: Callable[[], bool]
    folder: RunFolder | None = None
    rank: int = 0  # of a learner, or the number of a teacher or an explorer
    doing: Callable[..., None] = silent  # hears what the role does now, see run/doing.py
    open_store: Callable[[], AbstractContextManager[RunStore]] | None = None  # once more, for another thread
    meeting: Callable[[], Place | None] = lambda: None  # where the ranks of the learner meet, once the first is there

    def __post_init__(self) -> None:
        torch.set_num_threads(self.config.threads)

    def check(self) -> None:
        """Stop here if the run is to stop."""
        if self.is_over():
            raise Stopped

    def wait(self, seconds: float = POLL_S) -> None:
        self.check()
        time.sleep(seconds)

    def newest_version(self) -> int | None:
        """The newest version that explorers act with; others are published for the evaluator alone."""
        return max((v for v in self.weights.versions() if is_synced(self.config, v)), default=None)
