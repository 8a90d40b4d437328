"""The student of a run at the versions whose weights it kept."""

from pathlib import Path
from typing import TYPE_CHECKING

from divopd.errors import InputError

if TYPE_CHECKING:
    from divopd.models.transformers_policy import TransformersPolicy


class RunPolicy:
    """A run's student, filled with the weights of one version at a time. `versions` are those that were kept."""

    def __init__(self, run: Path) -> None:
        from divopd.run.durable_folder import numbered_folders

        self.folder = run if run.is_dir() else run.parent
        self.versions = sorted(int(path.name) for path in numbered_folders(self.folder / "weights"))
        if not (self.folder / "config.yaml").is_file() or not self.versions:
            raise InputError(
                f"{run}: no weights of a policy version beside it, and this audit computes with them; expected the "
                "folder of a run of `divopd train`"
            )
        self._policy: TransformersPolicy | None = None

    def at(self, version: int) -> "TransformersPolicy":
        """The policy of a version; it is the same object every time, with other weights."""
        from divopd.run.checkpoints import load_weights
        from divopd.run.durable_folder import numbered_path

        if self._policy is None:
            self._policy = self._load()
        load_weights(numbered_path(self.folder / "weights", version), self._policy.model)
        return self._policy

    def _load(self) -> "TransformersPolicy":
        import torch

        from divopd.pipeline.models import load_student
        from divopd.run.folder import RunFolder
        from divopd.run.stored_config import load_run_config

        config = load_run_config(RunFolder(self.folder))
        torch.set_num_threads(config.threads)
        return load_student(config)
