"""Composing a batch: divopd against a plain transcription of Algorithm 1, and how the cost grows.

The pool has c·B turns in rollouts of 1 to 30. Both sides get candidates whose gate and disagreement were computed when
the turn was put, as the store keeps them; what that costs a turn is measured beside it, and so is a whole `Pool`, with
fates, metrics and state.
"""

import math
import time
from functools import partial
from random import Random
from typing import NamedTuple

from divopd.composers import Candidate, candidate_of
from divopd.methods import make_composer
from divopd.pool import Measured, Pool, Row
from divopd.synth import PRESETS, synthesize

PAPER = 256  # turns in the paper's pool
PLAIN_LIMIT = 10_000  # the transcription is quadratic


class Sizes(NamedTuple):
    pools: tuple[int, ...]  # turns; how the cost grows is that of the last two
    rounds: int  # of the paper's pool
    updates: int  # of the recording whose turns are assessed


FULL = Sizes(pools=(PAPER, 10_000, 100_000, 1_000_000), rounds=200, updates=20)
QUICK = Sizes(pools=(PAPER, PLAIN_LIMIT + 1), rounds=2, updates=2)


def run(sizes: Sizes) -> dict:
    rows = {str(size): _measure(size, sizes) for size in sizes.pools}
    large, larger = sizes.pools[-2:]
    paper = rows[str(PAPER)]
    return {
        "bench": "composer",
        "ratio": paper["plain_s"] / paper["ours_s"],
        "unit": f"seconds for a pool of {PAPER} turns",
        "ours": paper["ours_s"],
        "reference": paper["plain_s"],
        "detail": {
            "pools": rows,
            "growth_to_the_largest": rows[str(larger)]["ours_s"] / rows[str(large)]["ours_s"],
            "growth_of_n_log_n": larger * math.log(larger) / (large * math.log(large)),
            "gate_and_disagreement_us_per_turn": _assessment_us(sizes.updates),
            "pool": _pool_of_handles(sizes.rounds),
        },
    }


def _measure(size: int, sizes: Sizes) -> dict[str, float]:
    pool = _pool(size)
    composer = make_composer("divopd", batch_size=size // 4)
    ours, selected = _best(
        lambda: [c.key for c in composer.decide(pool, update=9).selected], rounds=sizes.rounds if size == PAPER else 3
    )
    if size > PLAIN_LIMIT:
        return {"ours_s": ours}
    plain, expected = _best(
        lambda: _transcription(pool, batch_size=size // 4, cap=4),
        rounds=sizes.rounds // 10 or 1 if size == PAPER else 1,
    )
    assert selected == expected, "the transcription disagrees"
    return {"ours_s": ours, "plain_s": plain, "ratio": plain / ours}


def _best(function, *, rounds: int):
    best = math.inf
    for _ in range(rounds):
        start = time.perf_counter()
        result = function()
        best = min(best, time.perf_counter() - start)
    return best, result


def _pool(size: int) -> list[Candidate]:
    random = Random(0)
    pool: list[Candidate] = []
    rollout = 0
    while len(pool) < size:
        first_seen = random.randint(7, 9)
        for turn in range(random.randint(1, 30)):
            pool.append(Candidate(f"r{rollout:07d}", turn, "t", 8, first_seen, None, random.gauss(1, 1), 200, 20))
        rollout += 1
    return pool[:size]


def _transcription(pool: list[Candidate], *, batch_size: int, cap: int) -> list[tuple[str, int]]:
    """Steps 4 to 7, as a reader of the paper would first write them."""
    rollouts = sorted({c.rollout for c in pool}, key=lambda r: (min(c.first_seen for c in pool if c.rollout == r), r))
    groups = {
        r: sorted((c for c in pool if c.rollout == r), key=lambda c: (-c.disagreement, c.rollout, c.turn))
        for r in rollouts
    }
    selected: list[Candidate] = []
    taken = set()
    given = dict.fromkeys(rollouts, 0)
    while len(selected) < min(batch_size, len(pool)):
        for r in rollouts:
            for c in groups[r]:
                if c.key not in taken and given[r] < cap and len(selected) < batch_size:
                    selected.append(c)
                    taken.add(c.key)
                    given[r] += 1
        cap += 1
    return [c.key for c in selected]


def _pool_of_handles(rounds: int) -> dict[str, float]:
    """Putting, composing and saving the paper's pool of rows without payloads; the best of the rounds."""
    rows = [Row(c.rollout, c.turn, c.task, c.version, Measured(*c[5:])) for c in _pool(PAPER)]
    best: dict[str, float] = {"put_s": math.inf, "compose_s": math.inf, "state_s": math.inf}
    for _ in range(rounds):
        pool = Pool("divopd", batch_size=PAPER // 4)
        work = {"put_s": partial(pool.put, rows), "compose_s": partial(pool.compose, 9), "state_s": pool.state_dict}
        for name, call in work.items():
            best[name] = min(best[name], _best(call, rounds=1)[0])
    return {"rows": PAPER, **best}


def _assessment_us(updates: int) -> float:
    turns = list(synthesize(PRESETS["alfworld"], updates=updates, seed=0))
    seconds, _ = _best(lambda: [candidate_of(turn, first_seen=0) for turn in turns], rounds=3)
    return 1e6 * seconds / len(turns)
