"""An explorer and a learner as real processes, which tests kill: `python store_processes.py ROLE RUN NAME`.

They do no learning. What matters is what they say in their logs, because a log line is written only after the store
has answered: whatever a line claims must hold in the store afterwards, however the process ended.
"""

import hashlib
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any, Protocol

from divopd.composers.composer import Composer
from divopd.methods import make_composer
from divopd.store import Ledger, Queue, Store
from divopd.turns import Rollout, Turn, turn_to_json

UPDATES_PER_CHECKPOINT = 3
MAX_BACKLOG = 300  # turns; an explorer waits while there are more
WORK_UPDATES = 6


class QueueAndLedger(Queue, Ledger, Protocol):
    """A store that one process uses in every role."""


def make_rollout(name: str, *, version: int = 0, turns: int | None = None, task: str = "heat an egg") -> Rollout:
    """A rollout that is a pure function of its id and version; about one turn in five is invalid."""
    rng = random.Random(f"{name}/{version}")
    count = turns or rng.randint(1, 8)
    return Rollout(name, tuple(_make_turn(name, number, version, task, rng) for number in range(count)))


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
    return make_composer("divopd", batch_size=8, pool_multiplier=4, cap=2, max_staleness=6, max_pending_age=3)


def fill(store: QueueAndLedger, *, rollouts: int = 6, updates: int = 3) -> int:
    """Some rollouts and updates; returns the epoch of the learner."""
    epoch = store.begin_learner()
    for update in range(updates):
        for number in range(rollouts):
            store.put(make_rollout(f"e.{update}.{number}", version=update))
        store.compose(make_test_composer(), update=update, epoch=epoch)
    return epoch


def train(weights: str, update: int, turns: list[Turn]) -> str:
    """One update of "weights" that depend on every number of every turn and on the order of everything."""
    content = [turn_to_json(turn) | {"available_at": 0} for turn in turns]
    return hashlib.sha256(json.dumps([weights, update, content]).encode()).hexdigest()


class Log:
    """One JSON list a line, each in a single write, so that a killed process leaves whole lines."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, *line: Any) -> None:
        os.write(self.descriptor, (json.dumps(line) + "\n").encode())


def read_log(path: Path) -> list[list[Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


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


def learn(run: Path, name: str) -> None:
    """Train until told to stop, from the last checkpoint on: first what is in the journal, then what is composed."""
    log, composer = Log(run / f"{name}.log"), make_test_composer()
    with Store.open(run) as store:
        epoch = store.begin_learner()
        update, weights = resume(store, epoch)
        log.write("resume", update, store.updates)
        while not (run / "stop").exists():
            if update < store.updates:
                batch = store.batch(update)
            elif store.rows(composer, update=update):
                batch = store.compose(composer, update=update, epoch=epoch)
            else:
                time.sleep(0.002)
                continue
            log.write("train", update, batch.digest, [turn.key for turn in batch.turns])
            update, weights = update + 1, train(weights, update, batch.turns)
            if update % UPDATES_PER_CHECKPOINT == 0:
                save_checkpoint(run, update, weights)
                store.acknowledge(update - 1, epoch=epoch)
                log.write("settled", update - 1, store.settle(update - 1, epoch=epoch))


def resume(store: Store, epoch: int) -> tuple[int, str]:
    """Go on from the checkpoint; its acknowledgement may have been lost with the process that wrote it."""
    update, weights = load_checkpoint(store.path.parent)
    if update:
        store.acknowledge(update - 1, epoch=epoch)
    return update, weights


def load_checkpoint(run: Path) -> tuple[int, str]:
    path = run / "checkpoint.json"
    update, weights = json.loads(path.read_text()) if path.exists() else (0, "")
    return update, weights


def save_checkpoint(run: Path, update: int, weights: str) -> None:
    partial = run / "checkpoint.partial"
    with partial.open("w") as file:
        file.write(json.dumps([update, weights]))
        file.flush()
        os.fsync(file.fileno())
    partial.replace(run / "checkpoint.json")


def settle(run: Path, name: str) -> None:
    """Settle the next update for every line of input; first the one that an earlier life may not have finished."""
    log, done = Log(run / f"{name}.log"), [line for line in read_log(run / f"{name}.log") if line[0] == "settled"]
    with Store.open(run) as store:
        epoch = store.begin_learner()
        for update, _ in enumerate(sys.stdin, len(done)):
            log.write("settle", update)
            store.settle(update, epoch=epoch)
            log.write("settled", update)


def work(run: Path, name: str) -> None:
    """Both roles in turn, a fixed amount of work: every system call of it can be counted, and struck."""
    log, composer = Log(run / f"{name}.log"), make_test_composer()
    store_file = run / "store.db"
    with Store.open(run) if store_file.exists() else Store.create(store_file) as store:
        log.write("open")
        update, weights = resume(store, store.begin_learner())
        for count in range(update, WORK_UPDATES):
            identity = f"{name}.{count}"
            version = {line[1]: line[2] for line in read_log(run / f"{name}.log") if line[0] == "try"}.get(identity)
            if version is None:
                version = store.updates
                log.write("try", identity, version)
            store.put(make_rollout(identity, version=version))
            log.write("put", identity, version)
            epoch = store.begin_learner()
            batch = (
                store.batch(update) if update < store.updates else store.compose(composer, update=update, epoch=epoch)
            )
            log.write("train", update, batch.digest, [turn.key for turn in batch.turns])
            update, weights = update + 1, train(weights, update, batch.turns)
            if update % UPDATES_PER_CHECKPOINT == 0:
                save_checkpoint(run, update, weights)
                store.acknowledge(update - 1, epoch=epoch)
                log.write("settled", update - 1, store.settle(update - 1, epoch=epoch))


if __name__ == "__main__":
    {"explore": explore, "learn": learn, "settle": settle, "work": work}[sys.argv[1]](Path(sys.argv[2]), sys.argv[3])
