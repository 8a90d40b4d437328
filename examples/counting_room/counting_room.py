"""An environment in thirty lines: ten rooms above each other, and a lamp to switch on in one of them."""

from divopd.environments import Observation


class CountingRoom:
    """A task such as `7-3` starts in room 7 and wants the lamp of room 3."""

    @staticmethod
    def tasks(split: str) -> list[str]:
        pairs = [f"{start}-{goal}" for start in range(10) for goal in range(10) if start != goal]
        return [pair for number, pair in enumerate(pairs) if (number % 3 == 0) == (split == "test")]

    @staticmethod
    def kind(task: str) -> str:
        return "near" if abs(int(task[0]) - int(task[2])) <= 3 else "far"

    @staticmethod
    def expert() -> "Walker":
        return Walker()

    def reset(self, task: str) -> Observation:
        self.room, self.goal = (int(number) for number in task.split("-"))
        return self._observe()

    def step(self, action: str) -> Observation:
        if action == "switch":
            done = self.room == self.goal
            return Observation("Light!" if done else "Wrong room.", done=True, success=done, reward=float(done))
        moved = {"up": 1, "down": -1}.get(action)
        if moved is None or not 0 <= self.room + moved < 10:
            return self._observe(valid=False)
        self.room += moved
        return self._observe()

    def _observe(self, *, valid: bool = True) -> Observation:
        where = "here" if self.room == self.goal else "above" if self.room < self.goal else "below"
        return Observation(f"Room {self.room}. The lamp is {where}.", ["up", "down", "switch"], valid=valid)


class Walker:
    """The expert: it acts on what it has read, at any state, so that a student can imitate it."""

    def reset(self, observation: Observation) -> None:
        """A rollout begins; there is nothing to remember from the one before."""

    def act(self, observation: Observation) -> str:
        where = observation.text.rstrip(".").rpartition(" ")[2]
        return {"here": "switch", "above": "up", "below": "down"}[where]

    def took(self, action: str) -> None:
        """Another action was taken than `act` proposed; the next observation says all."""
