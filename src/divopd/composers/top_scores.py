"""Top-B: the largest disagreements of the pool, whatever rollout they come from."""

from heapq import nsmallest

from divopd.composers.composer import Candidate, Composer, Pick


class TopB(Composer):
    """The B valid turns of largest disagreement in the pool; no limit per rollout."""

    def select(self, pool: list[Candidate], *, update: int) -> list[Pick]:
        del update
        best = nsmallest(self.settings.batch_size, pool, key=lambda c: (-c.disagreement, c.rollout, c.turn))
        return [Pick(candidate, 1) for candidate in best]
