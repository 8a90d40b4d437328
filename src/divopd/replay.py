"""The replay lab: any composer re-run on recorded experience, so that all of them see the same turns.

A replay never waits: at update q the reader sees the turns with `available_at` ≤ q in recorded order, so a batch may be
short or empty. Versions are taken as recorded.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path
from typing import NamedTuple

from divopd.composers.adaptive import offline_bound
from divopd.composers.composer import Candidate, Composer, Decision, candidate_of
from divopd.errors import InputError, TurnFormatError
from divopd.methods import find_method
from divopd.metrics import Utilization, utilization
from divopd.store import Store, is_store
from divopd.turns import Turn, group_into_rollouts, read_turns

MAX_UPDATES = 1_000_000  # of a recording: a replay goes through all of them
UNSEEN = -1  # first_seen of a turn that is still in the queue


class Recorded(NamedTuple):
    """A turn as the recording has it: when it came, how its rollout ended."""

    candidate: Candidate
    available_at: int
    success: bool | None


@dataclass(frozen=True)
class Recording:
    """Turns in recorded order, and how many updates the recorded run made."""

    turns: list[Recorded]
    updates: int


def load_recording(path: Path | str) -> Recording:
    """A run's folder, its store, or a JSON-lines file. Of a store no more than one stretch of tokens is in memory."""
    path = _existing(path)
    if path.is_dir() or is_store(path):
        with Store.open_read_only(path) as store:
            return recording_of(store.turns(), updates=store.updates)
    return recording_of(read_turns(path))


def load_turns(path: Path | str) -> tuple[list[Turn], int]:
    """The whole turns of a recording in recorded order, and its own number of updates (0: the file does not say)."""
    path = _existing(path)
    if path.is_dir() or is_store(path):
        with Store.open_read_only(path) as store:
            return list(store.turns()), store.updates
    return read_turns(path), 0


def _existing(path: Path | str) -> Path:
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path}: no such run or recording; expected a run's folder, a store.db or a .jsonl file")
    return path


def recording_of(turns: Iterable[Turn], *, updates: int = 0) -> Recording:
    """A recording from turns in arrival order; without a number of updates, those in which something could arrive."""
    recorded = [Recorded(candidate_of(turn, first_seen=UNSEEN), turn.available_at, turn.success) for turn in turns]
    last = max(recorded, key=lambda entry: entry.available_at, default=None)
    if last is not None and last.available_at >= MAX_UPDATES:
        raise TurnFormatError(
            f"rollout {last.candidate.rollout!r} turn {last.candidate.turn}: available_at is {last.available_at}; "
            f"expected an update below {MAX_UPDATES:,}, the most that a recording may have"
        )
    return Recording(recorded, updates or (last.available_at + 1 if last else 0))


def weighed_by_batch(recording: Recording, methods: Iterable[str]) -> str | None:
    """What to tell of methods whose row weights want to know whole rollouts, where turns do not tell; else None."""
    weighing = [name for name in methods if find_method(name).weighs_by_rollout]
    known = [(entry.candidate.rollout_turns, entry.candidate.rollout_valid_tokens) for entry in recording.turns]
    silent = sum(None in of_rollout for of_rollout in known)
    if not weighing or not silent:
        return None
    return (
        f"{silent} of {len(known)} turns lack rollout_turns or rollout_valid_tokens: {' and '.join(weighing)} weighs "
        "them by the rows of their rollout in the batch"
    )


def replay(recording: Recording, composer: Composer, *, updates: int | None = None) -> Iterator[Decision]:
    """One decision an update."""
    arriving: dict[int, list[int]] = {}
    for position, entry in enumerate(recording.turns):
        arriving.setdefault(entry.available_at, []).append(position)
    queue: list[int] = []  # a heap: recorded order, also where a recording is not sorted by available_at
    pending: list[Candidate] = []
    for update in range(recording.updates if updates is None else updates):
        for position in arriving.get(update, ()):
            heappush(queue, position)
        unread = (recording.turns[heappop(queue)].candidate._replace(first_seen=update) for _ in range(len(queue)))
        fresh = composer.read(unread, update=update, pending=pending)
        decision = composer.decide([*pending, *fresh], update=update)
        pending = decision.pending
        yield decision


def bound(recording: Recording, *, batch_size: int, max_staleness: int, updates: int) -> int:
    """How many valid rollouts any composer could have given a slot (specification §4.4)."""
    windows: dict[str, tuple[int, int]] = {}
    for candidate, available_at, _ in recording.turns:
        if candidate.reason is None:
            first, last = windows.get(candidate.rollout, (available_at, -1))
            windows[candidate.rollout] = min(first, available_at), max(last, candidate.version + max_staleness)
    return offline_bound(windows.values(), batch_size=batch_size, updates=updates)


def utilization_of(
    recording: Recording, decisions: list[Decision], *, batch_size: int, max_staleness: int
) -> Utilization:
    """What a replay used of the experience that was there for it, beside the bound."""
    updates = len(decisions)
    available = [entry.candidate for entry in recording.turns if entry.available_at < updates]
    reachable = bound(recording, batch_size=batch_size, max_staleness=max_staleness, updates=updates)
    return utilization(available, [c for d in decisions for c in d.selected], reachable=reachable)


def journal_replay(turns: list[Turn], composer: Composer, *, updates: int, run: Path) -> None:
    """Make a replay a run of its own, so that explain, why and audit can look at it.

    A store takes rollouts whole and in order of arrival; a recording that has them otherwise is refused.
    """
    rollouts = group_into_rollouts(turns)
    if [turn.key for rollout in rollouts for turn in rollout.turns] != [turn.key for turn in turns]:
        raise InputError("this recording has the turns of a rollout apart or out of order; it cannot become a run")
    run.mkdir(mode=0o700, parents=True, exist_ok=True)
    with Store.create(run / "store.db", synchronous="NORMAL") as store:
        for rollout in rollouts:
            store.put(rollout, available_at=rollout.turns[-1].available_at)
        epoch = store.begin_learner()
        for update in range(updates):
            store.compose(composer, update=update, epoch=epoch)
