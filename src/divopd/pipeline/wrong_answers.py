"""What is told of a teacher's wrong answers (specification §6.2); each has cost a rollout, as the store has noted."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from divopd.failures import is_told
from divopd.records import EvaluationRecord, Observer, UpdateRecord
from divopd.store import WRONG_ANSWER, StoreViews


def sentence_of(event: Mapping[str, Any], *, count: int) -> str | None:
    """What is said of the `count`-th rollout that a wrong answer has cost, if anything is."""
    if not is_told(count):
        return None
    so_far = (
        "a teacher's answer was wrong" if count == 1 else f"{count} answers of teachers were wrong so far, the last"
    )
    return f"{so_far} about {event['rollout']} (task {event['task']}), which is not trained: {event['reason']}"


class WrongAnswerNews:
    """Tells an observer of the virtual clock, after every update, which answers were wrong since the last one."""

    def __init__(self, folder: Path, observer: Observer) -> None:
        self._folder, self._observer = folder, observer
        self._last, self._count = 0, 0
        self._read()

    def updated(self, record: UpdateRecord) -> None:
        del record
        for sentence in self._read():
            self._observer.told(sentence)

    def evaluated(self, record: EvaluationRecord) -> None: ...

    def told(self, sentence: str) -> None: ...

    def _read(self) -> list[str]:
        sentences: list[str | None] = []
        with StoreViews.open(self._folder) as store:
            for number, kind, event in store.events(after=self._last):
                self._last = number
                if kind == WRONG_ANSWER:
                    self._count += 1
                    sentences.append(sentence_of(event, count=self._count))
        return [sentence for sentence in sentences if sentence]
