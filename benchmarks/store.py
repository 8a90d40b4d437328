"""The store against the best short way and against queues in memory: put durably, take a batch of 64, read it again.

The short way is what a good engineer writes in fifteen lines: SQLite, a row of binary columns a turn, one commit a
rollout, as durable (WAL, synchronous=FULL), oldest rows first, no fates, no checksums, no journal. Rollouts have 15
turns of about 5 KB or 23 KB. Processor seconds count, wall seconds stand beside them: rounds of both sides alternate.

With --peer both sides get numpy arrays. Reverb, TransferQueue and Trinity's queue keep rows in memory and lose them
with their process; ours is on the disk when `put` returns.
"""

import sqlite3
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from random import Random
from resource import RUSAGE_CHILDREN, getrusage
from typing import Any, NamedTuple

import numpy as np

from divopd.experiments.peers import Peer, PeerProcess, Times, interleaved, ratio, timed
from divopd.methods import make_composer
from divopd.store import Store
from divopd.turns import Rollout, Turn

TOKENS = {"5KB": (1000, 50), "23KB": (5000, 140)}  # prompt and response tokens
TURNS = 15
BATCH = 64
WRITERS = (1, 4)


class Sizes(NamedTuple):
    rollouts: int  # a round, by all writers together
    rounds: int


FULL = Sizes(rollouts=60, rounds=9)
QUICK = Sizes(rollouts=6, rounds=1)


def run(sizes: Sizes) -> dict:
    detail: dict[str, Any] = {turn_size: _measure(turn_size, sizes) for turn_size in TOKENS}
    put = detail["5KB"]["put_4_writers"]
    return {
        "bench": "store",
        "ratio": put["ratio"],
        "unit": "processor microseconds a turn of 5 KB put durably by 4 writers, against the best short way in SQLite",
        "ours": put["store"]["processor_us"],
        "reference": put["short_way"]["processor_us"],
        "detail": detail,
    }


def _measure(turn_size: str, sizes: Sizes) -> dict[str, Any]:
    rollouts = [_rollout(f"r{number}", turn_size) for number in range(sizes.rollouts)]
    turns = len(rollouts) * TURNS
    figures: dict[str, Any] = {}
    for writers in WRITERS:
        sides = {
            name: lambda side=side, writers=writers: _by_processes(side, rollouts, writers)
            for name, side in {"store": OurStore, "short_way": ShortWay}.items()
        }
        figures[f"put_{writers}_writers"] = _per(interleaved(sides, rounds=sizes.rounds), turns)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        ours = stack.enter_context(OurStore(Path(folder), create=True))
        short = stack.enter_context(ShortWay(Path(folder), create=True))
        for rollout in rollouts[: 5 * TURNS]:  # what waits: more than the paper's pool of 256 turns
            ours.put(rollout)
            short.put(rollout)
        figures |= _one_process(ours, short, turn_size, rounds=3 * sizes.rounds)
    return figures


def _one_process(ours: "OurStore", short: "ShortWay", turn_size: str, *, rounds: int) -> dict[str, Any]:
    """Taking 64 turns that were not taken before, and reading the same again; new ones arrive in between, untimed."""
    numbers = count()

    def taking(side: "OurStore | ShortWay") -> Callable[[], Times]:
        def take() -> Times:
            for _ in range(-(-BATCH // TURNS)):
                side.put(_rollout(f"u{next(numbers)}", turn_size))
            return timed(side.take)

        return take

    both = {"store": ours, "short_way": short}
    return {
        "take_64": _per(interleaved({name: taking(side) for name, side in both.items()}, rounds=rounds), 1),
        "read_64_again": _per(
            interleaved({name: lambda side=side: timed(side.read_again) for name, side in both.items()}, rounds=rounds),
            1,
        ),
    }


def _per(figures: dict[str, dict[str, float]], turns: int, *, other: str = "short_way") -> dict[str, Any]:
    """Microseconds for one turn (or one batch, with 1), and how many times as long the other side takes."""
    scaled = {
        side: {name: value if name == "rounds" else 1e6 * value / turns for name, value in spread.items()}
        for side, spread in figures.items()
    }
    return {
        "ratio": ratio(figures, ours="store", theirs=other),
        "wall_ratio": ratio(figures, ours="store", theirs=other, by="wall_s"),
        **{
            side: {name.replace("_s", "_us"): value for name, value in spread.items()}
            for side, spread in scaled.items()
        },
    }


def _rollout(name: str, turn_size: str) -> Rollout:
    """As explorers make them: lists."""
    rng, (prompt, response) = Random(f"{name}/{turn_size}"), TOKENS[turn_size]
    ids = [rng.randrange(150_000) for _ in range(prompt)]
    turns = (
        Turn(
            name,
            number,
            "heat an egg",
            0,
            prompt_ids=ids,
            response_ids=ids[:response],
            student_logprobs=[-rng.random() for _ in range(response)],
            teacher_logprobs=[-2 * rng.random() for _ in range(response)],
            action_mask=[1] * response,
        )
        for number in range(TURNS)
    )
    return Rollout(name, tuple(turns))


# ── both sides: put, take a batch that nobody took, read it again ─────────────────────────────────────────────────


class OurStore:
    def __init__(self, folder: Path, *, create: bool = False) -> None:
        self._store = Store.create(folder / "store.db") if create else Store.open(folder / "store.db")
        self._composer = make_composer("divopd", max_staleness=1000, max_pending_age=1000)
        self._epoch = self._store.begin_learner() if create else 0

    def __enter__(self) -> "OurStore":
        return self

    def __exit__(self, *_: object) -> None:
        self._store.close()

    def put(self, rollout: Rollout) -> None:
        self._store.put(rollout)

    def take(self) -> list[Turn]:
        batch = self._store.compose(self._composer, update=self._store.updates, epoch=self._epoch)
        return _arrays(batch.turns)

    def read_again(self) -> list[Turn]:
        return _arrays(self._store.batch(self._store.updates - 1).turns)


def _arrays(turns: list[Turn]) -> list[Turn]:
    """What a learner makes of every list."""
    for turn in turns:
        for values in (turn.prompt_ids, turn.response_ids, turn.student_logprobs, turn.teacher_logprobs):
            np.asarray(values)
        np.asarray(turn.action_mask)
    return turns


class ShortWay:
    """The best short way."""

    def __init__(self, folder: Path, *, create: bool = False) -> None:
        self._db = sqlite3.connect(folder / "short.db", timeout=60, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        if create:
            columns = "prompt BLOB, response BLOB, student BLOB, teacher BLOB, mask BLOB, taken INTEGER DEFAULT 0"
            self._db.execute(
                f"CREATE TABLE turns (number INTEGER PRIMARY KEY, rollout, turn, task, version, {columns})"
            )
            self._db.execute("CREATE INDEX waiting ON turns (number) WHERE taken = 0")

    def __enter__(self) -> "ShortWay":
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def put(self, rollout: Rollout) -> None:
        rows = [(t.rollout, t.turn, t.task, t.version, *self._encoded(t)) for t in rollout.turns]
        self._db.execute("BEGIN IMMEDIATE")
        names = "rollout, turn, task, version, prompt, response, student, teacher, mask"
        self._db.executemany(f"INSERT INTO turns ({names}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
        self._db.execute("COMMIT")

    def take(self) -> list[tuple]:
        self._db.execute("BEGIN IMMEDIATE")
        rows = self._db.execute("SELECT * FROM turns WHERE taken = 0 ORDER BY number LIMIT 64").fetchall()
        self._last = rows[0][0], rows[-1][0]
        self._db.execute("UPDATE turns SET taken = 1 WHERE number BETWEEN ? AND ?", self._last)
        self._db.execute("COMMIT")
        return [self._decoded(row) for row in rows]

    def read_again(self) -> list[tuple]:
        rows = self._db.execute("SELECT * FROM turns WHERE number BETWEEN ? AND ?", self._last).fetchall()
        return [self._decoded(row) for row in rows]

    def _encoded(self, turn: Turn) -> Iterator[bytes]:
        lists: Any = turn.prompt_ids, turn.response_ids, turn.student_logprobs, turn.teacher_logprobs, turn.action_mask
        return (array(code, values).tobytes() for code, values in zip("iiddB", lists, strict=True))

    def _decoded(self, row: tuple) -> tuple:
        types = zip(row[5:10], (np.int32, np.int32, np.float64, np.float64, np.uint8), strict=True)
        return row[:5] + tuple(np.frombuffer(content, kind) for content, kind in types)


# ── many writers ──────────────────────────────────────────────────────────────────────────────────────────────────


def _by_processes(side: type[OurStore | ShortWay], rollouts: list[Rollout], writers: int) -> Times:
    """From the moment all writers are ready to the last commit, with the processor time of all of them."""
    context: Any = get_context("fork")  # the children inherit the rollouts; no connection is open yet
    with tempfile.TemporaryDirectory() as name:
        with side(Path(name), create=True):
            pass
        barrier = context.Barrier(writers + 1)
        parts = [rollouts[place::writers] for place in range(writers)]
        processes = [context.Process(target=_write, args=(side, Path(name), part, barrier)) for part in parts]
        before = getrusage(RUSAGE_CHILDREN)
        for process in processes:
            process.start()
        barrier.wait()
        started = time.perf_counter()
        for process in processes:
            process.join()
        wall, after = time.perf_counter() - started, getrusage(RUSAGE_CHILDREN)
    return Times(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def _write(side: type[OurStore | ShortWay], folder: Path, rollouts: list[Rollout], barrier: Any) -> None:
    with side(folder) as opened:
        barrier.wait()
        for rollout in rollouts:
            opened.put(rollout)


# ── beside a real package ─────────────────────────────────────────────────────────────────────────────────────────


def run_beside(peer: Peer, process: PeerProcess, sizes: Sizes) -> dict:
    """One writer, one reader, arrays on both sides: putting rollouts turn by turn, taking 64 turns out."""
    detail: dict[str, Any] = {"peer": peer.package, **process.ask("about")}
    for turn_size, (prompt, response) in TOKENS.items():
        process.ask("begin", prompt=prompt, response=response, turns=TURNS)
        with tempfile.TemporaryDirectory() as folder, OurStore(Path(folder), create=True) as ours:
            detail[turn_size] = _beside(process, ours, turn_size, sizes)
    put = detail["5KB"]["put"]
    return {
        "bench": "store",
        "ratio": put["ratio"],
        "unit": f"processor microseconds per turn of 5 KB put, ours durably, against {peer.package} in memory",
        "ours": put["store"]["processor_us"],
        "reference": put["peer"]["processor_us"],
        "detail": detail,
    }


def _beside(process: PeerProcess, ours: OurStore, turn_size: str, sizes: Sizes) -> dict[str, Any]:
    made = _as_arrays(_rollout("all", turn_size))
    numbers = count()

    def put() -> Times:
        rollouts = [_renamed(made, f"r{next(numbers)}") for _ in range(sizes.rollouts)]
        return timed(lambda: [ours.put(rollout) for rollout in rollouts])

    # as many turns as a round puts are taken again, so that both sides hold the same number
    batches = sizes.rollouts * TURNS // BATCH or 1

    def take() -> Times:
        return timed(lambda: [ours.take() for _ in range(batches)])

    sides = {
        "put": {"store": put, "peer": lambda: process.times("put", rollouts=sizes.rollouts)},
        "take_64": {"store": take, "peer": lambda: process.times("take", batches=batches, size=BATCH)},
    }
    turns = {"put": sizes.rollouts * TURNS, "take_64": batches}
    return {
        name: _per(interleaved(both, rounds=sizes.rounds), turns[name], other="peer") for name, both in sides.items()
    }


def _as_arrays(rollout: Rollout) -> Rollout:
    turns = (
        replace(
            turn,
            prompt_ids=np.asarray(turn.prompt_ids, np.int32),
            response_ids=np.asarray(turn.response_ids, np.int32),
            student_logprobs=np.asarray(turn.student_logprobs),
            teacher_logprobs=np.asarray(turn.teacher_logprobs),
            action_mask=np.asarray(turn.action_mask, np.uint8),
        )
        for turn in rollout.turns
    )
    return Rollout(rollout.id, tuple(turns))


def _renamed(rollout: Rollout, name: str) -> Rollout:
    return Rollout(name, tuple(replace(turn, rollout=name) for turn in rollout.turns))
