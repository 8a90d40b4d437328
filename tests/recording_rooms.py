"""Environments that write down all that they are asked, for tests of what the parts of a run tell one another.

A config names one by its file: `tests/recording_rooms.py:Room`. The folder of the run stands in the variable
RECORDED_RUN; every reset and every step is a line of JSON in RUN.asked.jsonl beside it, whichever process asks. Tasks
are `train-0` … `train-6` and `test-0` … `test-4`, so a line also tells training from evaluation.
"""

import itertools
import json
import os
import time
from pathlib import Path

from divopd.environments import Observation

RUN = "RECORDED_RUN"
TASKS = {"train": 7, "test": 5}
PATIENCE_S = 120.0  # for a version that a room waits for
_rooms = itertools.count()


def record_of(run: Path) -> Path:
    """The file to which the rooms of a run write."""
    return run.with_name(f"{run.name}.asked.jsonl")


def published(run: Path) -> int:
    """The newest policy version in the run's folder; -1 before the first."""
    return max((int(folder.name) for folder in (run / "weights").glob("[0-9]*")), default=-1)


def wait_for_version(version: int) -> None:
    """Wait until the learner of the run has published this policy version."""
    run, limit = Path(os.environ[RUN]), time.monotonic() + PATIENCE_S
    while published(run) < version and time.monotonic() < limit:
        time.sleep(0.05)


class Room:
    """Nothing ever happens here: a rollout ends when whoever plays it ends it. Every action is understood."""

    valid = True

    def __init__(self) -> None:
        self.room, self.resets = next(_rooms), 0

    @staticmethod
    def tasks(split: str) -> list[str]:
        return [f"{split}-{number}" for number in range(TASKS[split])]

    @staticmethod
    def kind(task: str) -> str:
        return task.partition("-")[0]

    def reset(self, task: str) -> Observation:
        self.task, self.turn = task, 0
        self.resets += 1
        return self.tell("reset", "")

    def step(self, action: str) -> Observation:
        self.turn += 1
        return self.tell("step", action)

    def tell(self, event: str, action: str, *, done: bool = False) -> Observation:
        """Record what was asked, and answer; a rollout that is done has succeeded."""
        run = Path(os.environ[RUN])
        line = {
            "event": event,
            "rollout": f"{os.getpid()}/{self.room}/{self.resets}",
            "task": self.task,
            "turn": self.turn,
            "action": action,
            "text": f"{self.task} turn {self.turn}",
            "published": published(run),
        }
        with record_of(run).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        return Observation(
            str(line["text"]),
            ["left", "right"],
            done=done,
            success=done,
            reward=float(done),
            valid=self.valid or event == "reset",
        )


class StuckRoom(Room):
    """No action is understood, so a student makes no progress from its first turn on."""

    valid = False


class WinnableRoom(Room):
    """A rollout has succeeded as soon as an action begins with `win`."""

    def step(self, action: str) -> Observation:
        self.turn += 1
        return self.tell("step", action, done=action.startswith("win"))
