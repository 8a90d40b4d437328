"""What the store says about turns and updates: plain data, and the JSON of a journal entry."""

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

from divopd.composers.composer import Candidate, Composer, Decision, Settings
from divopd.errors import InputError
from divopd.turns import Fate, FateKind, Turn
from divopd.validity import Reason

Key = tuple[str, int]


class StoredTurn(NamedTuple):
    """A turn in the store without its tokens: what was measured at `put`, and what became of it."""

    arrival: int
    rollout: str
    turn: int
    task: str
    version: int  # of the policy that generated this turn
    available_at: int
    reason: Reason | None
    disagreement: float
    tokens: int
    valid_tokens: int
    rollout_turns: int | None
    rollout_valid_tokens: int | None
    first_seen: int | None  # None: never in a pool
    fate: Fate

    @property
    def key(self) -> Key:
        return self.rollout, self.turn

    def candidate(self, *, update: int) -> Candidate:
        """The turn as a composer sees it at this update: a fresh turn is first seen now."""
        seen = update if self.first_seen is None else self.first_seen
        return Candidate(*self[1:5], seen, *self[6:12])  # the same fields in the same order, but for available_at


class Account(NamedTuple):
    """Where all turns are. `put` counts the turns that rollouts declared, the others the fates of the turns."""

    put: int
    trained: int
    invalid: int
    stale: int
    aged_out: int
    pending: int
    queued: int

    @property
    def adds_up(self) -> bool:
        return self.put == sum(self[1:])


class Arrived(NamedTuple):
    """What has been produced: rollouts and turns that were put, and the tokens that explorers and teacher spent."""

    rollouts: int
    turns: int
    generated_tokens: int
    scored_tokens: int


class Decided(NamedTuple):
    """Rollouts that one update decided about: it was the first to train them, or they left without a trained turn.

    Only rollouts with a valid turn count, and only valid turns are trained ones; every rollout is decided once.
    `drained` are the turns that the update read into its pool; those that were stale when it came to them are not.
    `pending` are those that it left there: read by it or earlier, and still not decided about.
    """

    used: int
    unused: int
    drained: int
    pending: int


@dataclass(frozen=True)
class JournalEntry:
    """One composed batch: all that was decided, by which settings, and how far the queue had been read."""

    update: int
    settings: Settings
    watermark: int  # arrival number of the last turn read
    selected: list[Key]
    weights: list[float]
    passes: list[int]
    stale: list[Key]
    invalid: list[tuple[str, int, str]]  # with the reason
    aged_out: list[Key]


@dataclass(frozen=True)
class JournaledBatch:
    """A batch to train on, as the journal has it. The digest is a checksum over its entry and every earlier one."""

    entry: JournalEntry
    digest: str
    turns: list[Turn]
    candidates: list[Candidate]

    @property
    def update(self) -> int:
        return self.entry.update

    @property
    def weights(self) -> list[float]:
        return self.entry.weights

    @property
    def passes(self) -> list[int]:
        return self.entry.passes


def entry_of(decision: Decision, *, update: int, composer: Composer, watermark: int) -> JournalEntry:
    """The journal entry of a decision, as it will be read."""
    return JournalEntry(
        update=update,
        settings=composer.settings,
        watermark=watermark,
        selected=[c.key for c in decision.selected],
        weights=list(map(float, decision.weights)),
        passes=list(map(int, decision.passes)),
        stale=[c.key for c in decision.stale],
        invalid=[(c.rollout, c.turn, str(c.reason)) for c in decision.invalid],
        aged_out=[c.key for c in decision.aged_out],
    )


def exits_of(decision: Decision) -> dict[FateKind, list[Candidate]]:
    """The candidates that leave the pool at this update, by their fate."""
    return {
        "trained": decision.selected,
        "stale": decision.stale,
        "invalid": decision.invalid,
        "aged_out": decision.aged_out,
    }


def encode_entry(entry: JournalEntry) -> tuple[bytes, bytes]:
    """(settings, record) as JSON; update and watermark are columns of their own."""
    record = {
        "selected": [[*key, w, p] for key, w, p in zip(entry.selected, entry.weights, entry.passes, strict=True)],
        "stale": entry.stale,
        "invalid": entry.invalid,
        "aged_out": entry.aged_out,
    }
    return to_json_bytes(vars(entry.settings)), to_json_bytes(record)


def decode_entry(settings: bytes, record: bytes, *, update: int, watermark: int) -> JournalEntry:
    """The entry of two JSON texts; anything that is not one raises a ValueError."""
    try:
        fields = json.loads(record)
        selected = [(_key(row[:2]), float(row[2]), int(row[3])) for row in fields["selected"]]
        return JournalEntry(
            update=update,
            settings=Settings(**json.loads(settings)),
            watermark=watermark,
            selected=[key for key, _, _ in selected],
            weights=[weight for _, weight, _ in selected],
            passes=[number for _, _, number in selected],
            stale=[_key(row) for row in fields["stale"]],
            invalid=[(*_key(row[:2]), str(row[2])) for row in fields["invalid"]],
            aged_out=[_key(row) for row in fields["aged_out"]],
        )
    except (TypeError, KeyError, IndexError, RecursionError, InputError) as error:
        raise ValueError(f"not a journal entry ({error})") from None


def to_json_bytes(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def _key(row: list[Any]) -> Key:
    rollout, turn = row
    if not isinstance(rollout, str) or not isinstance(turn, int):
        raise TypeError("a key is a rollout and a turn")
    return rollout, turn
