"""Environments that write down all that they are asked, for tests of what the parts of a run tell one another.

A config names one by its file: `tests/recording_rooms.py:Room`. The folder of the run stands in the variable
RECORDED_RUN; every reset and every step is a line of JSON in RUN.asked.jsonl beside it, whichever process asks. Tasks
are `train-0` … `train-6` and `test-0` … `test-4`, so a line also tells training from evaluation.
"""

import itertools
import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from divopd.environments import Observation

RUN, DEADLY_RESET = "RECORDED_RUN", "DEADLY_RESET"
TASKS = {"train": 7, "test": 5}
PATIENCE_S = 40.0  # for a version that a room waits for; then its rollout goes on with what there is
_rooms = itertools.count()


def record_of(run: Path) -> Path:
    """The file to which the rooms of a run write."""
    return run.with_name(f"{run.name}.asked.jsonl")


def published(run: Path) -> int:
    """The newest policy version in the run's folder; -1 before the first."""
    return max((int(folder.name) for folder in (run / "weights").glob("[0-9]*")), default=-1)


def recorded(run: Path) -> list[dict[str, Any]]:
    """All that the rooms of a run were asked, in order."""
    return [json.loads(line) for line in record_of(run).read_text(encoding="utf-8").splitlines()]


def asked_in_training(run: Path, event: str) -> int:
    """How many resets, or steps, the rooms of a run were asked for with tasks of training."""
    return sum(line["event"] == event and line["task"].startswith("train-") for line in recorded(run))


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


class SlowRoom(StuckRoom):
    """The first action in training takes four seconds, and no other."""

    def step(self, action: str) -> Observation:
        first = self.task.startswith("train-") and not asked_in_training(Path(os.environ[RUN]), "step")
        seen = super().step(action)
        time.sleep(4 * first)
        return seen


class OneTaskRoom(StuckRoom):
    """Has one task to train on, whatever the seed."""

    @staticmethod
    def tasks(split: str) -> list[str]:
        return Room.tasks(split)[:1] if split == "train" else Room.tasks(split)


class JammedRoom(Room):
    """The first two actions are not understood; each one after them changes what is allowed."""

    def step(self, action: str) -> Observation:
        seen = super().step(action)
        return replace(seen, allowed_actions=[f"door {self.turn}"], valid=self.turn > 2)


class WinnableRoom(Room):
    """A rollout has succeeded as soon as an action begins with `win`."""

    def step(self, action: str) -> Observation:
        self.turn += 1
        return self.tell("step", action, done=action.startswith("win"))


class GuidedRoom(Room):
    """A rollout has succeeded when it heard `help` four times, which its expert always says; not so in `train-6`."""

    WAY = 4

    @staticmethod
    def expert() -> "Guide":
        return Guide()

    def reset(self, task: str) -> Observation:
        self.helped = 0
        return super().reset(task)

    def step(self, action: str) -> Observation:
        self.turn += 1
        self.helped += action == "help"
        return self.tell("step", action, done=self.helped == self.WAY and self.task != "train-6")


class Guide:
    """The expert of a GuidedRoom."""

    def reset(self, observation: Observation) -> None: ...

    def act(self, observation: Observation) -> str:
        return "help"

    def took(self, action: str) -> None: ...


class ChangingRoom(StuckRoom):
    """A rollout in training succeeds with its second action, until version 3 is published; from then on none ends."""

    def reset(self, task: str) -> Observation:
        self.ends = task.startswith("train-") and published(Path(os.environ[RUN])) < 3
        return super().reset(task)

    def step(self, action: str) -> Observation:
        self.turn += 1
        return self.tell("step", action, done=self.ends and self.turn == 2)


class SpanningRoom(ChangingRoom):
    """As ChangingRoom, for the live clock: a rollout goes on only when there are newer weights than at its reset.

    It waits before its first turn, and only if the rollouts before it hold a whole batch of `BATCH` turns that no
    update has taken yet: then the learner can make the next version without it.
    """

    BATCH = 4

    def reset(self, task: str) -> Observation:
        seen = super().reset(task)
        run = Path(os.environ[RUN])
        newest, limit = published(run), time.monotonic() + PATIENCE_S
        if self.ends and newest >= 0 and asked_in_training(run, "step") >= self.BATCH * (newest + 1):
            while published(run) <= newest and time.monotonic() < limit:
                time.sleep(0.05)
        return seen


class TurningRoom(Room):
    """For the live clock: in the middle of a training rollout it waits until there are newer weights than at its reset.

    Only if the rollouts before it hold a whole batch that no update has taken yet: each has HORIZON turns, which are a
    batch, and one is in flight at a time.
    """

    HORIZON = 4

    def step(self, action: str) -> Observation:
        seen = super().step(action)
        run = Path(os.environ[RUN])
        newest, limit = published(run), time.monotonic() + PATIENCE_S
        ended = asked_in_training(run, "step") // self.HORIZON
        if self.task.startswith("train-") and self.turn == 1 and ended > newest:
            while published(run) <= newest and time.monotonic() < limit:
                time.sleep(0.05)
        return seen


class DeadlyRoom(Room):
    """The process that plays here is killed at reset number DEADLY_RESET of the run's training, if that is set."""

    def reset(self, task: str) -> Observation:
        seen = super().reset(task)
        if asked_in_training(Path(os.environ[RUN]), "reset") == int(os.environ.get(DEADLY_RESET, "0")):
            os.kill(os.getpid(), signal.SIGKILL)
        return seen
