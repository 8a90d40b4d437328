"""An observer that keeps what it hears, and may do something after each update."""

from collections.abc import Callable

from divopd.records import EvaluationRecord, UpdateRecord


class Listener:
    """`after_update` is called with every record of an update; what it raises ends the run there and then."""

    def __init__(self, after_update: Callable[[UpdateRecord], object] = lambda record: None) -> None:
        self._after_update = after_update
        self.updates: list[UpdateRecord] = []
        self.evaluations: list[EvaluationRecord] = []
        self.sentences: list[str] = []

    def updated(self, record: UpdateRecord) -> None:
        self.updates.append(record)
        self._after_update(record)

    def evaluated(self, record: EvaluationRecord) -> None:
        self.evaluations.append(record)

    def told(self, sentence: str) -> None:
        self.sentences.append(sentence)
