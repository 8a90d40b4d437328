"""Environments for tests that die: for every other task, always, in training, or by a bug. One hangs instead."""

import time
from pathlib import Path

from divopd.environments import Observation
from divopd.errors import EnvironmentFailure


class FragileRoom:
    """Tasks with an odd number break off at the first action, the others end at it.

    Training has one of each: whatever the order, every other rollout breaks off.
    """

    @staticmethod
    def tasks(split: str) -> list[str]:
        return [f"room/{number}" for number in range(2 if split == "train" else 16)]

    def reset(self, task: str) -> Observation:
        self.task = task
        return Observation(f"You are in {task}.")

    def step(self, action: str) -> Observation:
        del action
        if self.breaks():
            raise EnvironmentFailure(f"the roof of {self.task} fell in")
        return Observation("You leave.", done=True, success=True)

    def breaks(self) -> bool:
        return int(self.task.rpartition("/")[2]) % 2 == 1


class FallenRoom(FragileRoom):
    """Every task breaks off."""

    def breaks(self) -> bool:
        return True


class FallenSchool(FragileRoom):
    """Every training task breaks off, and no other."""

    @staticmethod
    def tasks(split: str) -> list[str]:
        return [f"{split}/{number}" for number in range(16)]

    def breaks(self) -> bool:
        return self.task.startswith("train/")


class BuggyRoom(FragileRoom):
    """Has a bug of its own: no failure that a run knows what to do with."""

    def breaks(self) -> bool:
        return 1 / 0 > 1


class StuckRoom(FragileRoom):
    """Does not come back from its first action; then there is a file `stuck` in the working folder."""

    def step(self, action: str) -> Observation:
        Path("stuck").touch()
        time.sleep(3600)
        return super().step(action)


class CrumblingStairs:
    """Three steps up, and an expert who climbs them. The first `crumbles` resets of all of them break off."""

    crumbles = 0

    @staticmethod
    def tasks(split: str) -> list[str]:
        return [f"{split}/{number}" for number in range(2)]

    @staticmethod
    def expert() -> "Climber":
        return Climber()

    def reset(self, task: str) -> Observation:
        del task
        if CrumblingStairs.crumbles > 0:
            CrumblingStairs.crumbles -= 1
            raise EnvironmentFailure("a step crumbled")
        self.height = 0
        return Observation("You are at the foot of the stairs.")

    def step(self, action: str) -> Observation:
        self.height += action == "up"
        return Observation(f"Step {self.height}.", done=self.height == 3, success=self.height == 3)


class Climber:
    def reset(self, observation: Observation) -> None:
        del observation

    def act(self, observation: Observation) -> str:
        del observation
        return "up"

    def took(self, action: str) -> None:
        del action
