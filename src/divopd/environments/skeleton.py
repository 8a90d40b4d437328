"""An environment of your own: the agent guesses a number. Replace the game, keep the methods.

divopd play FILE.py:Skeleton --policy expert
divopd envs --tasks FILE.py:Skeleton --split test
"""

import re

from divopd.environments import Observation


class Skeleton:
    """One rollout at a time. divopd makes several of these and plays them side by side."""

    @staticmethod
    def tasks(split: str) -> list[str]:
        """The tasks of `train` and of `test`, always in the same order. A task is a name; reset() gets it."""
        names = [f"{number}-of-{largest}" for largest in range(4, 17) for number in range(1, largest + 1)]
        return [name for place, name in enumerate(names) if (place % 5 == 0) == (split == "test")]

    @staticmethod
    def kind(task: str) -> str:
        """Optional: the kind of a task, for tables of results."""
        return "short" if int(task.rpartition("-")[2]) < 10 else "long"

    @staticmethod
    def expert() -> "Expert":
        """Optional: who knows what to do. `divopd sft` makes a teacher of it; without it, bring a teacher."""
        return Expert()

    def reset(self, task: str) -> Observation:
        """A rollout begins. The first text must tell the agent what to do."""
        number, _, largest = task.partition("-of-")
        self.number, self.low, self.high = int(number), 1, int(largest)
        return self._observe("Guess my number.")

    def step(self, action: str) -> Observation:
        """The agent acted. An action that is not understood changes nothing and has `valid=False`."""
        said = re.fullmatch(r"guess (\d+)", action)
        if said is None or not self.low <= int(said[1]) <= self.high:
            return self._observe("That is no guess.", valid=False)
        guess = int(said[1])
        if guess == self.number:
            return Observation("You have found it.", done=True, success=True, reward=1.0)
        self.low, self.high = (guess + 1, self.high) if guess < self.number else (self.low, guess - 1)
        return self._observe("It is larger." if guess < self.number else "It is smaller.")

    def _observe(self, text: str, *, valid: bool = True) -> Observation:
        """What the agent reads, and the actions that make sense now (None if they cannot be listed)."""
        allowed = [f"guess {number}" for number in range(self.low, self.high + 1)]
        return Observation(f"{text} It is from {self.low} to {self.high}.", allowed, valid=valid)


class Expert:
    """Acts on what the agent has read, at any state, so that a model can learn it."""

    def reset(self, observation: Observation) -> None:
        """A rollout begins; there is nothing to remember from the one before."""

    def act(self, observation: Observation) -> str:
        low, high = map(int, re.findall(r"\d+", observation.text))
        return f"guess {(low + high) // 2}"

    def took(self, action: str) -> None:
        """Another action was taken than `act` proposed; the next observation says all."""
