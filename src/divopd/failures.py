"""How many failures a run bears: the odd one costs what failed, too many mean that something does not work at all."""

from collections import deque

WINDOW = 50  # of so many that ended last, half may have failed, or as many as a setting says
FIRST = 4  # if at least so many ended and all of them failed, it has never worked


class Failures:
    """Counts how things end. More than `most` failures among the last 50 are too many; so is nothing else from the
    start, once `first` have ended."""

    def __init__(self, *, most: int = WINDOW // 2, first: int = FIRST) -> None:
        self._most, self._first = most, first
        self._last: deque[bool] = deque(maxlen=WINDOW)

    @property
    def failed(self) -> int:
        """Of those that ended last."""
        return sum(self._last)

    @property
    def ended(self) -> int:
        return len(self._last)

    def count(self, *, failed: bool) -> bool:
        """One more has ended. True: it failed, and that is one too many."""
        self._last.append(failed)
        return failed and (self.failed > self._most or self.failed == self.ended >= self._first)


def is_told(count: int) -> bool:
    """Whether the `count`-th failure is told: ever more seldom, or there would be nothing else to read."""
    return not count & (count - 1)  # a power of two
