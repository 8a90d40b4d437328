"""Arrival order: what every asynchronous system does today, and two controls that keep it."""

from divopd.composers.composer import Candidate, Composer, Selection


class Vanilla(Composer):
    """B turns in arrival order; invalid turns take slots as dead rows, nothing waits."""

    gated = False
    keeps_pending = False

    def select(self, pool: list[Candidate], *, update: int) -> Selection:
        del update
        first = pool[: self.settings.batch_size]
        return Selection(first, [1] * len(first))


class VanillaWide(Vanilla):
    """Arrival order with the candidate access of divopd: a pool of c·B turns, pending turns kept.

    If W ≥ δ - 1 its batches are those of vanilla: the oldest turns are the same in any pool (specification §4.3).
    """

    keeps_pending = True


class GateOnly(VanillaWide):
    """The first B valid turns of the pool in arrival order: the gate without coverage or focus."""

    gated = True
