"""How a learner reaches the engines of its explorers: orders that each of them finds, does and reports.

An actor holds the board (on_ray_weights.py); explorers look at it between two tokens. Nothing here knows Ray or vLLM.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any, Protocol

from divopd.errors import TransferError

LIMIT_S = 120.0  # for all engines to do a step: longer means that one of them is gone
POLL_S = 0.02


@dataclass(frozen=True)
class Order:
    """A step that an explorer's engine is to do."""

    number: int
    step: str
    given: dict[str, Any]


class Switchboard:
    """Orders by member, and what became of them."""

    def __init__(self) -> None:
        self._lock = Lock()  # several threads of an actor
        self._members: dict[str, tuple[int, int]] = {}  # how often each has joined, and its workers
        self._open: dict[str, Order] = {}
        self._failed: dict[int, str] = {}
        self._number = 0

    def join(self, name: str, workers: int) -> None:
        """A member is there, for the first time or anew; what it was to do before it cannot do any more."""
        with self._lock:
            times = self._members.get(name, (0, 0))[0]
            self._members[name] = times + 1, workers
            if (order := self._open.pop(name, None)) is not None:
                self._failed[order.number] = f"{name} was started again"

    def members(self) -> dict[str, tuple[int, int]]:
        """How often each has joined, and how many workers it has."""
        with self._lock:
            return dict(self._members)

    def order(self, step: str, given: dict[str, dict[str, Any]]) -> int:
        """Give each of these members its order; orders that nobody waits for any more are dropped."""
        with self._lock:
            self._number += 1
            self._failed.clear()
            self._open = {name: Order(self._number, step, what) for name, what in given.items()}
            return self._number

    def next(self, name: str) -> Order | None:
        """What a member is to do."""
        with self._lock:
            return self._open.get(name)

    def report(self, name: str, number: int, failure: str | None) -> None:
        """A member has done its order, or could not."""
        with self._lock:
            order = self._open.get(name)
            if order is None or order.number != number:
                return
            del self._open[name]
            if failure is not None:
                self._failed[number] = f"{name}: {failure}"

    def state(self, number: int) -> tuple[list[str], str | None]:
        """Who has not reported yet, and what went wrong."""
        with self._lock:
            return [name for name, order in self._open.items() if order.number == number], self._failed.get(number)


class Board(Protocol):
    """A switchboard, here or elsewhere."""

    def members(self) -> dict[str, tuple[int, int]]: ...
    def order(self, step: str, given: dict[str, dict[str, Any]]) -> int: ...
    def state(self, number: int) -> tuple[list[str], str | None]: ...


class BoardClient:
    """What vLLM's trainer end takes for a client: each call goes to all members, and returns when all have done it."""

    def __init__(
        self,
        board: Board,
        members: dict[str, tuple[int, int]],
        *,
        limit_s: float = LIMIT_S,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._board, self._members, self._limit_s, self._sleep = board, members, limit_s, sleep
        self.version = -1  # that is sent next

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Engines of their own, not replicas of one: each has its place in the group after those before it."""
        given, before = {}, 0
        for name, (_, workers) in self._members.items():
            own = {"rank_offset": init_info["rank_offset"] + before} if "rank_offset" in init_info else {}
            given[name] = init_info | own
            before += workers
        self._all("begin", given)

    def start_weight_update(self) -> None:
        self._all("start", {name: {} for name in self._members})

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self._all("update", dict.fromkeys(self._members, update_info))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        del weight_version  # vLLM's trainer end does not say it
        self._all("finish", {name: {"version": self.version} for name in self._members})

    def give_up(self) -> None:
        """Tell all members that the version will never be whole; nobody waits for them."""
        self._board.order("abort", {name: {} for name in self._members})

    def _all(self, step: str, given: dict[str, dict[str, Any]]) -> None:
        number, waited = self._board.order(step, given), 0.0
        while True:
            missing, failure = self._board.state(number)
            if failure is not None:
                raise TransferError(f"weights could not be sent to the explorers' engines ({step}): {failure}")
            if not missing:
                return
            if waited > self._limit_s:
                raise TransferError(
                    f"weights could not be sent to the explorers' engines ({step}): nothing was heard of "
                    f"{', '.join(missing)} for {waited:.0f} s"
                )
            self._sleep(POLL_S)
            waited += POLL_S
