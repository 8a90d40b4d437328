"""The teachers of a live run as an explorer has them: it asks in the store, and a process of a teacher answers.

So no explorer holds a teacher of its own. A teacher that is away is the teacher process's matter: it says so, and ends
the run after teacher.away_limit_s; until then an explorer waits.
"""

import secrets
import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from divopd.models.policy import Response
from divopd.store import Answer, Question, Questions
from divopd.teacher import first_fitting

LOOK_S = 0.02  # between two looks for answers


class AskedTeachers:
    """Who teaches which task, by the same patterns as in the teachers' processes.

    `asker` is the explorer's name: what an earlier life of it has asked is forgotten. `wait` is called between two
    looks for answers and may raise, when the run is over.
    """

    def __init__(
        self, store: Questions, *, asker: str, patterns: Iterable[str], wait: Callable[[float], None] = time.sleep
    ) -> None:
        self._store, self._asker, self._wait = store, asker, wait
        self._patterns = {pattern: pattern for pattern in patterns}
        self._teachers: dict[str | None, AskedTeacher] = {}
        store.forget_asker(asker)

    def of(self, task: str) -> "AskedTeacher":
        """The teacher of a task: the same object for all tasks that the same teacher has."""
        pattern = first_fitting(task, self._patterns, default=None)
        if pattern not in self._teachers:
            self._teachers[pattern] = AskedTeacher(self._store, asker=self._asker, task=task, wait=self._wait)
        return self._teachers[pattern]


class AskedTeacher:
    """One teacher, asked by the store. It responds, as a policy does; it does not score."""

    def __init__(self, store: Questions, *, asker: str, task: str, wait: Callable[[float], None]) -> None:
        self._store, self._asker, self._task, self._wait = store, asker, task, wait

    def respond(
        self, prompts: Sequence[Sequence[int]], *, temperature: float, max_tokens: int, seeds: Sequence[int]
    ) -> list[Response]:
        """One response per prompt, when all of them are there."""
        asked = [self._question(p, temperature, max_tokens, s) for p, s in zip(prompts, seeds, strict=True)]
        numbers = [question.number for question in asked]
        self._store.ask(self._asker, asked)
        try:
            while len(answers := self._store.answers(numbers)) < len(numbers):
                self._wait(LOOK_S)
        finally:
            self._store.forget_questions(numbers)
        return [_response(answers[number]) for number in numbers]

    def _question(self, prompt: Sequence[int], temperature: float, max_tokens: int, seed: int) -> Question:
        # a number that nobody else has, and that no late answer to something else can meet
        return Question(secrets.randbits(62), self._task, [int(i) for i in prompt], temperature, max_tokens, int(seed))


def _response(answer: Answer) -> Response:
    return Response(answer.ids, np.asarray(answer.logprobs, dtype=np.float64))
