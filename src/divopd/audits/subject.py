"""What an audit looks at: the recording of a run or of a file, and the composer's numbers that go with it."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from divopd.composers import Composer, Settings
from divopd.methods import METHODS
from divopd.replay import Recording, recording_of
from divopd.store import Store, is_store
from divopd.turns import Turn, read_turns

NO_CAP = "divopd-base, no cap"
DEPTHS = {"< 2": range(2), "2–3": range(2, 4), "4–5": range(4, 6), "6–9": range(6, 10), "≥ 10": range(10, 10**9)}


@dataclass(frozen=True)
class Subject:
    """A run or a recording. `turns` are whole; `settings` are the run's own, or the paper's for a file."""

    name: str
    path: Path
    turns: list[Turn]
    recording: Recording
    settings: Settings

    def composer(self, name: str) -> Composer:
        """A composer of this name with the subject's numbers; NO_CAP is divopd-base without its cap."""
        if name == NO_CAP:
            return METHODS["divopd-base"].make_composer(replace(self.settings, method="divopd-base", cap=None))
        return METHODS[name].make_composer(replace(self.settings, method=name))


def load_subject(path: Path, *, name: str | None = None, **changes: Any) -> Subject:
    """Read a run's folder, its store, or JSON lines; `changes` replace numbers of the composer."""
    if path.is_dir() or is_store(path):
        with Store.open_read_only(path) as store, store.snapshot():
            turns, updates = list(store.turns()), store.updates
            settings = store.journal(0).settings if updates else Settings("divopd")
    else:
        turns, updates, settings = read_turns(path), 0, Settings("divopd")
    recording = recording_of(turns, updates=updates)
    settings = replace(settings, **({"total_updates": recording.updates} | changes))
    return Subject(name or path.resolve().name, path, turns, recording, settings)


def depth_of(turn: int) -> str:
    """The row of the paper's depth table in which a turn falls."""
    return next(label for label, depths in DEPTHS.items() if turn in depths)
