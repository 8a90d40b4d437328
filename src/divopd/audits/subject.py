"""What an audit looks at: the recording of a run or of a file, and the composer's numbers that go with it."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from divopd.composers import Composer, Settings
from divopd.methods import METHODS
from divopd.replay import Recorded, Recording, recording_of
from divopd.store import Store, is_store
from divopd.store.journal import Key
from divopd.turns import Turn, read_turns

NO_CAP = ", no cap"  # ends the name of a method that is taken without its cap
DEPTHS = {"< 2": range(2), "2–3": range(2, 4), "4–5": range(4, 6), "6–9": range(6, 10), "≥ 10": range(10, 10**9)}


@dataclass(frozen=True)
class Subject:
    """A run or a recording; `settings` are the run's own, or the paper's for a file."""

    name: str
    path: Path
    recording: Recording
    settings: Settings
    first: int | None  # only turns that were there for that many first updates
    file: list[Turn] | None  # the turns of a file; those of a run are read when they are asked for

    def whole_turns(self) -> Iterator[Turn]:
        """Every turn with its tokens. Of a run no more than one stretch of them is in memory."""
        if self.file is not None:
            yield from self.file
            return
        with Store.open_read_only(self.path) as store:
            yield from (turn for turn in store.turns() if self.first is None or turn.available_at < self.first)

    def whole(self, keys: Collection[Key]) -> dict[Key, Turn]:
        """These turns with their tokens."""
        if self.file is not None:
            wanted = set(keys)
            return {turn.key: turn for turn in self.file if turn.key in wanted}
        with Store.open_read_only(self.path) as store:
            return {turn.key: store.whole(turn) for turn in store.find(keys)}

    @property
    def turns(self) -> list[Turn]:
        """All of them at once."""
        return list(self.whole_turns())

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
    file = None
    if is_run(path):
        with Store.open_read_only(path) as store, store.snapshot():
            recording = recording_of(store.turns(), updates=store.updates)
            settings = store.journal(0).settings if store.updates else Settings("divopd")
    else:
        file, settings = read_turns(path), Settings("divopd")
        recording = recording_of(file)
    settings = replace(settings, **({"total_updates": recording.updates} | changes))
    if first is not None:
        file = None if file is None else [turn for turn in file if turn.available_at < first]
        there = [entry for entry in recording.turns if entry.available_at < first]
        recording = Recording(there, min(first, recording.updates) or _updates_of(there))
    return Subject(name or path.resolve().name, path, recording, settings, first, file)


def _updates_of(turns: list[Recorded]) -> int:
    return max((entry.available_at for entry in turns), default=-1) + 1


def depth_of(turn: int) -> str:
    """The row of the paper's depth table in which a turn falls."""
    return next(label for label, depths in DEPTHS.items() if turn in depths)
