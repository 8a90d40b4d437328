"""An environment as a user brings it, in which the embedded teacher knows its way: households, and no expert."""

from divopd.environments import Observation, make_environment, tasks


class OwnHouse:
    """Easy tasks of small homes: look at a thing under a lamp, or bring one somewhere."""

    @staticmethod
    def tasks(split: str) -> list[str]:
        return tasks("alfworld-small", split)[: 40 if split == "train" else 8]

    def __init__(self) -> None:
        self._home = make_environment("alfworld-small")

    def reset(self, task: str) -> Observation:
        return self._home.reset(task)

    def step(self, action: str) -> Observation:
        return self._home.step(action)
