"""The observer: figures of what a sampler trained, those of the audit; it changes nothing and breaks nothing."""

import logging
from collections import Counter
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from divopd import Row, Turn, make_composer
from divopd.audits.subject import load_subject
from divopd.audits.utilization import audit_utilization
from divopd.errors import InputError
from divopd.observer import SAMPLER, Observer
from divopd.replay import recording_of, replay
from divopd.store import Store
from divopd.synth import PRESETS, synthesize
from strategies import turn

UPDATES = 12


@pytest.fixture(scope="module")
def turns() -> list[Turn]:
    return list(synthesize(PRESETS["webshop"], updates=UPDATES, seed=2))


def watch(observer: Observer, turns: list[Turn], batches: list[list[tuple[str, int]]], *, first: int = 0) -> None:
    """Tell an observer of a run whose updates are counted from `first`."""
    for update, keys in enumerate(batches):
        observer.arrived([Row.of(replace(t, version=t.version + first)) for t in turns if t.available_at == update])
        observer.trained(update + first, keys)


def batches_of(turns: list[Turn], method: str) -> list[list[tuple[str, int]]]:
    decisions = replay(recording_of(turns), make_composer(method), updates=UPDATES)
    return [[c.key for c in decision.selected] for decision in decisions]


def observed(observer: Observer, name: str) -> dict[str, Any]:
    figures = observer.figures()
    assert figures is not None, observer.trouble
    return {key: value for key, value in figures[name].items() if key not in ("dead_share", "age")}


def test_its_figures_are_those_of_the_audit(models: Path, tmp_path: Path) -> None:
    """A real vanilla run on the simulated clock, observed batch by batch: what was trained, and what divopd would."""
    pytest.importorskip("transformers", reason="for want of the extra train")
    from small_runs import config, train_small

    composer: dict[str, Any] = {"batch_size": 6, "cap": 2}
    train_small(tmp_path / "run", config(models, method="vanilla", composer=composer, evaluation={"every": 6}))
    subject = load_subject(tmp_path / "run")
    with Store.open_read_only(tmp_path / "run") as store:
        batches = [store.batch(update).entry.selected for update in range(store.updates)]
    observer = Observer(**composer, seed=subject.settings.seed)
    watch(observer, subject.turns, batches)
    audited = audit_utilization(subject)
    assert observed(observer, SAMPLER) == asdict(audited["vanilla"])
    assert observed(observer, "divopd") == asdict(audited["divopd"])
    assert audited["vanilla"].utilization.never_selected > 0, "this run shows nothing"


def test_a_run_may_be_joined_late(turns: list[Turn]) -> None:
    """Updates count from anywhere: the figures are the same."""
    observers = Observer(), Observer()
    for observer, first in zip(observers, (0, 100), strict=True):
        watch(observer, turns, batches_of(turns, "vanilla"), first=first)
    for name in (SAMPLER, "divopd"):
        assert observed(observers[0], name) == observed(observers[1], name)


def test_it_tells_of_every_update(turns: list[Turn]) -> None:
    """Dead rows, age and the shadow's batch beside the sampler's own; rows that never arrived are counted."""
    observer = Observer(batch_size=4)
    observer.arrived([Row.of(turn("a", n, prompt_truncated=n == 0)) for n in range(3)] + [Row.of(turn("b", 0))])
    told = observer.trained(1, [("a", 0), ("a", 1), ("never", 7)])
    assert told is not None
    assert (told["rows"], told["dead_share"], told["age"], told["rollouts"]) == (2, 0.5, 1.0, 1)
    assert (told["would_rows"], told["would_rollouts"], told["would_invalid"]) == (3, 2, 1)
    figures = observer.figures()
    assert figures is not None
    assert figures["trained_but_never_arrived"] == 1


def test_it_changes_nothing(turns: list[Turn]) -> None:
    """Lists, rows and payloads are as they were, and no payload is kept."""
    rows = [Row.of(one) for one in turns if one.available_at <= 3]
    keys = [row.key for row in rows[:9]][::-1]
    assert len(keys) == 9
    before, payloads = deepcopy((rows, keys)), [row.payload for row in rows]
    observer = Observer(batch_size=8)
    observer.arrived(rows)
    observer.arrived(rows)
    observer.trained(3, keys)
    observer.figures()
    assert observer.trouble is None
    assert (rows, keys) == before
    assert all(row.payload is payload for row, payload in zip(rows, payloads, strict=True))
    assert not any(isinstance(one, Turn) for one in _reachable(observer))


def _reachable(root: object) -> list[object]:
    """Everything that an object holds, however deep."""
    found: dict[int, object] = {}
    waiting = [root]
    while waiting:
        one = waiting.pop()
        if id(one) in found or isinstance(one, str | int | float | type(None)):
            continue
        found[id(one)] = one
        waiting += vars(one).values() if hasattr(one, "__dict__") and not isinstance(one, type) else ()
        waiting += [*one.keys(), *one.values()] if isinstance(one, dict) else ()
        waiting += one if isinstance(one, list | tuple | set) else ()
        waiting += list(one) if hasattr(one, "popleft") else ()  # pyright: ignore[reportArgumentType]
    return list(found.values())


class Broken:
    """What a framework may hand over by mistake."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name} here")


@pytest.mark.parametrize(
    "mistake",
    [
        lambda observer: observer.arrived([Broken()]),
        lambda observer: observer.arrived(None),
        lambda observer: observer.trained(0, [1, 2]),
        lambda observer: observer.trained(None, []),
        lambda observer: observer.trained(-1, []),
        lambda observer: observer.arrived([Row.of(turn("a", 0, version=9))]) or observer.trained(3, []),
        lambda observer: observer.page("/no/such/folder/page.html"),
    ],
    ids=["broken row", "no rows", "no keys", "no update", "negative", "version from the future", "no folder"],
)
def test_no_error_reaches_the_framework(mistake: Any, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged once with its trace; after it the observer is off, and stays harmless."""
    observer = Observer(batch_size=4)
    with caplog.at_level(logging.ERROR, logger="divopd"):
        assert mistake(observer) is None
        assert observer.trouble is not None
        for _ in range(3):
            observer.arrived([Row.of(turn("b", 0))])
            assert observer.trained(9, [("b", 0)]) is None
            assert observer.figures() is None
    assert Counter(record.getMessage() for record in caplog.records) == {"the observer is off, the run goes on": 1}
    assert caplog.records[0].exc_info


def test_wrong_settings_are_told_before_the_run() -> None:
    with pytest.raises(InputError):
        Observer(batch_size=0)
    with pytest.raises(InputError, match="does not record"):
        Observer(record="turns.jsonl")


@pytest.mark.parametrize(
    ("method", "answer"), [("vanilla", "Yes, for the batches"), ("divopd", "No: divopd would train")]
)
def test_the_page_answers_the_question(turns: list[Turn], method: str, answer: str, tmp_path: Path) -> None:
    """Self-contained, without a script; the answer follows what the sampler does."""
    observer = Observer()
    watch(observer, turns, batches_of(turns, method))
    observer.page(tmp_path / "page.html")
    assert observer.trouble is None
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert f"<strong>{answer}" in page
    assert "polyline" in page
    assert not any(word in page for word in ("<script", "http:", "https:", "url("))


def test_a_page_is_written_whatever_was_seen(tmp_path: Path) -> None:
    """Nothing, or too little: it says so; names of rows are not markup."""
    observer = Observer(batch_size=2)
    observer.page(tmp_path / "page.html")
    assert "Nothing can be said" in (tmp_path / "page.html").read_text(encoding="utf-8")
    observer.arrived([Row.of(turn("<b>", 0)), Row.of(turn("<b>", 1))])
    observer.trained(0, [("<b>", 0)])
    observer.page(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert observer.trouble is None
    assert "Too early to say: 1 updates" in page
    assert "<b>" not in page
