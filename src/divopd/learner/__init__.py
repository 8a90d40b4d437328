"""Who trains: one update on one batch, and weights that can be given away, saved and loaded.

`Learner` is the seam between the training loop and torch: the loop imports no torch, and a second implementation needs
no cast.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from divopd.models.policy import Weights
from divopd.records import UpdateFigures
from divopd.turns import Turn
from divopd.validity import valid_mask, why_invalid


class Saving(Protocol):
    """A checkpoint on its way to the disk."""

    @property
    def done(self) -> bool:
        """Whether `wait` would return, or raise, at once."""
        ...

    def wait(self) -> None:
        """Until it is there; a CheckpointError says why it cannot be."""
        ...


class Saved:
    """A checkpoint that is there already."""

    done = True

    def wait(self) -> None:
        """At once."""


class Learner(Protocol):
    """Trains a student in place."""

    def update(self, turns: Sequence[Turn], weights: Sequence[float]) -> UpdateFigures:
        """Train on a batch, each row with its weight; an invalid turn is a dead row. If it raises, nothing changed."""
        ...

    def weights(self) -> Weights:
        """The student's weights as they are now; they may change with the next update."""
        ...

    def snapshot(self, dtype: str | None) -> Weights:
        """A copy of them on the CPU, which no later update changes; its fractions in `dtype`, or as they are."""
        ...

    def stream(self, dtype: str | None) -> Iterator[tuple[str, Any]]:
        """Them as they are now, one tensor at a time, where the learner computes; to be gone through to the end."""
        ...

    def kinds(self, dtype: str | None) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Type and shape of what `stream` yields, in its order."""
        ...

    def save(self, folder: Path, *, update: int, state: Mapping[str, Any]) -> "Saving":
        """Begin to write FOLDER/UPDATE with all that `load` needs, and `state` beside it, whole or not at all.

        Updates that follow do not change what is written. Wait for one before the next.
        """
        ...

    def load(self, path: Path) -> dict[str, Any]:
        """Go on from such a folder as if training had never stopped; returns the state that was saved with it."""
        ...


def figures_without_learning(turns: Sequence[Turn]) -> UpdateFigures:
    """What can be said of a batch that nobody trains on: its rows and tokens."""
    alive = [turn for turn in turns if why_invalid(turn) is None]
    tokens = sum(turn.tokens for turn in turns)
    return UpdateFigures(
        rows=len(turns),
        dead_rows=len(turns) - len(alive),
        valid_tokens=sum(sum(valid_mask(turn)) for turn in alive),
        tokens=tokens,
        computed_tokens=tokens,
        loss=0.0,
        learner_kl_per_token=0.0,
        gradient_norm=0.0,
        logprob_gap=None,
        seconds={},
    )


__all__ = ["Learner", "Saved", "Saving", "Weights", "figures_without_learning"]
