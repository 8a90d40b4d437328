"""How the learner's weights get to explorers: one interface, several ways (`weights.way`).

    folder   files of the run; the way where roles are processes of one machine
    ray      Ray's object store (on_ray_weights.py); the way on a cluster
    nccl     GPU to GPU, by vLLM's own weight transfer (engine_weights.py)
    ipc      the same between processes that share a GPU

Whatever the way is, versions that somebody wants later, for an evaluation or an audit, are files as well. They are
written beside the learner's next updates, from a copy: it waits for no disk, except at a checkpoint, whose resume must
find them, and when several such versions are still to be written.

A version that was given away and is not on disk is never needed again. A learner that is killed goes on from its last
checkpoint, serves the journalled batches again, and so comes to that version once more before it composes a new one;
explorers that have it keep it, and no batch ever holds a turn of a version that the learner has not reached.
"""

from collections.abc import Callable, Collection
from typing import NamedTuple, Protocol

from divopd.config import Config
from divopd.learner import Learner
from divopd.models.policy import Weights
from divopd.pipeline.kept_weights import delete_needless, examined, is_lasting
from divopd.pipeline.rollouts import is_synced
from divopd.run.beside import Beside
from divopd.run.checkpoints import publish_weights
from divopd.run.folder import RunFolder

KEPT_VERSIONS = 3  # of those that explorers read from the folder: one may still be reading an older one


class Publishing(Protocol):
    """The learner's end of a way. Its loop calls all of this from one thread."""

    def publish(self, version: int, learner: Learner) -> None:
        """Give explorers the weights that the learner holds, if it is their turn, and see that what lasts is kept."""
        ...

    def look(self) -> None:
        """The learner waits for a batch: see to it that explorers still have what they need to play one."""
        ...

    def settle(self) -> None:
        """Wait until everything that lasts is on disk; a CheckpointError says why it cannot be."""
        ...


class Version(NamedTuple):
    """A version on its way to the disk."""

    number: int
    weights: Weights | None  # None: nobody wants it there, and older ones may go
    evaluated: Collection[int]  # versions that have been evaluated when it was published, if that matters


class Files:
    """The versions that are written to the run's folder, beside the learner's work."""

    def __init__(
        self,
        config: Config,
        run: RunFolder,
        *,
        evaluated: Callable[[], Collection[int]],
        for_explorers: int = 0,
    ) -> None:
        self._config, self._run, self._evaluated, self._for_explorers = config, run, evaluated, for_explorers
        self._writing = Beside[Version](self._write)
        self._given: set[int] = set()  # by this process, whether they are written yet or not

    def wants(self, version: int) -> bool:
        """Whether a version is to be written. One that is there, from before a resume, is left as it is."""
        read = self._for_explorers > 0 and is_synced(self._config, version)
        known = version in self._given or self._run.weights_of(version).exists()
        return (read or is_lasting(self._config, version)) and not known

    def take(self, version: int, weights: Weights) -> None:
        """Have it written. One that only explorers want may be skipped when a newer one is there first."""
        self._given.add(version)
        self._put(version, weights, may_be_skipped=not is_lasting(self._config, version))

    def tidy(self, version: int) -> None:
        """Nothing is to be written at this version; have deleted what nobody needs now."""
        self._put(version, None, may_be_skipped=True)

    def settle(self) -> None:
        self._writing.settle()

    def _put(self, version: int, weights: Weights | None, *, may_be_skipped: bool) -> None:
        known = examined(self._config, self._evaluated)
        self._writing.put(Version(version, weights, known), may_be_skipped=may_be_skipped)

    def _write(self, version: Version) -> None:
        """In the thread beside: it touches files, and no store."""
        if version.weights is not None:
            publish_weights(self._run.weights, version.number, version.weights)
        delete_needless(
            self._config,
            self._run,
            version=version.number,
            evaluated=version.evaluated,
            for_explorers=self._for_explorers,
        )


class FolderWay:
    """Explorers read the run's folder: all versions that they get are there."""

    def __init__(self, config: Config, run: RunFolder, *, evaluated: Callable[[], Collection[int]]) -> None:
        self._dtype = config.weights_dtype
        self._files = Files(config, run, evaluated=evaluated, for_explorers=KEPT_VERSIONS)

    def publish(self, version: int, learner: Learner) -> None:
        if self._files.wants(version):
            self._files.take(version, learner.snapshot(self._dtype))
        else:
            self._files.tidy(version)

    def look(self) -> None:
        """What is on disk stays there."""

    def settle(self) -> None:
        self._files.settle()
