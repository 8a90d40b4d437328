"""Composing a batch: divopd against the best short way, and how the cost grows.

The short way is Algorithm 1 as a good engineer writes it in fifteen lines: rollouts grouped in one dict, ranked when
they are visited. It selects the same turns and tells no fates. The pool has c·B turns in rollouts of 1 to 30. Both
sides get candidates whose gate and disagreement were computed when the turn was put, as the store keeps them; what that
costs a turn is measured beside it, and so is a whole `Pool`, with fates, metrics and state. Processor seconds, medians.
"""

import math
import time
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, NamedTuple

from divopd.composers import Candidate, candidate_of
from divopd.experiments.peers import Times, interleaved, ratio, timed
from divopd.methods import make_composer
from divopd.pool import Measured, Pool, Row
from divopd.synth import PRESETS, synthesize

PAPER = 256  # turns in the paper's pool


class Sizes(NamedTuple):
    pools: tuple[int, ...]  # turns; how the cost grows is that of the last two
    rounds: int  # of the paper's pool; larger ones have fewer
    updates: int  # of the recording whose turns are assessed


FULL = Sizes(pools=(PAPER, 10_000, 100_000, 1_000_000), rounds=200, updates=20)
QUICK = Sizes(pools=(PAPER, 10_000), rounds=2, updates=2)


def run(sizes: Sizes) -> dict:
    rows = {str(size): _measure(size, sizes) for size in sizes.pools}
    large, larger = sizes.pools[-2:]
    paper = rows[str(PAPER)]
    return {
        "bench": "composer",
        "ratio": paper["ratio"],
        "unit": f"processor seconds for a pool of {PAPER} turns, against grouping once in a dict",
        "ours": paper["divopd"]["processor_s"],
        "reference": paper["short_way"]["processor_s"],
        "detail": {
            "pools": rows,
            "growth_to_the_largest": (
                rows[str(larger)]["divopd"]["processor_s"] / rows[str(large)]["divopd"]["processor_s"]
            ),
            "growth_of_n_log_n": larger * math.log(larger) / (large * math.log(large)),
            "gate_and_disagreement_us_per_turn": _assessment_us(sizes.updates),
            "pool": _pool_of_handles(sizes.rounds),
        },
    }


def _measure(size: int, sizes: Sizes) -> dict[str, Any]:
    pool = _pool(size)
    composer = make_composer("divopd", batch_size=size // 4)
    ours = composer.decide(pool, update=9).selected
    assert ours == short_way(pool, batch_size=size // 4, cap=4), "the short way selects other turns"
    del ours
    repeats = max(1, PAPER * 20 // size)  # a round of less than a millisecond could not be told from noise
    figures = interleaved(
        {
            "divopd": lambda: _repeated(lambda: composer.decide(pool, update=9), repeats),
            "short_way": lambda: _repeated(lambda: short_way(pool, batch_size=size // 4, cap=4), repeats),
        },
        rounds=max(sizes.rounds * PAPER // size, min(sizes.rounds, 7)),
    )
    return {"ratio": ratio(figures, ours="divopd", theirs="short_way"), "turns": size, **figures}


def _repeated(action: Callable[[], Any], repeats: int) -> Times:
    taken = timed(lambda: [action() for _ in range(repeats)])
    return Times(*(seconds / repeats for seconds in taken))


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


def short_way(pool: list[Candidate], *, batch_size: int, cap: int) -> list[Candidate]:
    """Steps 4 to 7, and nothing else."""
    groups: dict[str, list[Candidate]] = {}
    for c in pool:
        groups.setdefault(c.rollout, []).append(c)
    waiting = sorted(groups.values(), key=lambda group: (min(c.first_seen for c in group), group[0].rollout))
    selected: list[Candidate] = []
    given = 0
    while waiting and len(selected) < batch_size:
        unfinished = []
        for group in waiting:
            if not given:
                group.sort(key=lambda c: (-c.disagreement, c.turn))
            selected += group[given:cap]
            if len(selected) >= batch_size:
                break
            if len(group) > cap:
                unfinished.append(group)
        waiting, given, cap = unfinished, cap, cap + 1
    return selected[:batch_size]


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
