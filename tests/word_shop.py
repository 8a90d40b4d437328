"""An environment of one's own that a small pretrained model solves now and then, and that has no expert."""

import random

from divopd.environments import Observation

GOODS = ("apple", "bread", "candle", "drum", "egg", "flute", "grape", "hat", "ink", "jar", "kite", "lemon")
PATIENCE = 3


class WordShop:
    """Name what the customer wants, and no other thing of the shop. Tasks are numbers."""

    @staticmethod
    def tasks(split: str) -> list[str]:
        return [str(n) for n in (range(12) if split == "test" else range(100, 200))]

    def reset(self, task: str) -> Observation:
        source = random.Random(f"shop {task}")
        self.goods = source.sample(GOODS, 4)
        self.wish, self.said = source.choice(self.goods), 0
        return self._seen(f"A customer says: I want to buy the {self.wish}. What do you hand over?")

    def step(self, action: str) -> Observation:
        self.said += 1
        named = [good for good in self.goods if good in action.lower()]
        if named == [self.wish]:
            return self._seen("Thank you!", done=True, success=True, reward=1.0)
        late = self.said == PATIENCE
        if named:
            return self._seen(f"I want the {self.wish} only.", done=late)
        return self._seen(f"I said: the {self.wish}.", done=late, valid=False)

    def _seen(self, text: str, **outcome: bool | float) -> Observation:
        return Observation(text, list(self.goods), **outcome)  # pyright: ignore[reportArgumentType]
