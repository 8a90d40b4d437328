"""The real training loop as a process, which tests kill: `python training_processes.py ROLE RUN NAME`.

Its learner hashes instead of learning, so no torch is needed. What it says in its log must hold in the store and in the
checkpoints afterwards, however the process ended.
"""

import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from store_processes import COMPOSER, Log, make_rollout

from divopd.composers import Composer
from divopd.config import Config
from divopd.learner import Saved
from divopd.pipeline.training import train
from divopd.pipeline.wishes import Stopped
from divopd.pipeline.world import Waited
from divopd.records import EvaluationRecord, UpdateRecord, encode_update
from divopd.run.folder import RunFolder
from divopd.store import JournaledBatch, Store
from divopd.turns import Rollout
from doubles.hashing_learner import HashingLearner
from doubles.scripted_world import ScriptedWorld

WORK_UPDATES = 6


def make_config(*, updates: int, checkpoint_every: int) -> Config:
    learner = {"updates": updates, "checkpoint_every": checkpoint_every, "keep_tokens": False}
    return Config.model_validate({"environment": {"name": "alfworld-small"}, "learner": learner, "composer": COMPOSER})


class LoggingLearner(HashingLearner):
    def __init__(self, log: Log) -> None:
        super().__init__()
        self.log = log

    def save(self, folder: Path, *, update: int, state: Mapping[str, Any]) -> Saved:
        saved = super().save(folder, update=update, state=state)
        self.log.write("saved", update)
        return saved

    def load(self, path: Path) -> dict[str, Any]:
        self.log.write("resume", int(path.name))
        return super().load(path)


class LoggingObserver:
    def __init__(self, log: Log) -> None:
        self.log = log

    def updated(self, record: UpdateRecord) -> None:
        self.log.write("told", record.update, encode_update(record))

    def evaluated(self, record: EvaluationRecord) -> None:
        raise AssertionError("nobody evaluates here")

    def told(self, sentence: str) -> None:
        raise AssertionError(sentence)


class WorkWorld(ScriptedWorld):
    """Every rollout that it puts is in the log before it tries, and after it is done."""

    def __init__(self, store: Store, log: Log) -> None:
        super().__init__(store, lambda number, version: make_rollout(f"w.{number}", version=version), batch_size=3)
        self.log = log

    def arrive(self, rollout: Rollout) -> None:
        self.log.write("try", rollout.id, rollout.version)
        super().arrive(rollout)
        self.log.write("put", rollout.id, rollout.version)

    @contextmanager
    def updating(self, batch: JournaledBatch) -> Generator[None]:
        self.log.write("train", batch.entry.update, batch.digest, [turn.key for turn in batch.turns])
        with super().updating(batch):
            yield


class SharedWorld(WorkWorld):
    """Other processes put rollouts."""

    def wait(self, composer: Composer, *, update: int) -> Waited:
        self.heed()
        while update >= self.store.updates and not self.store.rows(composer, update=update):
            time.sleep(0.002)
            self.heed()
        return Waited()


class StopFile:
    """The run is to stop as soon as there is a file RUN/stop."""

    def __init__(self, run: Path) -> None:
        self.path = run / "stop"

    def check(self) -> None:
        if self.path.exists():
            raise Stopped

    def take_checkpoint(self) -> bool:
        return False


def learn(run: Path, name: str) -> None:
    """Train on what explorers put, until told to stop."""
    with Store.open(run) as store:
        log = Log(run / f"{name}.log")
        _train(make_config(updates=10**6, checkpoint_every=3), run, store, log, SharedWorld(store, log))


def work(run: Path, name: str) -> None:
    """Put rollouts and train, a fixed amount of work: every system call of it can be counted, and struck."""
    file, log = RunFolder(run).store, Log(run / f"{name}.log")
    with Store.open(run) if file.exists() else Store.create(file) as store:
        log.write("open")
        _train(make_config(updates=WORK_UPDATES, checkpoint_every=2), run, store, log, WorkWorld(store, log))


def _train(config: Config, run: Path, store: Store, log: Log, world: WorkWorld) -> None:
    with suppress(Stopped):
        train(
            config,
            learner=LoggingLearner(log),
            ledger=store,
            world=world,
            run=RunFolder(run),
            observer=LoggingObserver(log),
            wishes=StopFile(run),
        )


if __name__ == "__main__":
    {"learn": learn, "work": work}[sys.argv[1]](Path(sys.argv[2]), sys.argv[3])
