"""Rollouts that broke off because their environment died or hung (specification §6.1).

Each costs itself: its turns are not trained, the journal keeps its reason, and a resume does not play it again. Too
many of them end the run.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, cast

from divopd.config import Config
from divopd.environments import Environment, Observation
from divopd.environments.environment import Call, Returned, submit
from divopd.errors import EnvironmentFailure
from divopd.explorer import Played, Start
from divopd.failures import FIRST, Failures, is_told
from divopd.store.faces import Notes

BROKE = "rollout_broke"  # an event of the store
Events = Mapping[int, Mapping[str, Any]]  # of rollouts that broke off, by number


class BrokenRollouts:
    """Counts how rollouts end. The odd failure costs its rollout; too many mean that the environment does not work."""

    def __init__(self, config: Config) -> None:
        self._name = config.environment.name
        self._failures = Failures(
            most=config.environment.max_broken, first=max(FIRST, config.explorer.rollouts_in_flight)
        )

    def count(self, played: Played) -> None:
        """A rollout has ended. An EnvironmentFailure ends the run: more have broken off than it bears."""
        if self._failures.count(failed=played.failure is not None):
            raise EnvironmentFailure(
                f"{self._failures.failed} of the last {self._failures.ended} rollouts broke off, the last one of task "
                f"{played.start.task}: {played.failure}; see that `divopd play {self._name}` works, then go on with "
                "--resume (environment.max_broken says how many may break off)"
            )


def note_broken(store: Notes, played: Played) -> dict[str, Any]:
    """Journal a rollout that broke off, with its reason and what it saw before; returns the event."""
    start, seen = played.start, [played.first, *(turn.seen for turn in played.turns if turn.action is not None)]
    event = {
        "rollout": f"r{start.number:06d}",
        "number": start.number,
        "task": start.task,
        "reason": played.failure,
        "seen": [asdict(one) for one in seen[:-1]],  # the last is the failure itself
    }
    store.note(BROKE, event)
    return event


def sentence_of(event: Mapping[str, Any], *, count: int) -> str | None:
    """What is said of the `count`-th broken rollout, if anything is."""
    if not is_told(count):
        return None
    so_far = "a rollout broke off" if count == 1 else f"{count} rollouts broke off so far, the last one"
    return f"{so_far} ({event['rollout']}, task {event['task']}): {event['reason']}"


# ── after a resume of the virtual clock ───────────────────────────────────────────────────────────────────────────


class RetellingEnvironment:
    """Tells the rollouts that broke off again from their events, word by word, and plays all others.

    So they keep the company of the rollouts beside them, which would be rounded differently without them. `starts` are
    those that are still to be reset, by whichever environment.
    """

    def __init__(self, environment: Environment, starts: Iterator[Start], broken: Events) -> None:
        self._environment, self._starts, self._broken = environment, starts, broken
        self._reason, self._left = "", deque[Observation]()
        self._retells = False

    def reset(self, task: str) -> Observation:
        return cast(Observation, self.submit(Call("reset", task))())

    def step(self, action: str) -> Observation:
        return cast(Observation, self.submit(Call("step", action))())

    def valid_actions(self) -> list[str] | None:
        return cast("list[str] | None", self.submit(Call("valid_actions"))())

    def submit(self, call: Call) -> Callable[[], Returned]:
        """What is played may work elsewhere meanwhile; what is told again is there when it is wanted."""
        if call.method == "reset":
            self._take_next(call.argument)
        if not self._retells:
            return submit(self._environment, call)
        return self._next if call.method != "valid_actions" else lambda: None

    def _take_next(self, task: str | None) -> None:
        start = next(self._starts)
        assert start.task == task, "rollouts begin in the order of their starts"
        event = self._broken.get(start.number)
        self._retells = event is not None
        if event is not None:
            self._reason, self._left = event["reason"], deque(Observation(**seen) for seen in event["seen"])

    def _next(self) -> Observation:
        if not self._left:
            raise EnvironmentFailure(self._reason)
        return self._left.popleft()


def retelling(environments: Sequence[Environment], starts: Sequence[Start], broken: Events) -> list[Environment]:
    """The environments, which tell those of the starts again that are among the `broken`."""
    if not any(start.number in broken for start in starts):
        return list(environments)
    order = iter(starts)
    return [RetellingEnvironment(environment, order, broken) for environment in environments]
