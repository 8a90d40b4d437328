"""The state of a pool as JSON types: a few numbers a row, read again with every check."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple, cast

from divopd.composers.composer import Settings
from divopd.errors import InputError, StateError
from divopd.rows import Measured, Row, checked
from divopd.turns import Fate

STATE_FORMAT = 1
UNSEEN = -1  # first_seen of a row that is still in the queue
Key = tuple[str, int]
Encode = Callable[[Any], Any]  # a payload as JSON types, and back


class Left(NamedTuple):
    """A row that left the pool, without its payload, and what became of it."""

    row: Row
    fate: Fate


class Loaded(NamedTuple):
    """A state, read and checked."""

    pending: list[tuple[Row, int]]
    queued: list[tuple[Row, int]]
    left: list[Left]
    missing: set[Key]
    composed: int

    @classmethod
    def of(cls, state: dict[str, Any], decode: Encode | None, *, settings: Settings) -> "Loaded":
        """What a pool of these settings goes on with; anything else is a StateError."""
        _check_settings(state, settings)
        try:
            return cls._read(state, decode)
        except (KeyError, TypeError, ValueError, IndexError, InputError) as error:
            raise StateError(f"this is no state of a pool ({error!r}); pass what state_dict() gave") from None

    @classmethod
    def _read(cls, state: dict[str, Any], decode: Encode | None) -> "Loaded":
        names = [str(name) for name in state["names"]]
        pending, queued = ([row_of_state(entry, names) for entry in state[part]] for part in ("pending", "queued"))
        held = [row.key for row, _ in (*pending, *queued)]
        if len(set(held)) < len(held):
            raise ValueError("a row occurs twice")
        payloads = state.get("payloads") if decode is not None else None
        if payloads is not None and decode is not None:
            known = {key: decode(saved[0]) for key, saved in zip(held, payloads, strict=True) if saved is not None}
        else:
            known = {}
        pending, queued = (
            [(replace(row, payload=known.get(row.key)), seen) for row, seen in part] for part in (pending, queued)
        )
        left = [Left(row_of_state(entry[:-3], names)[0], Fate(*entry[-3:])) for entry in state["left"]]
        return cls(pending, queued, left, set(held) - known.keys(), int(state["composed"]))


def row_state(row: Row, first_seen: int, names: dict[str, int]) -> list[Any]:
    """A row as a list of numbers; ids and tasks are places in a list of names, because rows share them."""
    rollout, task = (names.setdefault(name, len(names)) for name in (row.rollout, row.task))
    return [rollout, row.turn, task, row.version, first_seen, *row.measured.numbers]


def row_of_state(entry: Sequence[Any], names: Sequence[str]) -> tuple[Row, int]:
    rollout, turn, task, version, first_seen, reason, disagreement, tokens, valid_tokens, *whole = entry
    rollout_turns, rollout_valid_tokens = whole
    measured = Measured(reason, disagreement, tokens, valid_tokens, rollout_turns, rollout_valid_tokens)
    return checked(Row(names[int(rollout)], turn, names[int(task)], version, measured)), int(first_seen)


def _check_settings(state: dict[str, Any], settings: Settings) -> None:
    given: Any = state  # whatever a checkpoint held
    saved: Any = cast(dict[str, Any], given).get("settings") if isinstance(given, dict) else None
    if not isinstance(saved, dict) or state.get("format") != STATE_FORMAT:
        raise StateError("this is no state of a pool, or one of another format; pass what state_dict() gave")
    known = cast(dict[str, Any], saved)
    for name, value in asdict(settings).items():
        if name not in known or known[name] != value:
            raise StateError(
                f"the saved state has {name} {known.get(name)!r}, this pool has {value!r}; make the pool with the "
                "settings of the state, or begin without one"
            )
