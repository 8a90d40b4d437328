"""DivOPD-adaptive: allocation that follows queue pressure (specification §4.4), and the bound no composer can beat."""

from collections.abc import Iterable
from heapq import heappop, heappush

from divopd.composers.composer import Candidate, Selection
from divopd.composers.rollout_first import DivOPD, Group, group_by_rollout, longest_waiting_first, sweep


class DivOPDAdaptive(DivOPD):
    """divopd whose cap shrinks, down to 1, until every rollout about to expire still gets a turn.

    While no rollout is about to expire it is exactly divopd; otherwise rollouts go in the order of their deadlines.
    """

    def select(self, pool: list[Candidate], *, update: int) -> Selection:
        groups = longest_waiting_first(group_by_rollout(pool))
        deadlines = {group[0].rollout: max(map(self.deadline, group)) for group in groups}
        urgent = sum(deadline <= update for deadline in deadlines.values())
        if urgent:
            groups.sort(key=lambda group: deadlines[group[0].rollout])  # stable: equal deadlines keep divopd's order
        return sweep(
            groups,
            rank=self.ranking(update),
            size=self.settings.batch_size,
            cap=self.cap_under_pressure(groups[:urgent]),
        )

    def deadline(self, candidate: Candidate) -> int:
        """The last update at which this turn can still be selected, from δ and W."""
        expires = candidate.version + self.settings.max_staleness
        ages_out = candidate.first_seen + self.settings.max_pending_age + 1
        return min(expires, ages_out)

    def cap_under_pressure(self, urgent: list[Group]) -> int | None:
        """The largest cap up to k with which the last urgent rollout still gets a slot; 1 if none is small enough."""
        lengths = [len(group) for group in urgent[:-1]]
        free = self.settings.batch_size
        if not urgent or sum(min(n, self.settings.cap or n) for n in lengths) < free:
            return self.settings.cap
        caps = range(1, self.settings.cap or max(lengths))
        return max((cap for cap in caps if sum(min(n, cap) for n in lengths) < free), default=1)


def offline_bound(windows: Iterable[tuple[int, int]], *, batch_size: int, updates: int) -> int:
    """The largest number of rollouts that can get at least one slot each, by any composer.

    A window is (first update at which the rollout is available, last update at which it is not stale). Rollouts are
    unit jobs and an update has `batch_size` slots, so the earliest deadline first is optimal and the bound exact.
    """
    arrivals = sorted(window for window in windows if window[0] < updates)
    waiting: list[int] = []
    served = position = 0
    for update in range(updates):
        while position < len(arrivals) and arrivals[position][0] <= update:
            heappush(waiting, arrivals[position][1])
            position += 1
        slots = batch_size
        while waiting and slots:
            if heappop(waiting) >= update:
                served, slots = served + 1, slots - 1
    return served
