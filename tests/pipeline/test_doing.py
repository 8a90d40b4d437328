"""What each role does now: said as it happens, at most once a second, and gone when the run is over."""

from pathlib import Path

import pytest

from divopd.run.doing import Doing, Now, forget_now, read_now, write_now


def test_the_same_is_said_once_a_second() -> None:
    """Something else is said at once; how far it has come, when a second has passed."""
    heard: list[Now] = []
    moments = iter([0.0, 0.5, 0.9, 1.0, 1.2, 1.3])
    doing = Doing(heard.append, clock=lambda: next(moments))
    for done in (0, 1, 2, 3):
        doing("evaluator", "evaluating version 0", done, 140)
    doing("learner", "training update", 0, 250)
    doing("explorer", "waiting for weights")
    assert [(one.role, one.done, one.at) for one in heard] == [
        ("evaluator", 0, 0.0),
        ("evaluator", 3, 1.0),
        ("learner", 0, 1.2),
        ("explorer", None, 1.3),
    ]
    assert [one.sentence for one in heard[1:]] == [
        "evaluating version 0: 3 of 140",
        "training update: 0 of 250",
        "waiting for weights",
    ]


def test_words_are_read_back_until_they_are_forgotten(tmp_path: Path) -> None:
    """The last one of each process; a file that is none is left out, and a folder that cannot be is no error."""
    now = Now("explorer", "playing", 7, None, at=12.5)
    write_now(tmp_path / "now", "explorer-1", Now("explorer", "waiting", None, None, at=1.0))
    write_now(tmp_path / "now", "explorer-1", now)
    (tmp_path / "now" / "learner.json").write_text("[]", encoding="utf-8")
    assert read_now(tmp_path / "now") == {"explorer-1": now}
    assert now.sentence == "playing, 7 so far"
    forget_now(tmp_path / "now")
    assert list(tmp_path.iterdir()) == []
    forget_now(tmp_path / "now")
    write_now(tmp_path / "missing" / "now", "run", now)
    assert read_now(tmp_path / "missing" / "now") == {}


def test_a_run_says_what_it_does(models: Path, tmp_path: Path) -> None:
    """On the simulated clock one process does everything; the folder is empty again when it has ended."""
    pytest.importorskip("torch", reason="for want of the extra train")
    from divopd.store import Store
    from doubles.listener import Listener
    from small_runs import config, train_small

    said: list[str] = []
    listener = Listener(lambda record: said.extend(one.sentence for one in read_now(tmp_path / "run" / "now").values()))
    train_small(tmp_path / "run", config(models, learner={"updates": 2}), observer=listener)
    assert said == ["training update: 0 of 2", "training update: 1 of 2"]
    assert not (tmp_path / "run" / "now").exists()
    with Store.open_read_only(tmp_path / "run") as store:
        words = [event["words"] for _, kind, event in store.events() if kind == "evaluation_words"]
    assert len(words) == 1
    assert all(word.islower() for word in words[0])
