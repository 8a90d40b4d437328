"""The teachers of a live run as an explorer has them: it asks in the store, and a process of a teacher answers.

So no explorer holds a teacher of its own. A teacher that is away is the teacher process's matter: it says so, and ends
the run after teacher.away_limit_s; until then an explorer waits.
"""

import secrets
import time
from collections.abc import Hashable, Iterable, Sequence

import numpy as np

from divopd.models.policy import Response
from divopd.store import Answer, Question, Questions
from divopd.teacher import first_fitting

LOOK_S = 0.02  # between two looks for answers
PAUSE_S = 0.001  # of a step that finds none, so that whoever has nothing else to do does not spin


class AskedTeachers:
    """Who teaches which task, by the same patterns as in the teachers' processes.

    `asker` is the explorer's name: what an earlier life of it has asked is forgotten.
    """

    def __init__(self, store: Questions, *, asker: str, patterns: Iterable[str]) -> None:
        self._store, self._asker = store, asker
        self._patterns = {pattern: pattern for pattern in patterns}
        self._teachers: dict[str | None, AskedTeacher] = {}
        store.forget_asker(asker)

    def of(self, task: str) -> "AskedTeacher":
        """The teacher of a task: the same object for all tasks that the same teacher has."""
        pattern = first_fitting(task, self._patterns, default=None)
        if pattern not in self._teachers:
            self._teachers[pattern] = AskedTeacher(self._store, asker=self._asker, task=task)
        return self._teachers[pattern]

    def forget(self) -> None:
        """Nobody wants to hear the answers any more."""
        self._store.forget_asker(self._asker)


class AskedTeacher:
    """One teacher, asked by the store. Nobody waits for it: a response comes out of the first step after it came."""

    def __init__(self, store: Questions, *, asker: str, task: str) -> None:
        self._store, self._asker, self._task = store, asker, task
        self._keys: dict[int, Hashable] = {}  # of the questions that wait
        self._looked = 0.0

    def add(self, key: Hashable, prompt: Sequence[int], *, temperature: float, max_tokens: int, seed: int) -> None:
        """Ask for a response, which a later step returns under this key."""
        number = secrets.randbits(62)  # that nobody else has, and that no late answer to something else can meet
        self._keys[number] = key
        asked = Question(number, self._task, [int(i) for i in prompt], temperature, max_tokens, int(seed))
        self._store.ask(self._asker, [asked])

    def step(self) -> list[tuple[Hashable, Response]]:
        """The responses that are there now, by their keys; it looks for them every few milliseconds only."""
        if not self._keys or time.monotonic() - self._looked < LOOK_S:
            time.sleep(PAUSE_S)
            return []
        self._looked = time.monotonic()
        answers = self._store.answers(self._keys)
        if answers:
            self._store.forget_questions(answers)
        return [(self._keys.pop(number), _response(answer)) for number, answer in answers.items()]

    @property
    def pending(self) -> int:
        """Responses that were asked for and that no step has returned."""
        return len(self._keys)


def _response(answer: Answer) -> Response:
    return Response(answer.ids, np.asarray(answer.logprobs, dtype=np.float64))
