"""Who trains: one update on one batch, and weights that can be given away, saved and loaded.

`Learner` is the seam between the training loop and torch: the loop imports no torch, and a second implementation needs
no cast.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from divopd.models.policy import Weights
from divopd.records import UpdateFigures
from divopd.turns import Turn


class Learner(Protocol):
    """Trains a student in place."""

    def update(self, turns: Sequence[Turn], weights: Sequence[float]) -> UpdateFigures:
        """Train on a batch, each row with its weight; an invalid turn is a dead row. If it raises, nothing changed."""
        ...

    def weights(self) -> Weights:
        """The student's weights as they are now; they may change with the next update."""
        ...

    def save(self, folder: Path, *, update: int, state: Mapping[str, Any]) -> None:
        """Write FOLDER/UPDATE with all that `load` needs, and `state` beside it, whole or not at all."""
        ...

    def load(self, path: Path) -> dict[str, Any]:
        """Go on from such a folder as if training had never stopped; returns the state that was saved with it."""
        ...


__all__ = ["Learner", "Weights"]
