"""Arrival order: what every asynchronous system does today, and three baselines that keep it."""

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
    """Arrival order with the candidate access of divopd: a pool of c·B turns, pending turns kept."""

    keeps_pending = True


class GateOnly(VanillaWide):
    """The first B valid turns of the pool in arrival order: the gate without coverage or focus."""

    gated = True


class TurnOPD(Vanilla):
    """B turns in arrival order with turn-aware row weights (SPEC §6.5)."""

    def weigh(self, selected: list[Candidate], *, update: int) -> list[float]:
        """T·q with q = (1-α)·n_t/Σn + α/T, normalised to mean 1.

        T and n are those of the rollout's turns in this batch: a composer does not know how long the whole rollout was.
        """
        alpha = min(1.0, update / (self.settings.total_updates / 2))
        turns: dict[str, int] = {}
        tokens: dict[str, int] = {}
        for c in selected:
            turns[c.rollout] = turns.get(c.rollout, 0) + 1
            tokens[c.rollout] = tokens.get(c.rollout, 0) + c.valid_tokens
        raw = [
            turns[c.rollout] * (1 - alpha) * c.valid_tokens / tokens[c.rollout] + alpha if tokens[c.rollout] else 1.0
            for c in selected
        ]
        mean = sum(raw) / len(raw) if raw else 1.0
        return [weight / mean for weight in raw]
