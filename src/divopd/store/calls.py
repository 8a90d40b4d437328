"""What agent programs asked and were answered, call by call (specification §6.6).

An intent is written before a response is generated and a record before it is sent. An attempt at a rollout with an
intent that has no record is incomplete: whoever played it died meanwhile, and none of its turns was offered.
"""

from dataclasses import dataclass, fields
from typing import Any

from divopd.records import ProgramFigures
from divopd.store.journal import to_json_bytes
from divopd.store.leases import Leases
from divopd.store.reader import LAST, RecordKind, StoreReader

Json = dict[str, Any]
MOST_ATTEMPTS, MOST_CALLS = 2**8, 2**16  # of a rollout, of an attempt


@dataclass(frozen=True)
class CallAttempt:
    """One attempt at a rollout. `calls` are the records by call, None where there is only an intent.

    `ended` says how it ended; None: nobody knows, it was broken off from outside.
    """

    number: int
    begun: Json
    calls: dict[int, Json | None]
    ended: Json | None

    @property
    def is_complete(self) -> bool:
        return self.ended is not None and None not in self.calls.values()


class CallLog(Leases):
    """The part of a store where explorers keep the calls of programs."""

    def begin_attempt(self, rollout: int, begun: Json) -> int:
        """Begin another attempt at a rollout; its number, from 1 on."""
        with self._transaction():
            last = self._one(
                "SELECT max(number) FROM records WHERE kind = 'attempt' AND number BETWEEN ? AND ?", *_span(rollout)
            )
            attempt = 1 if last is None else _attempt_of(last) + 1
            self._insert_record("attempt", _place(rollout, attempt), to_json_bytes(begun))
        return attempt

    def intend_call(self, rollout: int, attempt: int, call: int, intent: Json) -> None:
        """A response is about to be generated."""
        self._write("call_intent", _place(rollout, attempt, call), intent)

    def record_call(self, rollout: int, attempt: int, call: int, record: Json) -> None:
        """A response is about to be sent."""
        self._write("call", _place(rollout, attempt, call), record)

    def end_attempt(self, rollout: int, attempt: int, ended: Json) -> None:
        """The program has ended, or was killed. Its `counts` are kept by themselves: a sum over a run reads no more."""
        place, counts = _place(rollout, attempt), ended.get("counts", {})
        with self._transaction():
            self._insert_record("attempt_end", place, to_json_bytes(ended))
            self._insert_record("attempt_counts", place, to_json_bytes(counts))

    def _write(self, kind: RecordKind, number: int, data: Json) -> None:
        with self._transaction():
            self._insert_record(kind, number, to_json_bytes(data))


def read_attempts(store: StoreReader, rollout: int) -> list[CallAttempt]:
    """Every attempt at a rollout with its calls, in order; none for a rollout of an ordinary environment."""
    kinds: tuple[RecordKind, ...] = ("attempt", "call_intent", "call", "attempt_end")
    with store.snapshot():
        begun, intents, records, ends = (store.plain_records(kind, *_span(rollout)) for kind in kinds)
    return [
        CallAttempt(
            _attempt_of(number),
            begun[number],
            {place - number: records.get(place) for place in intents if number <= place < number + MOST_CALLS},
            ends.get(number),
        )
        for number in begun
    ]


def program_figures(store: StoreReader) -> ProgramFigures | None:
    """What the programs of a run asked for and heard so far; None where none has ended, as in other environments."""
    counted = store.plain_records("attempt_counts", 0, LAST)
    names = [field.name for field in fields(ProgramFigures) if field.name != "attempts"]
    sums = {name: sum(one.get(name, 0) for one in counted.values()) for name in names}
    return ProgramFigures(attempts=len(counted), **sums) if counted else None


def count_incomplete(store: StoreReader) -> int:
    """Attempts with an intent that has no record."""
    with store.snapshot():
        intents, records = (store.record_numbers(kind) for kind in ("call_intent", "call"))
    return len({number // MOST_CALLS for number in intents - records})


def _place(rollout: int, attempt: int, call: int = 0) -> int:
    assert 0 < attempt < MOST_ATTEMPTS, f"attempt {attempt} at rollout {rollout}"
    assert call < MOST_CALLS, f"call {call} of rollout {rollout}"
    return (rollout * MOST_ATTEMPTS + attempt) * MOST_CALLS + call


def _span(rollout: int) -> tuple[int, int]:
    first = rollout * MOST_ATTEMPTS * MOST_CALLS
    return first, first + MOST_ATTEMPTS * MOST_CALLS - 1


def _attempt_of(place: int) -> int:
    return place // MOST_CALLS % MOST_ATTEMPTS
