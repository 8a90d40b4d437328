"""Rollouts that broke off because their environment died or hung (specification §8).

Each costs itself: its turns are not trained, the journal keeps its reason, and a resume does not play it again. Too
many of them end the run.
"""

from collections import deque
from typing import Any

from divopd.config import Config
from divopd.errors import EnvironmentFailure
from divopd.explorer import Played
from divopd.store.faces import Notes

BROKE = "rollout_broke"  # an event of the store
WINDOW = 50  # rollouts: of so many that ended last, `environment.max_broken` may have broken off
FIRST = 4  # if at least so many began and all of them broke off, the environment has never worked


class BrokenRollouts:
    """Counts how rollouts end. The odd failure costs its rollout; too many mean that the environment does not work."""

    def __init__(self, config: Config) -> None:
        self._name, self._most = config.environment.name, config.environment.max_broken
        self._first = max(FIRST, config.explorer.rollouts_in_flight)
        self._last: deque[bool] = deque(maxlen=WINDOW)

    def count(self, played: Played) -> None:
        """A rollout has ended. An EnvironmentFailure ends the run: more have broken off than it bears."""
        self._last.append(played.failure is not None)
        broken, ended = sum(self._last), len(self._last)
        if played.failure is None or not (broken > self._most or broken == ended >= self._first):
            return
        raise EnvironmentFailure(
            f"{broken} of the last {ended} rollouts broke off, the last one of task {played.start.task}: "
            f"{played.failure}; see that `divopd play {self._name}` works, then go on with --resume "
            "(environment.max_broken says how many may break off)"
        )


def note_broken(store: Notes, played: Played, *, rollout: str, **more: Any) -> None:
    """Journal a rollout that broke off, with its reason."""
    event = {"rollout": rollout, "task": played.start.task, "turns": len(played.turns), "reason": played.failure}
    store.note(BROKE, event | more)


def sentence_of(event: dict[str, Any], *, count: int) -> str | None:
    """What is said of the `count`-th broken rollout: ever more seldom, or there would be nothing else to read."""
    if count & (count - 1):  # no power of two
        return None
    so_far = "a rollout broke off" if count == 1 else f"{count} rollouts broke off so far, the last one"
    return f"{so_far} ({event['rollout']}, task {event['task']}): {event['reason']}"
