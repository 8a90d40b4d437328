"""Runs of `divopd train` with the recording doubles, and what can be seen of a run from outside.

    run = train(tmp_path / "run", settings(student, teacher=teacher.url, method="divopd-r"))
    run.asked("train")     # what the rooms were asked in training, rollout by rollout
    run.turns()            # the rows, by `divopd export`
    run.metrics("update")  # the figures of metrics.jsonl

Only what a user can see is used here, so that the tests stay as they are when the code behind moves.
"""

import json
import os
import sqlite3
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from divopd.cli import main
from divopd.store import Store
from divopd.turns import Turn, read_turns
from recording_rooms import RUN, recorded

ROOMS = Path(__file__).with_name("recording_rooms.py")


@dataclass(frozen=True)
class Asked:
    """One rollout as a room saw it: its task, what it said (the first text is the reset's), what it heard."""

    task: str
    texts: list[str]
    actions: list[str]
    published: list[int]  # the newest version in the run's folder at the reset and at each step


@dataclass(frozen=True)
class RecordedRun:
    """A run's folder, from outside. `code` is what `divopd train` exited with."""

    folder: Path
    code: int

    def asked(self, split: str) -> list[Asked]:
        """What the rooms were asked with tasks of a split: rollouts in the order in which they began."""
        rollouts: dict[str, Asked] = {}
        for line in recorded(self.folder):
            if not line["task"].startswith(f"{split}-"):
                continue
            one = rollouts.setdefault(line["rollout"], Asked(line["task"], [], [], []))
            one.texts.append(line["text"])
            one.published.append(line["published"])
            if line["event"] == "step":
                one.actions.append(line["action"])
        return list(rollouts.values())

    def metrics(self, kind: str) -> dict[int, dict[str, Any]]:
        """The figures of `update` by update, or of `evaluation` by version."""
        lines = map(json.loads, (self.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
        return {line["update" if kind == "update" else "version"]: line for line in lines if line["kind"] == kind}

    def turns(self) -> list[Turn]:
        """All rows, in arrival order."""
        file = self.folder.with_name(f"{self.folder.name}.turns.jsonl")
        assert main(["export", str(self.folder), str(file), "--force"]) == 0
        return list(read_turns(file))

    def rollouts(self) -> dict[str, list[Turn]]:
        """The rows of each rollout."""
        found: dict[str, list[Turn]] = {}
        for turn in self.turns():
            found.setdefault(turn.rollout, []).append(turn)
        return found

    def batches(self) -> list[list[Turn]]:
        """The rows of every journalled update, in the order of training."""
        with Store.open(self.folder) as store:
            return [list(store.batch(update).turns) for update in range(store.updates)]

    def fates(self) -> Counter[str]:
        """How many turns have which fate."""
        with closing(sqlite3.connect(self.folder / "store.db")) as store:
            return Counter(fate for (fate,) in store.execute("SELECT fate FROM turns"))

    def weights(self, version: int) -> Path:
        """The folder of a published policy version."""
        return self.folder / "weights" / f"{version:06d}"


def settings(student: Path, *, teacher: Path | str, room: str = "Room", **changes: Any) -> dict[str, Any]:
    """The configuration of a small run; `teacher` is a folder or a url. Sections in `changes` are merged into it."""
    served = {"url": teacher, "model": "teacher"} if isinstance(teacher, str) else {"model": str(teacher)}
    data: dict[str, Any] = {
        "method": "vanilla",
        "clock": "simulated",
        "environment": {"name": f"{ROOMS}:{room}", "horizon": 4, "workers": 0},  # rooms may kill whoever plays
        "prompts": {"answer": "terse", "actions": "unlisted", "max_prompt_tokens": 200},
        "student": {"model": str(student)},
        "teacher": served,
        "composer": {"batch_size": 8, "max_staleness": 100},
        "learner": {"updates": 3, "lr": 1e-2, "max_grad_norm": 1e6},
        "explorer": {"rollouts_in_flight": 3, "max_response_tokens": 3},
        "evaluation": {"every": 1, "tasks": 3},
    }
    for name, value in changes.items():
        old = data.get(name)
        data[name] = {**old, **value} if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return data


def write_config(folder: Path, config: Mapping[str, Any]) -> Path:
    """The configuration as a file beside the run's folder."""
    file = folder.with_name(f"{folder.name}.yaml")
    file.write_text(yaml.safe_dump(dict(config)), encoding="utf-8")
    return file


def train(folder: Path, config: Mapping[str, Any]) -> RecordedRun:
    """Run `divopd train` to its end in this process (the roles of the live clock are processes of their own)."""
    return _run(folder, ["train", str(write_config(folder, config)), "--out", str(folder)])


def resume(folder: Path) -> RecordedRun:
    """Go on with a run by `divopd train --resume`."""
    return _run(folder, ["train", "--resume", str(folder)])


def _run(folder: Path, arguments: list[str]) -> RecordedRun:
    before = os.environ.get(RUN)
    os.environ[RUN] = str(folder)
    try:
        return RecordedRun(folder, main(arguments))
    finally:
        os.environ.pop(RUN) if before is None else os.environ.update({RUN: before})
