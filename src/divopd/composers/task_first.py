"""DivOPD-focus: the paper's earlier, task-grouped composer, kept as a reference (specification §4.3)."""

from itertools import zip_longest
from random import Random

from divopd.composers.composer import Candidate, Composer, Selection

TURNS_PER_TASK = 3  # first pass
TOKEN_SHARE_PER_TASK = 0.25  # first pass, of the batch's tokens


class DivOPDFocus(Composer):
    """Task groups in seeded random order, largest disagreement first.

    How many tokens the batch will have is not known before it is full: the share is taken of B times the mean tokens of
    the pool's turns. A turn that would take its task above the share is passed over in the first pass. Every later pass
    goes through the tasks in the same order and takes one more turn of each, whatever its tokens.
    """

    gated = False

    def select(self, pool: list[Candidate], *, update: int) -> Selection:
        size = self.settings.batch_size
        budget = TOKEN_SHARE_PER_TASK * size * sum(c.tokens for c in pool) / max(len(pool), 1)
        first: list[Candidate] = []
        later: list[list[Candidate]] = []  # of each task, what the first pass left
        for ranked in self._tasks(pool, update=update):
            best = _within(ranked, budget=budget)
            first += best
            taken = set(map(id, best))
            later.append([c for c in ranked if id(c) not in taken])
        selected, passes = first, [1] * len(first)
        for number, swept in enumerate(zip_longest(*later), start=2):
            more = [c for c in swept if c is not None]
            selected += more
            passes += [number] * len(more)
        return Selection(selected[:size], passes[:size])

    def _tasks(self, pool: list[Candidate], *, update: int) -> list[list[Candidate]]:
        groups: dict[str, list[Candidate]] = {}
        for candidate in sorted(pool, key=lambda c: (-c.disagreement, c.rollout, c.turn)):
            groups.setdefault(candidate.task, []).append(candidate)
        tasks = sorted(groups)
        Random(f"{self.settings.seed}/{update}").shuffle(tasks)
        return [groups[task] for task in tasks]


def _within(ranked: list[Candidate], *, budget: float) -> list[Candidate]:
    """What a task gives in the first pass: its best turns, as many as turns and tokens allow."""
    best: list[Candidate] = []
    tokens = 0
    for candidate in ranked:
        if len(best) < TURNS_PER_TASK and tokens + candidate.tokens <= budget:
            best.append(candidate)
            tokens += candidate.tokens
    return best
