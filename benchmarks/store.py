"""The store against an in-memory queue and against plain SQLite: put, compose and journal, read.

Rollouts of 15 turns, of about 5 KB and 23 KB each, put durably (synchronous=FULL) by 1 and by 4 processes. Plain SQLite
is what one writes first: a row of JSON a turn, committed one at a time, as durable. queue.Queue keeps nothing at all.
The best of a few rounds counts, because the machine may be shared; processor time is given beside it.
"""

import json
import queue
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterable
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from pathlib import Path
from random import Random
from statistics import median
from threading import Thread
from typing import Any, NamedTuple

from divopd.composers import make_composer
from divopd.store import Store
from divopd.turns import Rollout, Turn, turn_from_json, turn_to_json

TOKENS = {"5KB": (1000, 50), "23KB": (5000, 140)}  # prompt and response tokens
TURNS = 15
WRITERS = (1, 4)
Writing = Callable[[Path, list[Rollout]], None]


class Sizes(NamedTuple):
    rollouts: int  # a round, by all writers together
    plain_rollouts: int  # a round of plain SQLite, which takes about as long
    rounds: int
    updates: int


FULL = Sizes(rollouts=60, plain_rollouts=12, rounds=7, updates=12)
QUICK = Sizes(rollouts=6, plain_rollouts=4, rounds=1, updates=2)


def run(sizes: Sizes) -> dict:
    detail: dict[str, Any] = {turn_size: _measure(turn_size, sizes) for turn_size in TOKENS}
    ours, plain = (detail["5KB"]["put_turns_per_s"][side]["4 writers"] for side in ("store", "plain_sqlite"))
    return {
        "bench": "store",
        "ratio": ours / plain,
        "unit": "turns of 5 KB per second put durably by 4 writers, against plain one-row-at-a-time SQLite",
        "ours": ours,
        "reference": plain,
        "detail": detail,
    }


def _measure(turn_size: str, sizes: Sizes) -> dict[str, Any]:
    rollouts = [_rollout(f"r{number}", turn_size) for number in range(sizes.rollouts)]
    sides: dict[str, tuple[Writing, int]] = {
        "store": (_put_into_store, sizes.rollouts),
        "plain_sqlite": (_put_into_plain_sqlite, sizes.plain_rollouts),
    }
    put: dict[str, dict[str, float]] = {
        name: {
            f"{writers} writers": _processes(write, rollouts[:count], writers, rounds=sizes.rounds)
            for writers in WRITERS
        }
        for name, (write, count) in sides.items()
    }
    put["queue"] = {f"{writers} writers": _through_queue(rollouts, writers) for writers in WRITERS}
    return {"put_turns_per_s": put, **_one_process(rollouts, turn_size, updates=sizes.updates)}


def _rollout(name: str, turn_size: str) -> Rollout:
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


# ── many writers ──────────────────────────────────────────────────────────────────────────────────────────────────


def _put_into_store(folder: Path, rollouts: Iterable[Rollout]) -> None:
    with Store.open(folder) as store:
        for rollout in rollouts:
            store.put(rollout)


def _put_into_plain_sqlite(folder: Path, rollouts: Iterable[Rollout]) -> None:
    connection = sqlite3.connect(folder / "plain.db", timeout=60)
    connection.execute("PRAGMA synchronous = FULL")
    for rollout in rollouts:
        for turn in rollout.turns:
            row = (turn.rollout, turn.turn, json.dumps(turn_to_json(turn)))
            connection.execute("INSERT INTO turns VALUES (?, ?, ?)", row)
            connection.commit()
    connection.close()


def _processes(write: Writing, rollouts: list[Rollout], writers: int, *, rounds: int) -> float:
    """Turns per second, from the moment all writers are ready to the last commit; the best of the rounds."""
    context = get_context("fork")  # the children inherit the rollouts; no connection is open yet
    return max(_one_round(write, rollouts, writers, context) for _ in range(rounds))


def _one_round(write: Any, rollouts: list[Rollout], writers: int, context: Any) -> float:
    with tempfile.TemporaryDirectory() as name:
        folder, barrier = Path(name), context.Barrier(writers + 1)
        Store.create(folder / "store.db").close()
        _create_plain(folder / "plain.db")
        parts = [rollouts[place::writers] for place in range(writers)]
        processes = [context.Process(target=_writer, args=(write, folder, part, barrier)) for part in parts]
        for process in processes:
            process.start()
        barrier.wait()
        started = time.perf_counter()
        for process in processes:
            process.join()
        return len(rollouts) * TURNS / (time.perf_counter() - started)


def _writer(write: Any, folder: Path, rollouts: list[Rollout], barrier: Barrier) -> None:
    barrier.wait()
    write(folder, rollouts)


def _create_plain(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE turns (rollout TEXT, turn INTEGER, json TEXT, PRIMARY KEY (rollout, turn))")
    connection.close()


def _through_queue(rollouts: list[Rollout], writers: int) -> float:
    """The same turns through queue.Queue, by threads: not durable, not shared by processes."""
    turns: queue.Queue[Turn] = queue.Queue()

    def put(part: list[Rollout]) -> None:
        for rollout in part:
            for turn in rollout.turns:
                turns.put(turn)

    threads = [Thread(target=put, args=(rollouts[place::writers],)) for place in range(writers)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(rollouts) * TURNS / (time.perf_counter() - started)


# ── one process: processor time, composing, reading ───────────────────────────────────────────────────────────────


def _one_process(rollouts: list[Rollout], turn_size: str, *, updates: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name, Store.create(Path(name) / "store.db") as store:
        started = time.process_time()
        for rollout in rollouts:
            store.put(rollout)
        put_cpu_s = time.process_time() - started
        composer, epoch = make_composer("divopd", max_staleness=1000, max_pending_age=1000), store.begin_learner()
        composed: list[tuple[float, float]] = []
        served: list[tuple[float, float]] = []
        for update in range(updates):
            for number in range(5):  # as many turns as the batch takes out: the pool holds 256
                store.put(_rollout(f"u{update}.{number}", turn_size))
            composed.append(_times_ms(lambda q=update: store.compose(composer, update=q, epoch=epoch)))
            served.append(_times_ms(lambda q=update: store.batch(q)))
    both, read = _summary(composed), _summary(served)
    return {
        "put_processor_us_per_turn": 1e6 * put_cpu_s / (len(rollouts) * TURNS),
        # composing ends with reading the batch from the journal: that is taken out
        "compose_64_of_256_and_journal_ms": {name: both[name] - read[name] for name in both},
        "read_64_turns_ms": read,
        "plain_sqlite_read_64_turns_ms": _summary(_read_plain(rollouts, rounds=updates)),
    }


def _read_plain(rollouts: list[Rollout], *, rounds: int) -> list[tuple[float, float]]:
    with tempfile.TemporaryDirectory() as name:
        _create_plain(Path(name) / "plain.db")
        _put_into_plain_sqlite(Path(name), rollouts[:10])
        connection = sqlite3.connect(Path(name) / "plain.db")
        keys = [turn.key for rollout in rollouts[:10] for turn in rollout.turns][:64]

        def read() -> None:
            for key in keys:
                text = connection.execute("SELECT json FROM turns WHERE rollout = ? AND turn = ?", key).fetchone()[0]
                turn_from_json(json.loads(text))

        times = [_times_ms(read) for _ in range(rounds)]
        connection.close()
    return times


def _times_ms(action: Callable[[], Any]) -> tuple[float, float]:
    """(wall, processor) milliseconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    action()
    return 1000 * (time.perf_counter() - wall), 1000 * (time.process_time() - cpu)


def _summary(times: list[tuple[float, float]]) -> dict[str, float]:
    walls, cpus = zip(*times, strict=True)
    return {"median": median(walls), "best": min(walls), "processor": median(cpus)}
