"""Work that is done beside its owner, in a thread: one piece after another, and never more of them than there is room.

The owner does not wait for it. What goes wrong there is raised at the owner's next call.
"""

from collections.abc import Callable
from threading import Condition, Thread
from typing import Generic, TypeVar

Piece = TypeVar("Piece")


class Beside(Generic[Piece]):
    """Does `work` with every piece that it is given, in that order.

    A piece that may be skipped is dropped when a newer one comes before its turn. Of those that may not, `room` may
    wait at once: whoever brings one more waits, or its memory would have no bound.
    """

    def __init__(self, work: Callable[[Piece], object], *, room: int = 2) -> None:
        self._work, self._room = work, room
        self._waiting: list[tuple[Piece, bool]] = []  # each with whether it may be skipped
        self._busy = False
        self._failure: BaseException | None = None
        self._changed = Condition()
        self._thread: Thread | None = None

    @property
    def idle(self) -> bool:
        """Whether all that was given is done."""
        with self._changed:
            return not self._busy and not self._waiting

    def put(self, piece: Piece, *, may_be_skipped: bool) -> None:
        """Have a piece done. It raises what went wrong with an earlier one."""
        with self._changed:
            self._waiting = [one for one in self._waiting if not one[1]]
            self._changed.wait_for(lambda: self._failure is not None or len(self._waiting) < self._room)
            self._raise_failure()
            self._waiting.append((piece, may_be_skipped))
            self._changed.notify_all()
            if self._thread is None:
                self._thread = Thread(target=self._go_on, name="beside", daemon=True)
                self._thread.start()

    def settle(self) -> None:
        """Wait until all that was given is done. It raises what went wrong."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or not (self._busy or self._waiting))
            self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _go_on(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting) and self._failure is None)
                piece, _ = self._waiting.pop(0)
                self._busy = True
            failure = None
            try:
                self._work(piece)
            except BaseException as error:  # it is raised in the owner's thread
                failure = error
            del piece  # it may be as large as a model
            with self._changed:
                self._busy, self._failure = False, failure
                self._changed.notify_all()
