"""The folder of a run: the only place that knows the names of the files in it."""

from pathlib import Path

from divopd.run.durable_folder import numbered_folders, numbered_path
from divopd.store.schema import STORE_NAME


class RunFolder:
    """Where the things of a run lie. Nothing is made or read before it is asked for."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.config = self.path / "config.yaml"  # what was asked, fully resolved
        self.card = self.path / "run.json"  # what made the run, on what machine, and when (card.py)
        self.store = self.path / STORE_NAME
        self.weights = self.path / "weights"  # published policy versions
        self.checkpoints = self.path / "checkpoints"
        self.acting_weights = self.path / "acting"  # the explorers' weights, where a checkpoint fell between two syncs
        self.metrics = self.path / "metrics.jsonl"
        self.report = self.path / "report.html"
        self.rendezvous = self.path / "ranks"  # by which the ranks of the learner find one another
        self.beats = self.path / "beats"  # by which ranks say that they are alive (heartbeats.py)
        self.lock = self.path / "lock"  # held by the one command that works on the run (lock.py)
        self.now = self.path / "now"  # what each process of the run does, while it goes on
        self.checkpoint_wanted = self.path / "checkpoint-wanted"  # by which the learner is asked for one

    def log(self, role: str) -> Path:
        """What a role of the live clock said."""
        return self.path / f"{role}.log"

    def newest_checkpoint(self) -> Path | None:
        """The newest one, or None. Loading it verifies it."""
        return max(numbered_folders(self.checkpoints), key=lambda path: int(path.name), default=None)

    def versions(self) -> list[int]:
        """The policy versions whose weights are here, the newest last."""
        return [int(folder.name) for folder in numbered_folders(self.weights)]

    def weights_of(self, version: int) -> Path:
        """Where the weights of a version are, or would be."""
        return numbered_path(self.weights, version)
