"""DivOPD: every rollout gets a few slots before any gets more, filled with the turns of largest disagreement.

Algorithm 1 of the paper. The reader's steps (1-3, 8, 9) are in composer.py; steps 4-7 are `select` below.
"""

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import groupby
from random import Random

from divopd.composers.composer import Candidate, Composer, Selection, WithOldest, field

Group = list[Candidate]
MANY = 2048  # turns, from which on arrays are faster than lists
ROLLOUT, TURN, FIRST_SEEN, DISAGREEMENT = map(field, ("rollout", "turn", "first_seen", "disagreement"))


class RolloutFirst(Composer):
    """Coverage: slots are allocated to rollouts, the longest waiting first, at most `cap` each in the first pass."""

    capped = True

    def select(self, pool: list[Candidate], *, update: int) -> Selection:
        groups = longest_waiting_first(group_by_rollout(pool))  # step 4
        selection = sweep(
            groups,
            rank=self.ranking(update),  # step 5
            size=self.settings.batch_size,
            cap=self.settings.cap,
        )  # steps 6-7
        return WithOldest.of(selection, min(map(FIRST_SEEN, groups[0]))) if groups else selection

    @abstractmethod
    def ranking(self, update: int) -> Callable[[Group], Group]:
        """What puts the turns of one rollout into the order in which they fill its slots. It may do so in place."""


class DivOPD(RolloutFirst):
    """Gate, rollout-first coverage, and the turns of largest disagreement inside each rollout."""

    def select(self, pool: list[Candidate], *, update: int) -> Selection:
        if len(pool) < MANY:
            return super().select(pool, update=update)
        from divopd.composers.columns import select_by_columns  # it brings numpy, which small pools need not wait for

        return select_by_columns(pool, size=self.settings.batch_size, cap=self.settings.cap)

    def ranking(self, update: int) -> Callable[[Group], Group]:
        del update
        return by_disagreement


class DivOPDBase(RolloutFirst):
    """Gate and rollout-first coverage; turns inside a rollout are drawn uniformly."""

    def ranking(self, update: int) -> Callable[[Group], Group]:
        def drawn(group: Group) -> Group:
            group.sort(key=TURN)
            # a string seed is hashed with SHA-512: the same draw on any machine and with any hash seed
            Random(f"{self.settings.seed}/{update}/{group[0].rollout}").shuffle(group)
            return group

        return drawn


def group_by_rollout(pool: Iterable[Candidate]) -> list[Group]:
    groups: defaultdict[str, Group] = defaultdict(list)
    for rollout, together in groupby(pool, key=ROLLOUT):  # turns of one rollout arrive together
        groups[rollout] += together
    return list(groups.values())


def longest_waiting_first(groups: list[Group]) -> list[Group]:
    return sorted(groups, key=lambda group: (min(map(FIRST_SEEN, group)), group[0].rollout))


def by_disagreement(group: Group) -> Group:
    """Largest disagreement first, ties by turn: two stable sorts, which are faster than one by a pair."""
    group.sort(key=TURN)
    group.sort(key=DISAGREEMENT, reverse=True)
    return group


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
            selected += ranked[given:limit]
            if len(selected) >= size:
                break
            if limit is not None and len(ranked) > limit:
                unfinished.append(ranked)
        del selected[size:]
        passes += [number] * (len(selected) - len(passes))
        waiting, given, limit = unfinished, limit or 0, (limit or 0) + 1
    return Selection(selected, passes)
