"""The real world as the learner sees it: it waits for turns and publishes weights (specification §7)."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any

from divopd.composers import Composer
from divopd.learner import Learner
from divopd.learner.meeting import find, serve, write_place
from divopd.learner.ranks import FirstRank, follow, join, take_device
from divopd.learner.torch_learner import TorchLearner
from divopd.pipeline.access import POLL_S, Access
from divopd.pipeline.models import load_student
from divopd.pipeline.training import train
from divopd.pipeline.wishes import Stopped
from divopd.pipeline.world import Waited, refuse_to_pause, refuse_to_starve
from divopd.records import Clock, Observers
from divopd.run.folder import RunFolder
from divopd.store import JournaledBatch


def learn(access: Access) -> None:
    """The role of the learner, on one rank or on several: train to the last update."""
    config, folder = access.config, access.folder
    assert folder is not None, "a learner has the run's folder"
    if config.learner.ranks == 1:
        _train(access, folder, TorchLearner(load_student(config), config.learner))
        return
    take_device(config.student.device, rank=access.rank)
    settings, student = config.learner, load_student(config)
    if access.rank:
        store = find(access.meeting, access.check)
    else:
        store, place = serve(settings.address, settings.port, ranks=settings.ranks)
        write_place(folder.rendezvous, place)
    crew = join(
        store,
        settings.address,
        rank=access.rank,
        ranks=settings.ranks,
        device=config.student.device,
        hung_after_s=settings.hung_after_s,
    )
    learner = TorchLearner(student, settings, nodes=settings.nodes)
    if access.rank:
        follow(learner, crew)
        return
    first = FirstRank(learner, crew)
    _train(access, folder, first)
    first.close()  # after an error the other ranks are in the midst of something, and are ended with this one


def _train(access: Access, folder: RunFolder, learner: Learner) -> None:
    world = LiveWorld(access, folder)
    with suppress(Stopped):
        train(
            access.config,
            learner=learner,
            ledger=access.store,
            world=world,
            run=folder,
            observer=Observers(),  # whoever started the roles reads the records from the store
            wishes=RoleWishes(access, folder),
        )
    world.publishing.settle()


class RoleWishes:
    """What is asked of a learner: to stop, by whoever started it, or a checkpoint, by a file in the run's folder."""

    def __init__(self, access: Access, folder: RunFolder) -> None:
        self._access, self._file = access, folder.checkpoint_wanted

    def check(self) -> None:
        self._access.check()

    def take_checkpoint(self) -> bool:
        wanted = self._file.exists()
        self._file.unlink(missing_ok=True)
        return wanted


class LiveWorld:
    """Explorers, teachers and the evaluator are elsewhere; they meet the learner in the store and in its weights."""

    clock: Clock = "wall"

    def __init__(self, access: Access, run: RunFolder) -> None:
        self.access, self.config, self.store, self.run = access, access.config, access.store, run
        self.heed: Callable[[], None] = access.check
        self.learner_s = 0.0
        self.publishing = access.weights.publishing(access.config, run, evaluated=access.store.evaluations)
        self._began = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    @elapsed_s.setter
    def elapsed_s(self, seconds: float) -> None:
        self._began = time.monotonic() - seconds

    def publish(self, version: int, learner: Learner) -> None:
        """Give the weights to explorers and evaluator; old ones that nobody needs go."""
        self.publishing.publish(version, learner)

    def evaluate(self, version: int, learner: Learner) -> None:
        """The evaluator sees by itself which versions are published and due."""

    def wait(self, composer: Composer, *, update: int) -> Waited:
        """Until the pool holds a whole batch; after `max_wait_s` one row is enough."""
        self.heed()
        if update < self.store.updates:
            return Waited()  # served again from the journal
        size, limit_s = self.config.composer.batch_size, self.config.learner.max_wait_s
        start = now = time.monotonic()
        starved, rollouts = 0.0, self.store.arrived().rollouts
        newest_of, silent_since = rollouts, start
        while (rows := self.store.rows(composer, update=update)) < size:
            if rows and now - start > limit_s:
                break
            self.heed()
            self.publishing.look()
            self.access.doing("learner", "waiting for a batch, turns", rows, size)
            time.sleep(POLL_S)
            before, now = now, time.monotonic()
            starved += 0.0 if rows else now - before
            if not rows and starved > limit_s:
                arrived, newest = self.store.outcomes(after=rollouts), self.access.newest_version() or 0
                if not self.store.rows(composer, update=update):  # nor of what came since the last look
                    refuse_to_starve(arrived, newest=newest, waited_s=starved, limit_s=limit_s, batch_size=size)
                    if (count := self.store.arrived().rollouts) != newest_of or self.store.unscored(1):
                        newest_of, silent_since = count, now
                    self._refuse_to_pause(now - silent_since)
        return Waited(time.monotonic() - start, starved)

    def _refuse_to_pause(self, waited_s: float) -> None:
        bound, limit_s = self.config.explorer.max_backlog, self.config.learner.max_wait_s
        refuse_to_pause(self.store.backlog(), bound=bound, waited_s=waited_s, limit_s=limit_s)

    @contextmanager
    def updating(self, batch: JournaledBatch) -> Generator[None]:
        self.access.doing("learner", "training update", batch.update, self.config.learner.updates)
        start = time.monotonic()
        yield
        self.learner_s += time.monotonic() - start

    def state(self) -> dict[str, Any]:
        return {"elapsed_s": self.elapsed_s, "learner_s": self.learner_s}

    def write_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """A resume publishes nothing of before the checkpoint: what an evaluation still wants must be on disk."""
        self.publishing.settle()
        return state

    def restore(self, state: dict[str, Any], *, version: int, learner: Learner) -> None:
        del version, learner
        self.elapsed_s, self.learner_s = state["elapsed_s"], state["learner_s"]
