"""The training loop: publish, evaluate, checkpoint, wait, compose, update, record. There is no other.

Whatever the clock, the machines and the models are, they are behind `World`, `Ledger` and `Learner`; nothing here
imports torch. A batch is journalled before it is trained. The checkpoint is the acknowledgement: a resume goes on after
the newest one, and updates past it are served again from the journal, identical and in order.
"""

from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from divopd.config import Config
from divopd.learner import Learner, Saving
from divopd.methods import find_method
from divopd.metrics import batch_figures
from divopd.pipeline.wishes import Stopped
from divopd.pipeline.world import Waited, World
from divopd.records import Observer, QueueFigures, Spent, UpdateFigures, UpdateRecord
from divopd.run.folder import RunFolder
from divopd.store import JournaledBatch, Ledger


class Wishes(Protocol):
    """What somebody outside asks of a run: pipeline/wishes.py hears it by signals."""

    def check(self) -> None:
        """Raise Stopped if the run is to stop."""
        ...

    def take_checkpoint(self) -> bool:
        """Whether a checkpoint has been asked for since the last time."""
        ...


@dataclass(frozen=True)
class Place:
    """Where a learner is: how many updates are in its weights, and what they cost."""

    version: int = 0
    trained_tokens: int = 0
    computed_tokens: int = 0

    def after(self, figures: UpdateFigures) -> "Place":
        return Place(
            self.version + 1,
            self.trained_tokens + figures.tokens,
            self.computed_tokens + figures.computed_tokens,
        )


def train(
    config: Config,
    *,
    learner: Learner,
    ledger: Ledger,
    world: World,
    run: RunFolder,
    observer: Observer,
    wishes: Wishes,
) -> None:
    """Train to the last update of the config; Stopped means that the run was asked to stop, and is saved."""
    epoch = ledger.begin_learner()
    composer = find_method(config.method).make_composer(config.composer)
    place = _restore(run, learner, world)
    if place.version:  # the process that saved it may have died before it said so
        ledger.acknowledge(place.version - 1, epoch=epoch)
    checkpoints = Checkpoints(config, learner, ledger, world, run, epoch=epoch, saved=place.version)

    def heed() -> None:
        checkpoints.look()
        if wishes.take_checkpoint():
            checkpoints.save()
        wishes.check()

    world.heed = heed
    try:
        while True:
            world.publish(place.version, learner)
            checkpoints.reach(place)
            world.evaluate(place.version, learner)
            checkpoints.look()
            if checkpoints.is_due:
                checkpoints.save()
            if place.version == config.learner.updates:
                checkpoints.finish()
                return
            waited = world.wait(composer, update=place.version)
            if place.version < ledger.updates:
                batch = ledger.batch(place.version)  # journalled before a crash
            else:
                batch = ledger.compose(composer, update=place.version, epoch=epoch)
            with world.updating(batch):
                figures = learner.update(batch.turns, batch.weights)
            place = place.after(figures)
            record = make_record(batch, figures, waited, place=place, ledger=ledger, world=world)
            if ledger.record(record):
                observer.updated(record)
    except Stopped:
        checkpoints.save()
        checkpoints.finish()
        raise


def make_record(
    batch: JournaledBatch, figures: UpdateFigures, waited: Waited, *, place: Place, ledger: Ledger, world: World
) -> UpdateRecord:
    """All that is told of an update."""
    entry = batch.entry
    arrived, decided = ledger.arrived(), ledger.decided(entry.update)
    return UpdateRecord(
        update=entry.update,
        clock=world.clock,
        elapsed_s=world.elapsed_s,
        waited_s=waited.seconds,
        starved_s=waited.starved_s,
        batch=batch_figures(batch.candidates, update=entry.update),
        learner=figures,
        queue=QueueFigures(
            rollouts_put=arrived.rollouts,
            turns_put=arrived.turns,
            queued=ledger.backlog(),
            stale=len(entry.stale),
            aged_out=len(entry.aged_out),
            invalid=len(entry.invalid),
            rollouts_used=decided.used,
            rollouts_unused=decided.unused,
            drained=decided.drained,
            pending=decided.pending,
            invalid_by_reason=_reasons(batch),
        ),
        spent=Spent(
            generated_tokens=arrived.generated_tokens,
            scored_tokens=arrived.scored_tokens,
            trained_tokens=place.trained_tokens,
            computed_tokens=place.computed_tokens,
            learner_s=world.learner_s,
        ),
    )


def _reasons(batch: JournaledBatch) -> dict[str, int]:
    """Why turns of this update were invalid: those that the gate dropped, and those that are dead rows."""
    dropped = [reason for _, _, reason in batch.entry.invalid]
    return dict(Counter([*dropped, *(row.reason for row in batch.candidates if row.reason is not None)]))


class Checkpoints:
    """Saves a run as it was right after its newest update."""

    def __init__(
        self, config: Config, learner: Learner, ledger: Ledger, world: World, run: RunFolder, *, epoch: int, saved: int
    ) -> None:
        self._config, self._learner, self._ledger, self._world, self._run = config, learner, ledger, world, run
        self._epoch = epoch
        self._saved = saved  # version of the newest checkpoint
        self._saving: tuple[int, Saving] | None = None  # the version that is on its way to the disk
        self._place, self._state = Place(saved), world.state()

    def reach(self, place: Place) -> None:
        """The learner holds another version, and the explorers have it if they are to."""
        self._place, self._state = place, self._world.state()

    @property
    def is_due(self) -> bool:
        version, learner = self._place.version, self._config.learner
        return version == learner.updates or version % learner.checkpoint_every == 0

    def save(self) -> None:
        """Begin to make the newest update durable; nothing if there is none, or if it is.

        On the wall clock the learner goes on meanwhile; it waits only if the checkpoint before is not there yet.
        """
        version = self._place.version
        if version == self._saved or (self._saving and version == self._saving[0]):
            return
        self.finish()
        state = asdict(self._place) | {"world": self._world.write_state(self._state)}
        self._saving = version, self._learner.save(self._run.checkpoints, update=version - 1, state=state)
        if self._world.clock == "virtual":  # nothing happens beside the one process
            self.finish()

    def look(self) -> None:
        """If a checkpoint has come to the disk, say so."""
        if self._saving and self._saving[1].done:
            self.finish()

    def finish(self) -> None:
        """Wait for the checkpoint that is on its way, say that it is there, and forget tokens, if that is wanted.

        The tokens of updates that the checkpoint before this one holds are dropped: it stays good for a resume.
        """
        if self._saving is None:
            return
        (version, saving), self._saving = self._saving, None
        saving.wait()
        self._ledger.acknowledge(version - 1, epoch=self._epoch)
        if not self._config.learner.keep_tokens and self._saved:
            self._ledger.settle(self._saved - 1, epoch=self._epoch)
        self._saved = version


def _restore(run: RunFolder, learner: Learner, world: World) -> Place:
    """Go on from the newest checkpoint, or begin."""
    newest: Path | None = run.newest_checkpoint()
    if newest is None:
        return Place()
    state: dict[str, Any] = learner.load(newest)
    place = replace(Place(), **{name: state[name] for name in asdict(Place())})
    world.restore(state["world"], version=place.version, learner=learner)
    return place
