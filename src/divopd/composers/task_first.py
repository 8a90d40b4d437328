"""DivOPD-focus: the paper's earlier, task-grouped composer, kept as a reference (specification §4.3)."""

from random import Random

from divopd.composers.composer import Candidate, Composer, Selection

TURNS_PER_TASK = 3  # first pass
TOKEN_SHARE_PER_TASK = 0.25  # first pass, of the batch's tokens


class DivOPDFocus(Composer):
    """Task groups in seeded random order, largest disagreement first.

    How many tokens the batch will have is not known before it is full: the share is taken of B times the mean tokens of
    the pool's turns. A turn that would take its task above the share is passed over in the first pass; the second pass
    has no limit.
    """

    gated = False

    def select(self, pool: list[Candidate], *, update: int) -> Selection:
        size = self.settings.batch_size
        groups: dict[str, list[Candidate]] = {}
        for candidate in pool:
            groups.setdefault(candidate.task, []).append(candidate)
        tasks = sorted(groups)
        Random(f"{self.settings.seed}/{update}").shuffle(tasks)
        budget = TOKEN_SHARE_PER_TASK * size * sum(c.tokens for c in pool) / max(len(pool), 1)
        first: list[Candidate] = []
        rest: list[Candidate] = []
        for task in tasks:
            turns, tokens = 0, 0
            for candidate in sorted(groups[task], key=lambda c: (-c.disagreement, c.rollout, c.turn)):
                if turns < TURNS_PER_TASK and tokens + candidate.tokens <= budget:
                    first.append(candidate)
                    turns, tokens = turns + 1, tokens + candidate.tokens
                else:
                    rest.append(candidate)
        passes = [1] * len(first) + [2] * len(rest)
        return Selection((first + rest)[:size], passes[:size])
