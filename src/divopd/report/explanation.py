"""One batch as data: who got slots in which pass, what stayed pending, what fell out and why."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from divopd.composers import METHODS
from divopd.journal import JournalEntry, StoredTurn
from divopd.store_reader import StoreReader


def explain(store: StoreReader, update: int) -> dict[str, Any]:
    """An update as JSON types: a list of rollouts, those with selected turns first and in the order of selection.

    The settings' cap is null where the method has none.
    """
    entry = store.journal(update)
    rollouts: dict[str, dict[str, Any]] = {}
    for turn, weight, number in zip(store.find(entry.selected), entry.weights, entry.passes, strict=True):
        _of(rollouts, turn)["selected"].append({**_as_json(turn), "pass": number, "weight": weight})
    for turn in store.pending_after(update):
        _of(rollouts, turn)["pending"].append(_as_json(turn))
    for why, turns in _fallen(store, entry):
        for turn in turns:
            _of(rollouts, turn)["fell_out"].append({**_as_json(turn), "why": why(turn)})
    cap = entry.settings.cap if METHODS[entry.settings.method].capped else None
    return {"update": update, "settings": asdict(entry.settings) | {"cap": cap}, "rollouts": list(rollouts.values())}


def _fallen(store: StoreReader, entry: JournalEntry) -> Iterable[tuple[Any, list[StoredTurn]]]:
    yield lambda turn: str(turn.reason), store.find((rollout, turn) for rollout, turn, _ in entry.invalid)
    yield lambda turn: f"stale (version {turn.version})", store.find(entry.stale)
    yield lambda turn: f"aged out (first seen {turn.first_seen})", store.find(entry.aged_out)


def _of(rollouts: dict[str, dict[str, Any]], turn: StoredTurn) -> dict[str, Any]:
    empty = {"rollout": turn.rollout, "task": turn.task, "version": turn.version}
    return rollouts.setdefault(turn.rollout, {**empty, "selected": [], "pending": [], "fell_out": []})


def _as_json(turn: StoredTurn) -> dict[str, Any]:
    return {
        "turn": turn.turn,
        "disagreement": turn.disagreement,
        "tokens": turn.tokens,
        "first_seen": turn.first_seen,
        "reason": turn.reason,
    }
