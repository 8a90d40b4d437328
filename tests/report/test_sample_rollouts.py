"""The table of rollouts that loggers show: the newest, turn by turn, in words."""

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="for want of the extra train")

from divopd.models.model_files import load_tokenizer
from divopd.report.sample_rollouts import COLUMNS, NEWEST, newest_rollouts
from divopd.store import Store
from small_runs import config, train_small


def test_the_newest_rollouts_are_told_in_words(models: Path, tmp_path: Path) -> None:
    """Each turn with what is new in its prompt and its answer, as the tokens of the store say; nothing before any."""
    settings = config(models, learner={"updates": 2}, evaluation={"every": 2, "tasks": 1})
    Store.create(tmp_path / "store.db").close()
    assert newest_rollouts(tmp_path, settings.resolved()) is None
    (tmp_path / "store.db").unlink()
    train_small(tmp_path, settings)
    table = newest_rollouts(tmp_path, settings.resolved())
    assert table is not None
    assert table.columns == COLUMNS
    tokenizer = load_tokenizer(models / "student")
    with Store.open_read_only(tmp_path) as store:
        turns = list(store.turns())
    newest = list(dict.fromkeys(turn.rollout for turn in reversed(turns)))[:NEWEST]
    assert list(dict.fromkeys(row[0] for row in table.rows)) == newest
    for name in newest:
        own = [turn for turn in turns if turn.rollout == name]
        told = [dict(zip(COLUMNS, row, strict=True)) for row in table.rows if row[0] == name]
        assert [row["turn"] for row in told] == [turn.turn for turn in own]
        read = 0
        for row, turn in zip(told, own, strict=True):
            assert row["answer"] == tokenizer.decode(turn.response_ids, skip_special_tokens=True)
            assert row["seen"] == tokenizer.decode(turn.prompt_ids[read:], skip_special_tokens=True)
            assert (row["task"], row["version"], row["success"]) == (turn.task, turn.version, turn.success)
            read = turn.tokens
    assert "Your task is to" in str(table.rows[0][COLUMNS.index("seen")])
