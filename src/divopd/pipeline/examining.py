"""Evaluations on an explorer's engine, beside its rollouts: so the curve of success grows from the start.

An explorer examines a version while it holds that version's weights, and takes newer ones when the last task is over.
Where there are several explorers they take turns, by the number of the version.
"""

from collections.abc import Sequence

from divopd.evaluation import Evaluation, Exam, is_evaluated
from divopd.explorer import Acting, Played, Start
from divopd.first_evaluation import first_evaluation_file, recall_evaluation
from divopd.pipeline.access import Access
from divopd.records import EvaluationRecord


class Examiner:
    """The evaluations of one explorer. `version` is the one to be examined now, if there is one."""

    def __init__(self, access: Access, exam: Exam, *, forbidden: Sequence[int]) -> None:
        self._access, self._exam, self._forbidden = access, exam, forbidden
        config = access.config
        assert config.evaluation.share is not None, "evaluations have an engine of their own"
        self._most = max(1, int(config.evaluation.share * config.explorer.rollouts_in_flight))
        self.version: int | None = None
        self.done = False  # with the last of its versions
        self._waiting: list[Start] = []
        self._playing: dict[int, Start] = {}  # by identity: training rollouts have the same numbers
        self._over: dict[int, Played] = {}
        self._noted = False

    @property
    def acting(self) -> Acting:
        return self._exam.acting

    def look(self) -> None:
        """See which version is to be examined, unless one is being examined."""
        if self.version is not None or self.done:
            return
        known, published = self._access.store.evaluations(), self._access.weights.versions()
        mine = [version for version in self._mine() if version not in known]
        due = [version for version in mine if version in published]
        self.done = not mine
        if not due:
            return
        version = due[0]
        if (record := self._recalled(version)) is not None:
            self._access.store.record_evaluation(record)
            return
        self.version, self._waiting, self._over = version, self._exam.starts()[::-1], {}
        self._tell()

    def next(self, version: int) -> Start | None:
        """A task to be played now, with the weights of the version that is examined."""
        if version != self.version or not self._waiting or len(self._playing) >= self._most:
            return None
        start = self._waiting.pop()
        self._playing[id(start)] = start
        return start

    def heard(self, played: Played) -> bool:
        """Whether this was one of its tasks; with the last one the evaluation is recorded."""
        if self._playing.pop(id(played.start), None) is None:
            return False
        assert self.version is not None
        self._over[played.start.number] = played
        self._exam.hear(played)
        self._tell()
        if not self._waiting and not self._playing:
            rollouts = tuple(self._over[number] for number in range(len(self._exam.tasks)))
            record = self._exam.record(Evaluation(rollouts), version=self.version)
            self._note_words()
            self._access.store.record_evaluation(record)
            self.version = None
        return True

    def _mine(self) -> list[int]:
        config = self._access.config
        due = [version for version in range(config.learner.updates + 1) if is_evaluated(config, version)]
        return due[self._access.rank :: config.explorer.processes]

    def _recalled(self, version: int) -> EvaluationRecord | None:
        """Version 0, if it was evaluated before; what is played here is not remembered: its company is another."""
        file = first_evaluation_file(self._access.config, self._exam, self._forbidden) if version == 0 else None
        return recall_evaluation(file, recalled=self._note_recalled) if file else None

    def _note_recalled(self, sentence: str) -> None:
        self._access.store.note("evaluation_recalled", {"sentence": sentence})

    def _note_words(self) -> None:
        if not self._noted and (words := self._exam.words()):
            self._access.store.note("evaluation_words", {"words": words})
            self._noted = True

    def _tell(self) -> None:
        of = len(self._exam.tasks)
        self._access.doing("evaluator", f"evaluating version {self.version}", len(self._over), of)
