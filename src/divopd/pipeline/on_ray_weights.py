"""Weights through Ray's object store: the learner puts a version there, and each machine fetches it once.

An actor beside the store owns the versions, so that they outlive a learner that dies. When the actor dies itself, Ray
starts it again, and it has what is in the run's folder; the learner notices and gives it the newest version again.
"""

import socket
import warnings
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from divopd.config import Config
from divopd.errors import InputError, MissingExtraError
from divopd.learner import Learner
from divopd.models.engine import StudentEngine
from divopd.models.policy import Weights
from divopd.models.vllm_policy import VllmPolicy
from divopd.models.vllm_transfer import Link, Sender
from divopd.pipeline.engine_way import EngineWay, Listener
from divopd.pipeline.publishing import FolderWay, Publishing
from divopd.pipeline.rollouts import is_synced
from divopd.pipeline.shelf import Arrays, ObjectStoreWay, Shelf, as_arrays
from divopd.pipeline.switchboard import BoardClient, Order, Switchboard
from divopd.run.folder import RunFolder

try:
    import ray
    from ray.exceptions import ObjectLostError, RayActorError, RayTaskError
except ImportError:
    raise MissingExtraError("ray", "ray") from None


def answer(reference: Any) -> Any:
    """What an actor answered; an error of ours is raised as itself."""
    try:
        return ray.get(reference)
    except RayTaskError as error:
        raise error.cause from None


class WeightsActor:
    """Owns the published versions of a run in Ray's object store."""

    def __init__(self, run: Path) -> None:
        self._shelf, self._board = Shelf(run, put=ray.put), Switchboard()

    def versions(self) -> list[int]:
        return self._shelf.versions()

    @ray.method(concurrency_group="taking")
    def take(self, version: int, arrays: Arrays) -> None:
        """The arrays lie in the object store as the caller's; here they become the actor's own."""
        self._shelf.take(version, arrays)

    @ray.method(concurrency_group="reading")
    def fetch(self, version: int) -> list[Any]:
        """A list with the reference to a version, so that it is the reference that travels."""
        return [self._shelf.fetch(version)]

    def board(self, name: str, values: tuple[Any, ...]) -> Any:
        """A method of the switchboard."""
        if name not in vars(RemoteBoard):
            raise InputError(f"the weights' actor was asked for {name!r}, which no role may ask for")
        return getattr(self._board, name)(*values)


class RemoteBoard:
    """The switchboard as the roles on a cluster see it."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def _call(self, name: str, *values: Any) -> Any:
        return answer(self._actor.board.remote(name, values))

    def join(self, name: str, workers: int) -> None:
        self._call("join", name, workers)

    def members(self) -> dict[str, tuple[int, int]]:
        return self._call("members")

    def order(self, step: str, given: dict[str, dict[str, Any]]) -> int:
        return self._call("order", step, given)

    def next(self, name: str) -> Order | None:
        return self._call("next", name)

    def report(self, name: str, number: int, failure: str | None) -> None:
        self._call("report", name, number, failure)

    def state(self, number: int) -> tuple[list[str], str | None]:
        return self._call("state", number)


class RemoteWeights:
    """Published versions as the roles on a cluster see them."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def versions(self) -> list[int]:
        return answer(self._actor.versions.remote())

    def load(self, version: int, engine: StudentEngine) -> None:
        while True:
            try:
                [reference] = answer(self._actor.fetch.remote(version))
                arrays = cast(Arrays, ray.get(reference))
                break
            except ObjectLostError:  # its owner died; the next one reads the file again
                continue
        engine.fill_weights({name: _as_tensor(*a) for name, a in arrays.items()}, source=f"version {version}")

    def take(self, version: int, weights: Weights) -> bool:
        """Give a version to the actor; returns when it has it. False: the actor is gone."""
        try:
            answer(self._actor.take.remote(version, as_arrays(weights)))
        except RayActorError:
            return False
        return True

    def publishing(self, config: Config, run: RunFolder, *, evaluated: Callable[[], Collection[int]]) -> Publishing:
        if config.weights_way == "folder":
            return FolderWay(config, run, evaluated=evaluated)
        shelf = ObjectStoreWay(config, run, self, evaluated=evaluated)
        if config.weights_backend is None:
            return shelf
        return EngineWay(
            shelf,
            RemoteBoard(self._actor),
            connect=partial(_connect, config),
            synced=partial(is_synced, config),
            tells=partial(print, flush=True),
        )

    def listener(self, config: Config, engine: StudentEngine, *, name: str) -> Listener | None:
        if config.weights_backend is None:
            return None
        assert isinstance(engine, VllmPolicy), "the configuration has refused other engines"
        workers = config.student.tensor_parallel
        return Listener(RemoteBoard(self._actor), engine.receiver(), name=name, workers=workers)


def _connect(config: Config, learner: Learner, client: BoardClient, workers: int) -> Sender:
    """Join the explorers' engines to this learner, over the network that Ray uses."""
    assert config.weights_backend is not None
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    link = Link(config.weights_backend, ray.util.get_node_ip_address(), port, workers)
    dtype = config.weights_dtype
    return Sender(link.info(), client, kinds=learner.kinds(dtype), stream=partial(learner.stream, dtype))


def _as_tensor(dtype: str, shape: tuple[int, ...], array: np.ndarray) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch would rather write into it, which nobody does
        return torch.from_numpy(array).view(getattr(torch, dtype)).reshape(shape)
