"""The recorder of a pool: what arrived and what was trained, written as the run goes.

Two files: the turns, a recording that `replay` and the audits read (specification §2), and beside them the batches, one
object a line, so that what was really trained can become a run (`divopd replay TURNS.jsonl --recorded --out RUN`).
Lines are appended and handed to the system at once: a killed process leaves at most a last line that breaks off.
"""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from divopd.composers.composer import Candidate, Composer, Decision, Selection
from divopd.errors import InputError, StateError, TurnFormatError
from divopd.methods import make_composer
from divopd.rows import Row
from divopd.store import JournalEntry, Key, Store
from divopd.store.journal import decode_entry, encode_entry, entry_of
from divopd.turns import Turn, group_into_rollouts, json_lines, read_turns, turn_from_json, turn_to_json


class Recorder:
    """Appends to a recording. It begins a new one, or goes on with the one that a saved state of its pool tells of."""

    def __init__(self, path: Path | str) -> None:
        self.turns = Path(path)
        self.batches = batches_path(self.turns)
        self._sizes: dict[Path, int] | None = None  # in bytes; None until something is written or gone on with
        self._keys: set[Key] = set()
        self._composed = -1  # the last update

    def put(self, rows: Sequence[Row], *, available_at: int) -> None:
        """Write rows that have arrived; one that was written before is not written twice."""
        new = {row.key: row for row in rows if row.key not in self._keys}
        self._append(self.turns, [_record_of(row, max(available_at, row.version)) for row in new.values()])
        self._keys |= new.keys()

    def compose(self, decision: Decision, *, update: int, composer: Composer) -> None:
        """Write what one update trained, and what fell out; an update has one batch."""
        if update <= self._composed:
            raise InputError(f"update {update} was composed and recorded; a recording has one batch an update")
        entry = entry_of(decision, update=update, composer=composer, watermark=len(self._keys))
        settings, record = (json.loads(text) for text in encode_entry(entry))
        head = {"update": update, "arrived": entry.watermark, "settings": settings}
        self._append(self.batches, [head | record])
        self._composed = update

    def position(self) -> list[int]:
        """How long both files are: what a saved state must know to go on from here."""
        sizes = self._opened()
        return [sizes[self.turns], sizes[self.batches]]

    def go_on(self, position: Any) -> None:
        """Cut both files to what they were when a state was saved: what came later did not happen."""
        lengths: list[Any] = cast(list[Any], position) if isinstance(position, list) else []
        sizes: dict[Path, Any] = dict(zip((self.turns, self.batches), lengths, strict=False))
        found = {path: path.stat().st_size for path in sizes if path.is_file()}
        if len(sizes) < 2 or any(type(size) is not int or size > found.get(path, 0) for path, size in sizes.items()):
            raise StateError(
                f"{self.turns}: not the recording that the saved state goes on with (it was {position} bytes long); "
                "give the file of that run, or a pool that does not record"
            )
        for path in found:
            os.truncate(path, sizes[path])
        self._sizes = sizes
        self._keys = {turn.key for turn in read_turns(self.turns)} if sizes[self.turns] else set()
        self._composed = read_batches(self.turns)[-1].entry.update if sizes[self.batches] else -1

    def _append(self, path: Path, objects: Sequence[Any]) -> None:
        sizes = self._opened()
        data = b"".join(json.dumps(one, separators=(",", ":")).encode() + b"\n" for one in objects)
        try:
            with path.open("ab", buffering=0) as file:
                written = file.write(data)
            if written != len(data):
                raise OSError(0, f"only {written} of {len(data)} bytes")
        except OSError as error:
            if path.is_file():
                os.truncate(path, sizes[path])
            raise InputError(f"{path}: cannot write the recording ({error.strerror}); make room there") from None
        sizes[path] += len(data)

    def _opened(self) -> dict[Path, int]:
        if self._sizes is None:
            for path in (self.turns, self.batches):
                if path.exists() and path.stat().st_size:
                    raise InputError(
                        f"{path}: holds a recording already; choose another file, or load the state of its run first"
                    )
            self._sizes = {self.turns: 0, self.batches: 0}
        return self._sizes


def batches_path(turns: Path) -> Path:
    """Where the batches of a recording are: turns.batches.jsonl beside turns.jsonl."""
    return turns.with_name(f"{turns.stem}.batches.jsonl")


def _record_of(row: Row, available_at: int) -> dict[str, Any]:
    """The line of a row; what no reader would take is refused before it is written."""
    source = row.measured.source
    if source is None:
        raise InputError(
            f"rollout {row.rollout!r} turn {row.turn}: there are no lists to record; make `measured` by measure() in "
            "the process of the pool, or a pool that does not record"
        )
    ids = {name: _ids(getattr(source, name)) for name in ("prompt_ids", "response_ids")}
    success = source.success if row.success is None else row.success
    turn = replace(
        source,
        rollout=row.rollout,
        turn=row.turn,
        task=row.task,
        version=row.version,
        available_at=available_at,
        success=success,
        **ids,
    )
    record = turn_to_json(turn)
    turn_from_json(record, where="recording")
    return record


def _ids(ids: Sequence[int]) -> Sequence[int]:
    """Token ids; where only their number is known, as many zeros: no composer looks at them."""
    return [0] * len(ids) if isinstance(ids, range) else ids


# ── reading it again ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Composed:
    """One batch as it was recorded, and how many turns had been recorded before it."""

    arrived: int
    entry: JournalEntry


def read_batches(turns: Path) -> list[Composed]:
    """The batches beside a recording, in order; a broken line stops it, one that breaks off at the end is left out."""
    path = batches_path(turns)
    if not path.is_file():
        raise InputError(f"{path}: no such file; expected what a pool that records `{turns}` has trained, beside it")
    found: list[Composed] = []
    for _, where, line in json_lines(path):
        composed = _composed(line, where=where)
        last = found[-1] if found else Composed(0, replace(composed.entry, update=-1))
        if composed.entry.update <= last.entry.update or composed.arrived < last.arrived:
            raise TurnFormatError(
                f"{where}: update {composed.entry.update} follows {last.entry.update}; expected rising ones"
            )
        found.append(composed)
    return found


def _composed(line: Any, *, where: str) -> Composed:
    try:
        update, arrived = int(line["update"]), int(line["arrived"])
        settings, record = (json.dumps(part).encode() for part in (line["settings"], line))
        return Composed(arrived, decode_entry(settings, record, update=update, watermark=arrived))
    except (TypeError, KeyError, ValueError) as error:
        raise TurnFormatError(f"{where}: not a batch that a pool recorded ({error})") from None


# ── a run of it ──────────────────────────────────────────────────────────────────────────────────────────────────────


class _Recorded(Composer):
    """Decides as a pool did. Updates that it did not compose train nothing, and nothing falls out at them."""

    def __init__(self, entry: JournalEntry | None, composer: Composer) -> None:
        super().__init__(composer.settings, weights=composer.weights)
        self._composer, self._entry = composer, entry

    def select(self, pool: list[Candidate], *, update: int) -> Selection:
        by_key = {candidate.key: candidate for candidate in pool}
        if self._entry is None:
            return Selection([], [])
        return Selection([by_key[key] for key in self._entry.selected], self._entry.passes)

    def read(self, queue: Iterable[Any], *, update: int, pending: Iterable[Any]) -> list[Any]:
        """As the pool did; further where the turns of a rollout arrived apart and are together in the store."""
        if self._entry is None:
            return []
        turns, waiting = list(queue), list(pending)
        read = self._composer.read(turns, update=update, pending=waiting)
        known = {turn.key for turn in (*waiting, *read)}
        return read if all(key in known for key in _named(self._entry)) else turns

    def decide(self, pool: Sequence[Candidate], *, update: int) -> Decision:
        entry, by_key = self._entry, {candidate.key: candidate for candidate in pool}
        if entry is None:
            return Decision([], [], [], [], [], [], list(pool))
        named = set(_named(entry))
        if unknown := named - by_key.keys():
            raise InputError(f"update {update}: {min(unknown)} was not there yet; this recording cannot become a run")
        selected, passes = self.select(list(pool), update=update)
        stale, aged_out = ([by_key[key] for key in keys] for keys in (entry.stale, entry.aged_out))
        invalid = [by_key[rollout, turn] for rollout, turn, _ in entry.invalid]
        left = [candidate for candidate in pool if candidate.key not in named]
        return Decision(selected, entry.weights, passes, stale, invalid, aged_out, left)


def _named(entry: JournalEntry) -> list[Key]:
    """The turns that left the pool with an update."""
    return [*entry.selected, *entry.stale, *entry.aged_out, *((name, turn) for name, turn, _ in entry.invalid)]


def journal_recorded(path: Path, *, run: Path) -> int:
    """Make a run of what a pool recorded, with the batches that it really trained; returns how many updates.

    A rollout whose turns arrived apart arrives with its first one. An update that was skipped is an empty batch.
    """
    turns, batches = read_turns(path), {one.entry.update: one for one in read_batches(path)}
    updates = max(batches, default=-1) + 1
    arrival = _arrivals(turns, list(batches.values()), updates=updates)
    run.mkdir(mode=0o700, parents=True, exist_ok=True)
    with Store.create(run / "store.db", synchronous="NORMAL") as store:
        last = 0
        for rollout in group_into_rollouts(turns):
            first = min(arrival[turn.key] for turn in rollout.turns)
            last = max(last, first, *(turn.version for turn in rollout.turns))
            store.put(rollout, available_at=last)
        epoch = store.begin_learner()
        gone: set[Key] = set()
        for update in range(updates):
            known = update in batches
            entry = batches[min(number for number in batches if number >= update)].entry
            # what was put again long after it had left was told as stale once more
            entry = replace(entry, stale=[key for key in entry.stale if key not in gone])
            gone |= set(_named(entry)) if known else set()
            composer = make_composer(**asdict(entry.settings))
            store.compose(_Recorded(entry if known else None, composer), update=update, epoch=epoch)
    return updates


def _arrivals(turns: list[Turn], batches: list[Composed], *, updates: int) -> dict[Key, int]:
    """The first composed update for which each turn was there."""
    arrival: dict[Key, int] = {}
    for composed in batches:
        for turn in turns[len(arrival) : composed.arrived]:
            arrival[turn.key] = composed.entry.update
    return arrival | {turn.key: updates for turn in turns[len(arrival) :]}
