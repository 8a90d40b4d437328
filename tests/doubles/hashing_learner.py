"""A learner that hashes instead of learning: equal weights mean equal batches in equal order; needs no torch."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from divopd.learner import Saved, figures_without_learning
from divopd.records import UpdateFigures
from divopd.run.durable_folder import verify, write_folder
from divopd.turns import Turn, turn_to_json


class HashingLearner:
    """Its only weight is a digest of all rows that it was ever given."""

    def __init__(self) -> None:
        self.digest = ""
        self.asked: list[str] = []  # the calls, in order

    def update(self, turns: Sequence[Turn], weights: Sequence[float]) -> UpdateFigures:
        self.asked.append("update")
        whole = [turn_to_json(turn) | {"available_at": 0} for turn in turns]  # all of a turn but when it arrived
        rows = json.dumps(list(zip(whole, weights, strict=True)))
        self.digest = hashlib.sha256((self.digest + rows).encode()).hexdigest()
        return replace(figures_without_learning(turns), gradient_norm=1.0)

    def weights(self) -> dict[str, str]:
        self.asked.append("weights")
        return {"digest": self.digest}

    def snapshot(self, dtype: str | None) -> dict[str, str]:
        del dtype
        return dict(self.weights())

    def stream(self, dtype: str | None) -> Iterator[tuple[str, str]]:
        return iter(self.snapshot(dtype).items())

    def kinds(self, dtype: str | None) -> dict[str, tuple[str, tuple[int, ...]]]:
        return dict.fromkeys(self.snapshot(dtype), (dtype or "str", ()))

    def save(self, folder: Path, *, update: int, state: Mapping[str, Any]) -> Saved:
        self.asked.append("save")
        content = json.dumps({"digest": self.digest, "state": dict(state)})
        write_folder(folder, update, lambda target: (target / "learner.json").write_text(content), keep=2)
        return Saved()

    def load(self, path: Path) -> dict[str, Any]:
        self.asked.append("load")
        verify(path)
        content = json.loads((path / "learner.json").read_text())
        self.digest = content["digest"]
        return content["state"]
