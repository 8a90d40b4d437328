"""Top-B: the largest disagreements of the pool, whatever rollout they come from."""

from heapq import nsmallest

from divopd.composers.composer import Candidate, Composer, Selection


class TopB(Composer):
    """The B valid turns of largest disagreement in the pool; no limit per rollout."""

    def select(self, pool: list[Candidate], *, update: int) -> Selection:
        del update
        best = nsmallest(self.settings.batch_size, pool, key=lambda c: (-c.disagreement, c.rollout, c.turn))
        return Selection(best, [1] * len(best))
