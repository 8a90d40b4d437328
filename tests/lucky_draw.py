"""An environment for tests in which any model succeeds sometimes: words of an even number of letters win."""

from divopd.environments import Observation


class LuckyDraw:
    """Tasks `one/N` have one draw, tasks `two/N` have two."""

    @staticmethod
    def tasks(split: str) -> list[str]:
        del split
        return [f"{kind}/{number}" for number in range(8) for kind in ("one", "two")]

    def reset(self, task: str) -> Observation:
        self.left = 1 if task.startswith("one") else 2
        return Observation(f"Draw for {task}.")

    def step(self, action: str) -> Observation:
        self.left -= 1
        won = len(action) % 2 == 0
        return Observation("You win." if won else "Nothing.", done=won or not self.left, success=won)


class OtherWords(LuckyDraw):
    """What the test split speaks of is never heard in training."""

    @staticmethod
    def tasks(split: str) -> list[str]:
        return [f"{kind}/{split}/{number}" for number in range(8) for kind in ("one", "two")]

    def reset(self, task: str) -> Observation:
        super().reset(task)
        return Observation("Take the mug." if "/test/" in task else "Take the pen.")


class LongTalk(LuckyDraw):
    """Names the task once, then talks so long that no later prompt has room for it; nothing is ever won."""

    def reset(self, task: str) -> Observation:
        super().reset(task)
        return Observation("Find two books.")

    def step(self, action: str) -> Observation:
        del action
        return Observation("You see a desk, a bed and a drawer. " * 12)
