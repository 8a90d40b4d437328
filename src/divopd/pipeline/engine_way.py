"""Weights straight from the learner's GPUs into the explorers' engines (`weights.way`: nccl or ipc).

Explorers do not wait for their rollouts to end: the engine pauses between two tokens, keeps its requests, takes the
version and goes on. A turn in which that happened has the version with which its response began; its log probabilities
are those with which each token was drawn.

Where it fails, because an explorer died or none is there yet, the version goes to the shelf (shelf.py), from which a
restarted explorer takes it; the next version is sent to whoever is there then.
"""

import time
from collections.abc import Callable
from typing import Any, Protocol

from divopd.errors import TransferError
from divopd.learner import Learner
from divopd.pipeline.shelf import ObjectStoreWay
from divopd.pipeline.switchboard import LIMIT_S, POLL_S, Board, BoardClient, Order

FAILURES = (RuntimeError, ValueError, TransferError)  # the first two are of vLLM and of NCCL


class Sending(Protocol):
    """An open link to the engines."""

    def send(self) -> None: ...
    def close(self) -> None: ...


Connect = Callable[[Learner, BoardClient, int], Sending]  # the learner, the client, the workers of all members


class EngineWay:
    """The learner's end."""

    def __init__(
        self, shelf: ObjectStoreWay, board: Board, *, connect: Connect, synced: Callable[[int], bool],
        tells: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._shelf, self._board, self._connect, self._synced, self._tells = shelf, board, connect, synced, tells
        self._members: dict[str, tuple[int, int]] = {}
        self._link: Sending | None = None
        self._client: BoardClient | None = None
        self._sent: tuple[int, Learner] | None = None  # by the link; nobody finds it on the shelf

    def publish(self, version: int, learner: Learner) -> None:
        if self._synced(version) and self._send(version, learner):
            self._sent = version, learner
            self._shelf.keep(version, learner)
        else:
            self._sent = None
            self._shelf.publish(version, learner)

    def look(self) -> None:
        """Whoever was started after the newest version had been sent finds it on the shelf."""
        if self._sent is not None and self._board.members() != self._members:
            (version, learner), self._sent = self._sent, None
            self._shelf.publish(version, learner)
        self._shelf.look()

    def settle(self) -> None:
        self._shelf.settle()

    def _send(self, version: int, learner: Learner) -> bool:
        try:
            members = self._board.members()
            if not members:
                return False
            if members != self._members or self._link is None or self._client is None:
                self._drop()
                self._client = BoardClient(self._board, members)
                workers = sum(count for _, count in members.values())
                self._link, self._members = self._connect(learner, self._client, workers), members
            self._client.version = version
            self._link.send()
        except FAILURES as error:
            if self._client is not None:
                self._client.give_up()
            self._tells(f"version {version} goes by way of Ray's object store: {error}")
            self._drop()
            return False
        return True

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()


class Receiving(Protocol):
    """An engine that takes versions step by step."""

    version: int | None

    def do(self, step: str, given: dict[str, Any]) -> None: ...


class Orders(Protocol):
    """The board, as an explorer sees it."""

    def join(self, name: str, workers: int) -> None: ...
    def next(self, name: str) -> Order | None: ...
    def report(self, name: str, number: int, failure: str | None) -> None: ...


class Listener:
    """An explorer's end: looks between two tokens whether its engine is to do something."""

    def __init__(
        self,
        board: Orders,
        receiver: Receiving,
        *,
        name: str,
        workers: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._board, self._receiver, self._name, self._clock = board, receiver, name, clock
        self._looked = -POLL_S
        self._began: float | None = None  # when the version was last heard of that is on its way
        board.join(name, workers)

    def look(self) -> int | None:
        """Do the step that is asked for; the number of the version that is whole with it.

        Until it is, the engine generates nothing. One whose version will never be whole is thrown away: this raises a
        TransferError, and the explorer is started again.
        """
        if self._began is None and self._clock() - self._looked < POLL_S:
            return None
        self._looked = self._clock()
        order = self._board.next(self._name)
        if order is None:
            if self._began is not None and self._clock() - self._began > LIMIT_S:
                raise TransferError(f"the rest of a version did not come within {LIMIT_S:g} s")
            return None
        failure: str | None = None
        try:
            self._do(order)
        except FAILURES as error:
            failure = str(error)
        self._board.report(self._name, order.number, failure)
        if failure is not None and self._began is not None:
            raise TransferError(f"the engine has half a version ({failure})")
        return self._receiver.version if order.step == "finish" else None

    def _do(self, order: Order) -> None:
        if order.step == "abort":
            if self._began is not None:
                raise TransferError("the learner gave the version up")
            return
        if order.step in ("start", "update"):
            self._began = self._clock()
        self._receiver.do(order.step, order.given)
        if order.step == "finish":
            self._began = None
