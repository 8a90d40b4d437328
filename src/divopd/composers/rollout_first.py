"""DivOPD: every rollout gets a few slots before any gets more, filled with the turns of largest disagreement.

Algorithm 1 of the paper. The reader's steps (1-3, 8, 9) are in composer.py; steps 4-7 are `select` below.
"""

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable
from operator import attrgetter
from random import Random

from divopd.composers.composer import Candidate, Composer, Selection

Group = list[Candidate]
MANY = 2048  # turns, from which on arrays are faster than lists
TURN, FIRST_SEEN, DISAGREEMENT = attrgetter("turn"), attrgetter("first_seen"), attrgetter("disagreement")


class RolloutFirst(Composer):
    """Coverage: slots are allocated to rollouts, the longest waiting first, at most `cap` each in the first pass."""

    capped = True

    def select(self, pool: list[Candidate], *, update: int) -> Selection:
        groups = longest_waiting_first(group_by_rollout(pool))  # step 4
        return sweep(
            groups,
            rank=lambda group: self.rank(group, update=update),  # step 5
            size=self.settings.batch_size,
            cap=self.settings.cap,
        )  # steps 6-7

    @abstractmethod
    def rank(self, group: Group, *, update: int) -> Group:
        """The turns of one rollout in the order in which they fill its slots."""


class DivOPD(RolloutFirst):
    """Gate, rollout-first coverage, and the turns of largest disagreement inside each rollout."""

    def select(self, pool: list[Candidate], *, update: int) -> Selection:
        if len(pool) < MANY:
            return super().select(pool, update=update)
        from divopd.composers.columns import select_by_columns  # it brings numpy, which small pools need not wait for

        return select_by_columns(pool, size=self.settings.batch_size, cap=self.settings.cap)

    def rank(self, group: Group, *, update: int) -> Group:
        del update
        return by_disagreement(group)


class DivOPDBase(RolloutFirst):
    """Gate and rollout-first coverage; turns inside a rollout are drawn uniformly."""

    def rank(self, group: Group, *, update: int) -> Group:
        ordered = sorted(group, key=lambda c: c.turn)
        # a string seed is hashed with SHA-512: the same draw on any machine and with any hash seed
        Random(f"{self.settings.seed}/{update}/{group[0].rollout}").shuffle(ordered)
        return ordered


def group_by_rollout(pool: Iterable[Candidate]) -> list[Group]:
    groups: defaultdict[str, Group] = defaultdict(list)
    for candidate in pool:
        groups[candidate.rollout].append(candidate)
    return list(groups.values())


def longest_waiting_first(groups: list[Group]) -> list[Group]:
    return sorted(groups, key=lambda group: (min(map(FIRST_SEEN, group)), group[0].rollout))


def by_disagreement(group: Iterable[Candidate]) -> Group:
    """Largest disagreement first, ties by turn: two stable sorts, which are faster than one by a pair."""
    ranked = sorted(group, key=TURN)
    ranked.sort(key=DISAGREEMENT, reverse=True)
    return ranked


def sweep(groups: list[Group], *, rank: Callable[[Group], Group], size: int, cap: int | None) -> Selection:
    """Visit the groups in order; each gives its best turns up to the cap. Raise the cap by one until the batch is full.

    A group is ranked when it is first visited: the groups that the batch never reaches cost nothing.
    """
    selected: list[Candidate] = []
    passes: list[int] = []
    waiting: list[Group] = groups
    number = 0
    given, limit = 0, cap
    while waiting and len(selected) < size:
        number += 1
        unfinished: list[Group] = []
        for group in waiting:
            ranked = rank(group) if number == 1 else group
            stop = len(ranked) if limit is None else limit
            selected += ranked[given : min(stop, given + size - len(selected))]
            if len(selected) == size:
                break
            if stop < len(ranked):
                unfinished.append(ranked)
        assert limit is not None or not unfinished
        passes += [number] * (len(selected) - len(passes))
        waiting, given, limit = unfinished, limit or 0, (limit or 0) + 1
    return Selection(selected, passes)
