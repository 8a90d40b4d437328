"""ScienceWorld on the real package: 30 types of elementary science tasks in a simulated house.

Lean: an action costs what the simulator needs for it and no more; the valid actions (about 500, slow to list) are
fetched only when asked for. Needs the extra `scienceworld` and java.
Observations are not equal to the bit between runs (thermometers, generated gold paths): never hash them.
"""

import json
import weakref
from collections import defaultdict
from contextlib import suppress
from typing import Literal

from divopd.environments.environment import Observation
from divopd.environments.scienceworld.jvm import Simulator, check_installed
from divopd.environments.scienceworld.split import parse_task, tasks
from divopd.errors import EnvironmentFailure

__all__ = ["ScienceWorld", "tasks"]

MAX_ACTION_CHARS = 1_000  # the longest gold action has about 150; the parser's time grows with the length
NOT_UNDERSTOOD = "No known action matches that input."
# Simulators whose environments are gone. A JVM is twice as fast once it is warm, so another environment of this
# process with the same time limit takes one of them; they end with the process.
_left: defaultdict[float, list[Simulator]] = defaultdict(list)


class ScienceWorld:
    """One simulator in a JVM of its own, from the first reset on, and another one after it died or hung.

    `simplifications` are those of the package (`easy`: open doors, teleporting, self-watering pots). With
    `actions="listed"` every observation carries the valid actions, several times slower. Success is a score of
    100; a score below 0 (a wrong focus) ends the rollout as failed. The rewards of a rollout sum up to its final score
    over 100. Not safe for several threads at once.
    """

    def __init__(
        self,
        *,
        simplifications: str = "easy",
        actions: Literal["listed", "unlisted"] = "unlisted",
        timeout_s: float = 120.0,
    ) -> None:
        check_installed()  # what is missing is the user's to install: said here, not in the first rollout
        self.simplifications = simplifications
        self.actions = actions
        self.timeout_s = timeout_s
        self._simulator: Simulator | None = None
        self._task: tuple[str, int] | None = None
        self._score = 0.0
        self._taken = 0
        self._gold: dict[tuple[str, int], list[str]] = {}

    def reset(self, task: str) -> Observation:
        """Start a task such as `boil/3`; the text is the task's description and a look around."""
        self._task = parse_task(task)
        self._load("plain")
        self._score, self._taken = 0.0, 0
        simulator = self._running()
        text = f"{simulator.call('getTaskDescription')}\n\n{simulator.call('freeActionLook')}".strip()
        return Observation(text, self._listed())

    def step(self, action: str) -> Observation:
        """Act. An action that the simulator does not understand is invalid and changes nothing."""
        if len(action) > MAX_ACTION_CHARS:
            return Observation(NOT_UNDERSTOOD, self._listed(), valid=False)
        simulator = self._running()
        self._taken += 1
        # half a surrogate pair cannot be sent over the wire
        text, score, completed = simulator.act(action.encode("utf-8", "replace").decode("utf-8"))
        gained, self._score = score - self._score, score
        done = score < 0 or completed  # a wrong focus gives -1 while the simulator does not call the task completed
        text = text.strip() or NOT_UNDERSTOOD
        valid = text != NOT_UNDERSTOOD
        success = done and round(100 * score) == 100
        return Observation(text, self._listed(), done=done, success=success, reward=gained, valid=valid)

    def valid_actions(self) -> list[str]:
        """Every action that the simulator would understand now, sorted; 60 ms or more."""
        found = json.loads(self._running().call("getValidActionObjectCombinationsJSON"))["validActions"]
        return sorted({entry["action"] for entry in found})

    def gold_path(self) -> list[str]:
        """The package's own solution of the task that was just reset: hidden knowledge, for experts only.

        Takes 0.3 to 10 s (mendelian-* much longer) the first time for a task. The task is as after its reset.
        """
        if self._task is None or self._taken:
            raise EnvironmentFailure(
                "ScienceWorld: a gold path starts where a task starts; ask for it right after reset"
            )
        if self._task not in self._gold:
            self._load("with gold path")
            self._gold[self._task] = self._running().call_list("getGoldActionSequence")
            self._load("plain")
        return list(self._gold[self._task])

    def close(self) -> None:
        """End the JVM; a later reset starts another."""
        if self._simulator is not None:
            self._simulator.stop()
            self._simulator = None

    def _load(self, how: Literal["plain", "with gold path"]) -> None:
        assert self._task is not None
        if self._simulator is None or self._simulator.process.poll() is not None:
            self.close()
            self._simulator = _warm(self.timeout_s) or Simulator(timeout_s=self.timeout_s)
            weakref.finalize(self, _left[self.timeout_s].append, self._simulator)
        name, variation = self._task
        self._simulator.load(name, variation, self.simplifications, gold_path=how == "with gold path")

    def _running(self) -> Simulator:
        if self._simulator is None:
            raise EnvironmentFailure("ScienceWorld: no task is running; reset the environment first")
        return self._simulator

    def _listed(self) -> list[str] | None:
        return self.valid_actions() if self.actions == "listed" else None


def _warm(timeout_s: float) -> Simulator | None:
    """A simulator that another environment left, if there is one with this time limit that still runs."""
    with suppress(IndexError):
        while True:
            left = _left[timeout_s].pop()
            if left.process.poll() is None:
                return left
    return None
