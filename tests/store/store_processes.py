"""Rollouts for tests, and roles as real processes, which tests kill: `python store_processes.py ROLE RUN NAME`.

What matters is what they say in their logs, because a log line is written only after the store has answered: whatever a
line claims must hold in the store afterwards, however the process ended. training_processes.py has the learner.
"""

import json
import os
import random
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from divopd.composers.composer import Composer
from divopd.methods import make_composer
from divopd.store import Ledger, Queue, Store
from divopd.turns import Rollout, TeacherTurn, Turn

LEASE_S = 1.0
MAX_BACKLOG = 300  # turns; an explorer waits while there are more
COMPOSER = {"batch_size": 8, "pool_multiplier": 4, "cap": 2, "max_staleness": 6, "max_pending_age": 3}


class QueueAndLedger(Queue, Ledger, Protocol):
    """A store that one process uses in every role."""


def make_rollout(name: str, *, version: int = 0, turns: int | None = None, task: str = "heat an egg") -> Rollout:
    """A rollout that is a pure function of its id and version; about one turn in five is invalid.

    About one rollout in three has turns of the teacher at its end.
    """
    rng = random.Random(f"{name}/{version}")
    count = turns or rng.randint(1, 8)
    rows = tuple(_make_turn(name, number, version, task, rng) for number in range(count))
    helped = rng.choice([0, 0, 1, 2]) if rng.random() < 0.6 else 0
    taught = (TeacherTurn(count + n, (rng.randrange(50_000), n), f"do {n}", f"seen “{n}”") for n in range(helped))
    return Rollout(name, rows, tuple(taught))


def _make_turn(name: str, number: int, version: int, task: str, rng: random.Random) -> Turn:
    size = rng.randint(1, 6)
    return Turn(
        name,
        number,
        task,
        version,
        prompt_ids=[rng.randrange(50_000) for _ in range(20 * (number + 1))],
        prompt_truncated=rng.random() < 0.1,
        response_ids=[rng.randrange(50_000) for _ in range(size)],
        student_logprobs=[-rng.random() for _ in range(size)],
        teacher_logprobs=None if rng.random() < 0.1 else [-4 * rng.random() for _ in range(size)],
        action_mask=[1] * size,
        reward=rng.random(),
        success=rng.random() < 0.5,
    )


def make_test_composer() -> Composer:
    return make_composer("divopd", **COMPOSER)


def fill(store: QueueAndLedger, *, rollouts: int = 6, updates: int = 3) -> int:
    """Some rollouts and updates; returns the epoch of the learner."""
    epoch = store.begin_learner()
    for update in range(updates):
        for number in range(rollouts):
            store.put(make_rollout(f"e.{update}.{number}", version=update))
        store.compose(make_test_composer(), update=update, epoch=epoch)
    return epoch


class Log:
    """One JSON list a line. A kill may cut a write at a page of memory: a new life drops a line that was not finished.

    Nothing is lost with it: a process writes before and after what it does, and acts only when the line is out.
    """

    def __init__(self, path: Path) -> None:
        if path.exists():
            os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
        self.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, *line: Any) -> None:
        os.write(self.descriptor, (json.dumps(line) + "\n").encode())


def read_log(path: Path) -> list[list[Any]]:
    """The finished lines."""
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def explore(run: Path, name: str) -> None:
    """Put rollouts until told to stop; first the one that an earlier life of this explorer may not have finished."""
    log, lines = Log(run / f"{name}.log"), read_log(run / f"{name}.log")
    with Store.open(run) as store:
        if lines and lines[-1][0] == "try":
            _put(store, log, lines[-1][1], lines[-1][2])
        count = 0
        while not (run / "stop").exists():
            count += 1
            identity, version = f"{name}.{os.getpid()}-{time.monotonic_ns()}.{count}", store.updates
            log.write("try", identity, version)
            _put(store, log, identity, version)


def _put(store: Store, log: Log, identity: str, version: int) -> None:
    while not (store.path.parent / "stop").exists():
        if store.backlog() > MAX_BACKLOG:
            time.sleep(0.02)
            continue
        store.put(make_rollout(identity, version=version))
        log.write("put", identity, version)
        return


def unscored(rollout: Rollout) -> Rollout:
    """As an explorer offers it."""
    return replace(rollout, turns=tuple(replace(turn, teacher_logprobs=None) for turn in rollout.turns))


def teach(run: Path, name: str) -> None:
    """Score what waits until nothing does; now and then it takes longer than its lease, and another may be faster."""
    log, rng = Log(run / f"{name}.log"), random.Random(name)
    with Store.open(run) as store:
        while store.unscored(1):
            claimed = store.claim(name, 4, seconds=LEASE_S)
            log.write("claimed", [rollout.id for rollout in claimed])
            for rollout in claimed:
                time.sleep(rng.choice([0.0, 0.0, 0.01, LEASE_S / 3]))
                log.write("try", rollout.id, rollout.version)
                done = store.put_scored(make_rollout(rollout.id, version=rollout.version))
                log.write("put" if done else "late", rollout.id, rollout.version)
            if not claimed:
                time.sleep(0.05)


def hold(run: Path, name: str) -> None:
    """Claim some of what waits, and never score it."""
    log = Log(run / f"{name}.log")
    with Store.open(run) as store:
        log.write("claimed", [rollout.id for rollout in store.claim(name, 10, seconds=LEASE_S)])
        time.sleep(600)


def settle(run: Path, name: str) -> None:
    """Settle the next update for every line of input; first the one that an earlier life may not have finished."""
    log, done = Log(run / f"{name}.log"), [line for line in read_log(run / f"{name}.log") if line[0] == "settled"]
    with Store.open(run) as store:
        epoch = store.begin_learner()
        for update, _ in enumerate(sys.stdin, len(done)):
            log.write("settle", update)
            store.settle(update, epoch=epoch)
            log.write("settled", update)


if __name__ == "__main__":
    {"explore": explore, "settle": settle, "teach": teach, "hold": hold}[sys.argv[1]](Path(sys.argv[2]), sys.argv[3])
