"""A small environment for tests: walk to the box that the first observation names, and open it."""

import random

from divopd.environments import Observation
from divopd.errors import EnvironmentFailure

COLOURS = ("red", "blue", "green", "white")
PATIENCE = 8  # the last action is lost


class CoinHunt:
    """Tasks are numbers. The coin and the boxes' order depend on the number alone."""

    @staticmethod
    def tasks(split: str) -> list[str]:
        return [str(n) for n in (range(24) if split == "test" else range(100, 400))]

    @staticmethod
    def expert() -> "Guide":
        return Guide()

    def reset(self, task: str) -> Observation:
        source = random.Random(f"coin {task}")
        self.boxes = source.sample(COLOURS, 3)
        self.goal = source.choice(self.boxes)
        self.here, self.actions = "", 0
        return self._seen(f"Boxes: {', '.join(self.boxes)}. The coin is in the {self.goal} box.")

    def step(self, action: str) -> Observation:
        verb, _, colour = action.partition(" ")
        self.actions += 1
        if self.actions == PATIENCE:
            return self._seen("It is too late.", done=True)
        if action not in self._allowed():
            return self._seen("Nothing happens.", valid=False)
        if verb == "go":
            self.here = colour
            return self._seen(f"You are at the {colour} box.")
        found = colour == self.goal
        return self._seen("A coin!" if found else "It is empty.", done=found, success=found, reward=float(found))

    def _allowed(self) -> list[str]:
        return [*(f"go {box}" for box in self.boxes if box != self.here), *([f"open {self.here}"] if self.here else [])]

    def _seen(self, text: str, **outcome: bool | float) -> Observation:
        return Observation(text, self._allowed(), **outcome)  # pyright: ignore[reportArgumentType]


class ShakyHunt(CoinHunt):
    """Dies at every seventh action; the next reset starts it anew."""

    steps, dies_every = 0, 7

    def step(self, action: str) -> Observation:
        self.steps += 1
        if self.steps % self.dies_every == 0:
            raise EnvironmentFailure("the ground gave way")
        return super().step(action)


class FallenHunt(ShakyHunt):
    """Dies at every action."""

    dies_every = 1


class Guide:
    """The expert: reads where the coin is, remembers where it stands."""

    def reset(self, observation: Observation) -> None:
        self.goal = observation.text.split(" box.")[0].split(" ")[-1]
        self.here = ""
        self.last = ""

    def took(self, action: str) -> None:
        self.last = action

    def act(self, observation: Observation) -> str:
        if observation.text.startswith("You are at"):
            self.here = self.last.split(" ")[1]
        self.last = f"open {self.goal}" if self.here == self.goal else f"go {self.goal}"
        return self.last
