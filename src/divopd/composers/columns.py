"""Steps 4-7 of Algorithm 1 over a large pool: the selection of rollout_first.py, made with arrays instead of lists.

In a pool of many thousand turns, reaching a turn in memory costs more than what is done with it. So every turn is
reached once or twice, a stretch of the pool at a time, and what counts of it goes into one array per field. What is
selected, and in which order, is the same (tests/core/test_composers.py).
"""

from collections import defaultdict
from itertools import compress, count

import numpy as np

from divopd.composers.composer import Candidate, Selection, WithOldest, field

STRETCH = 8192  # turns that fit into the processor's cache
ROLLOUT, TURN, FIRST_SEEN, DISAGREEMENT = map(field, ("rollout", "turn", "first_seen", "disagreement"))


def select_by_columns(pool: list[Candidate], *, size: int, cap: int | None) -> WithOldest:
    """The selection of DivOPD, with what it leaves, in the order of the pool."""
    names: defaultdict[str, int] = defaultdict(count().__next__)  # rollouts, numbered as they are first met
    rollout, first_seen = np.empty((2, len(pool)), dtype=np.int64)
    disagreement = np.empty(len(pool))
    for start in range(0, len(pool), STRETCH):
        part = pool[start : start + STRETCH]
        end = start + len(part)
        rollout[start:end] = np.fromiter(map(names.__getitem__, map(ROLLOUT, part)), np.int64, len(part))
        first_seen[start:end] = np.fromiter(map(FIRST_SEEN, part), np.int64, len(part))
        disagreement[start:end] = np.fromiter(map(DISAGREEMENT, part), np.float64, len(part))
    place = _longest_waiting_first(list(names), rollout, first_seen)[rollout]  # step 4
    order = _by_disagreement(pool, place, -disagreement)  # step 5: positions in the pool, rollout after rollout
    turns = np.bincount(place)
    within = np.arange(len(pool)) - np.repeat(np.cumsum(turns) - turns, turns)  # 0 for the first of each rollout
    # the first pass takes those below the cap, each later pass one more
    passes = np.ones_like(within) if cap is None else np.maximum(within - cap + 2, 1)
    reached = np.searchsorted(np.cumsum(np.bincount(passes)), size)  # the pass that fills the batch
    chosen = np.flatnonzero(passes <= reached)
    chosen = chosen[np.argsort(passes[chosen], kind="stable")][:size]  # steps 6-7
    taken = order[chosen]
    free = np.ones(len(pool), dtype=np.uint8)
    free[taken] = 0
    selected = list(map(pool.__getitem__, taken.tolist()))
    left = list(compress(pool, free.tobytes()))
    return WithOldest.of(Selection(selected, passes[chosen].tolist()), int(first_seen.min()), left)


def _longest_waiting_first(names: list[str], rollout: np.ndarray, first_seen: np.ndarray) -> np.ndarray:
    """The place of each rollout: by when its first turn was seen, then by name."""
    waiting = np.full(len(names), np.iinfo(np.int64).max)
    np.minimum.at(waiting, rollout, first_seen)
    by_name = np.array(sorted(range(len(names)), key=names.__getitem__))
    order = by_name[np.argsort(waiting[by_name], kind="stable")]
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return place


def _by_disagreement(pool: list[Candidate], place: np.ndarray, least_first: np.ndarray) -> np.ndarray:
    """The positions of all turns: by the place of their rollout, largest disagreement first, then by turn."""
    order = np.argsort(least_first)
    ranked = least_first[order]
    if (ranked[1:] == ranked[:-1]).any():  # only then turns have to be looked at
        return np.lexsort((np.fromiter(map(TURN, pool), np.int64, len(pool)), least_first, place))
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return np.argsort(place * len(pool) + rank)
