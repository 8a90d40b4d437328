"""Some rollouts of a run as a table, for loggers: what was seen and answered, a turn a line."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from divopd.report.words import Words, words_of
from divopd.run.loggers import Table
from divopd.store.journal import StoredTurn
from divopd.store.views import RolloutRow, StoreViews
from divopd.turns import Turn

COLUMNS = ("rollout", "task", "version", "success", "reward", "turn", "seen", "answer", "disagreement")
NEWEST = 3  # rollouts
LONGEST_TEXT = 2_000  # characters of a cell


def newest_rollouts(run: Path, config: Mapping[str, Any]) -> Table | None:
    """The rollouts that arrived last, with their texts; None before there are any.

    Turns whose tokens the run no longer keeps are left out. `seen` is what is new in the prompt since the turn before,
    with the marks of the chat template left out; turns in which the teacher acted are in it.
    """
    words = words_of(run, config)
    with StoreViews.open(run) as store, store.snapshot():
        newest = store.rollout_page(first=0, count=NEWEST, order="-arrival").rows
        rows = [line for rollout in newest for line in _lines(store, rollout, words)]
    return Table(COLUMNS, rows) if rows else None


def _lines(store: StoreViews, rollout: RolloutRow, words: Words) -> list[list[Any]]:
    known = [turn for turn in store.turns_of(rollout.rollout) if not store.is_settled(turn)]
    outcome = [rollout.rollout, rollout.task, rollout.version, rollout.success, rollout.reward]
    lines: list[list[Any]] = []
    before: list[int] = []
    for turn in known:
        whole = store.whole(turn)
        lines.append([*outcome, *_cells(turn, whole, before, words)])
        before = [*whole.prompt_ids, *whole.response_ids]
    return lines


def _cells(turn: StoredTurn, whole: Turn, before: list[int], words: Words) -> list[Any]:
    prompt = list(whole.prompt_ids)
    new = prompt[len(before) :] if prompt[: len(before)] == before else prompt
    texts = [words.text(ids)[:LONGEST_TEXT] for ids in (new, whole.response_ids)]
    return [turn.turn, *texts, turn.disagreement]
