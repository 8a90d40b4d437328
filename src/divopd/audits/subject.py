"""What an audit looks at: the recording of a run or of a file, and the composer's numbers that go with it."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from divopd.composers import Composer, Settings
from divopd.methods import METHODS
from divopd.replay import Recording, recording_of
from divopd.store import Store, is_store
from divopd.turns import Turn, read_turns

NO_CAP = ", no cap"  # ends the name of a method that is taken without its cap
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
        """A composer of this method with the subject's numbers, without a cap where the name ends so."""
        method = name.removesuffix(NO_CAP)
        settings = replace(self.settings, method=method)
        return METHODS[method].make_composer(settings if method == name else replace(settings, cap=None))


def is_run(path: Path) -> bool:
    """Whether this is a run's folder or its store, not a recording as JSON lines."""
    return path.is_dir() or is_store(path)


def load_subject(path: Path, *, name: str | None = None, first: int | None = None, **changes: Any) -> Subject:
    """Read a run's folder, its store, or JSON lines; `changes` replace numbers of the composer.

    With `first`, only the turns that were there for that many first updates, as if the recording ended with them.
    """
    if is_run(path):
        with Store.open_read_only(path) as store, store.snapshot():
            turns, updates = list(store.turns()), store.updates
            settings = store.journal(0).settings if updates else Settings("divopd")
    else:
        turns, updates, settings = read_turns(path), 0, Settings("divopd")
    recording = recording_of(turns, updates=updates)
    settings = replace(settings, **({"total_updates": recording.updates} | changes))
    if first is not None:
        turns = [turn for turn in turns if turn.available_at < first]
        recording = recording_of(turns, updates=min(first, recording.updates))
    return Subject(name or path.resolve().name, path, turns, recording, settings)


def depth_of(turn: int) -> str:
    """The row of the paper's depth table in which a turn falls."""
    return next(label for label, depths in DEPTHS.items() if turn in depths)
