"""An environment of your own: a parcel is brought to its floor. Replace the game, keep the methods.

divopd play FILE.py:Skeleton --policy expert
divopd envs --tasks FILE.py:Skeleton --split test
"""

from divopd.environments import Observation

FLOORS = range(1, 10)


class Skeleton:
    """One rollout at a time. divopd makes several of these and plays them side by side."""

    @staticmethod
    def tasks(split: str) -> list[str]:
        """The tasks of `train` and of `test`, always in the same order. A task is a name; reset() gets it."""
        names = [f"{start}-to-{goal}" for start in FLOORS for goal in FLOORS if start != goal]
        return [name for place, name in enumerate(names) if (place % 3 == 0) == (split == "test")]

    @staticmethod
    def kind(task: str) -> str:
        """Optional: the kind of a task, for tables of results."""
        start, _, goal = task.partition("-to-")
        return "near" if abs(int(start) - int(goal)) <= 3 else "far"

    @staticmethod
    def expert() -> "Expert":
        """Optional: who knows what to do. `divopd sft` makes a teacher of it; without it, bring a teacher."""
        return Expert()

    def reset(self, task: str) -> Observation:
        """A rollout begins. The first text must tell the agent what to do."""
        start, _, goal = task.partition("-to-")
        self.floor, self.goal = int(start), int(goal)
        return self._observe("You bring a parcel to its floor.")

    def step(self, action: str) -> Observation:
        """The agent acted. An action that is not understood changes nothing and has `valid=False`."""
        if action == "deliver":
            right = self.floor == self.goal
            text = "Delivered." if right else "Nobody here wants it."
            return Observation(text, done=True, success=right, reward=float(right))
        moved = {"up": 1, "down": -1}.get(action)
        if moved is None or self.floor + moved not in FLOORS:
            return self._observe("That is not possible.", valid=False)
        self.floor += moved
        return self._observe(f"You go {action}.")

    def _observe(self, text: str, *, valid: bool = True) -> Observation:
        """What the agent reads, and the actions that make sense now (None if they cannot be listed)."""
        where = "here" if self.floor == self.goal else "above" if self.floor < self.goal else "below"
        return Observation(f"{text} Floor {self.floor}; it goes {where}.", ["up", "down", "deliver"], valid=valid)


class Expert:
    """Acts on what the agent has read, at any state, so that a model can learn it."""

    def reset(self, observation: Observation) -> None:
        """A rollout begins; there is nothing to remember from the one before."""

    def act(self, observation: Observation) -> str:
        where = observation.text.rstrip(".").rpartition(" ")[2]
        return {"here": "deliver", "above": "up", "below": "down"}[where]

    def took(self, action: str) -> None:
        """Another action was taken than `act` proposed; the next observation says all."""
