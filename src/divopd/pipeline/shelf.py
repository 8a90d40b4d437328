"""Versions on a shelf: the learner puts the newest ones there, and whoever wants an older one gets it from the disk.

On a cluster the shelf is an actor's, and its boards are Ray's object store (on_ray_weights.py); nothing here knows Ray.
"""

import time
from collections.abc import Callable, Collection
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import numpy as np
import torch

from divopd.config import Config
from divopd.learner import Learner
from divopd.models.policy import Weights
from divopd.pipeline.publishing import Files
from divopd.pipeline.rollouts import is_synced
from divopd.run.beside import Beside
from divopd.run.checkpoints import read_weights
from divopd.run.folder import RunFolder

KEPT_VERSIONS = 2  # on the shelf
LOOK_S = 2.0  # between two looks of a waiting learner at what the shelf has

Arrays = dict[str, tuple[str, tuple[int, ...], np.ndarray]]  # type, shape and bytes of tensors


class Shelf:
    """The versions that an actor gives out: the newest ones in the object store, others from the run's folder."""

    def __init__(self, run: Path, *, put: Callable[[Arrays], Any]) -> None:
        self._run, self._put = RunFolder(run), put
        self._references: dict[int, Any] = {}
        self._lock = Lock()  # one thread takes, another gives out

    def versions(self) -> list[int]:
        """Those that can be had, the newest last."""
        with self._lock:
            return sorted({*self._references, *self._run.versions()})

    def take(self, version: int, arrays: Arrays) -> None:
        """Put a version into the object store; from a learner that was restarted it takes the place of what it was."""
        self._keep(version, self._put(arrays))

    def fetch(self, version: int) -> Any:
        """The reference to a version; a CheckpointError means that it is gone."""
        with self._lock:
            known = self._references.get(version)
        if known is None:
            tensors = read_weights(self._run.weights_of(version))
            known = self._keep(version, self._put(as_arrays(tensors)))
        return known

    def _keep(self, version: int, reference: Any) -> Any:
        with self._lock:
            others = sorted(one for one in self._references if one != version)[1 - KEPT_VERSIONS :]
            self._references = {one: self._references[one] for one in others} | {version: reference}
        return reference


class Taker(Protocol):
    """The shelf, as the learner sees it."""

    def versions(self) -> list[int]:
        """The versions that can be had."""
        ...

    def take(self, version: int, weights: Weights) -> bool:
        """Give it a version; returns when it has it. False: it is not there at the moment, and may have lost all."""
        ...


class ObjectStoreWay:
    """Explorers take versions from the object store; files are for those who come later."""

    def __init__(
        self,
        config: Config,
        run: RunFolder,
        shelf: Taker,
        *,
        evaluated: Callable[[], Collection[int]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._shelf, self._dtype = config, shelf, config.weights_dtype
        self._files = Files(config, run, evaluated=evaluated)
        self._giving = Beside[tuple[int, Weights]](self._give)
        self._newest: tuple[int, Weights] | None = None  # that was given
        self._clock, self._looked = clock, clock()

    def publish(self, version: int, learner: Learner) -> None:
        self._put(version, learner, given=is_synced(self._config, version))

    def keep(self, version: int, learner: Learner) -> None:
        """Explorers have it already: only write it, if it lasts."""
        self._newest = None
        self._put(version, learner, given=False)

    def _put(self, version: int, learner: Learner, *, given: bool) -> None:
        wanted = self._files.wants(version)
        weights = learner.snapshot(self._dtype) if given or wanted else {}
        if given:
            self._newest = version, weights
            self._giving.put(self._newest, may_be_skipped=True)
        if wanted:
            self._files.take(version, weights)
        else:
            self._files.tidy(version)

    def look(self) -> None:
        """The actor may have died, and with it what it had."""
        if self._newest is None or self._clock() - self._looked < LOOK_S or not self._giving.idle:
            return
        self._looked = self._clock()
        if self._newest[0] not in self._shelf.versions():
            self._giving.put(self._newest, may_be_skipped=True)

    def settle(self) -> None:
        """What lasts is on disk, and explorers have the newest version, which may be the last."""
        self._giving.settle()
        self._files.settle()

    def _give(self, piece: tuple[int, Weights]) -> None:
        self._shelf.take(*piece)  # if it is not there, `look` sees it


def as_arrays(weights: Weights) -> Arrays:
    """Type, shape and bytes: numpy arrays lie in the object store as they are, and are read there without a copy."""
    return {
        name: (str(t.dtype).removeprefix("torch."), tuple(t.shape), t.reshape(-1).view(torch.uint8).numpy())
        for name, t in weights.items()
    }
