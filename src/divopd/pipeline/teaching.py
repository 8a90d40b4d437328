"""The role of a teacher on the live clock: it answers explorers that ask for help, and scores what they have stored.

Several teachers share the work by leases (store/leases.py). While one's server is away, its rollouts and questions are
set aside; those of other teachers go on.
"""

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from typing import TypeVar

from divopd.errors import StoreError, TeacherAwayError, WrongAnswerError
from divopd.models.engine import Engine
from divopd.pipeline.access import Access
from divopd.pipeline.models import load_teachers
from divopd.store import Answer, Question
from divopd.teacher import Absence, Away, Teachers, respond_or_away

SCORED_AT_ONCE = 16  # rollouts
ANSWERED_AT_ONCE = 64  # questions
LEASE_S = 60.0  # what a teacher that died held is free after so long, or when it is started again
ASIDE_S = 5.0  # until work of an absent teacher is looked at again
T = TypeVar("T")


def teach(access: Access) -> None:
    """Answer and score until the run is over, questions first: a rollout waits for each of them."""
    teaching = Teaching(access, load_teachers(access.config))
    with teaching.keeping_leases():
        while True:
            access.check()
            teaching.say()
            if not teaching.answer() and not teaching.score():
                access.wait()


class Teaching:
    """One teacher process at work."""

    def __init__(self, access: Access, teachers: Teachers, *, lease_s: float = LEASE_S) -> None:
        self.access, self.teachers, self.lease_s = access, teachers, lease_s
        self.name = f"teacher-{access.rank}"
        self.scored = 0  # rollouts
        self._absences: dict[int, Absence] = {}  # by the id of an engine

    def say(self) -> None:
        """What it does now, for the page."""
        away = [absence.away for absence in self._absences.values() if absence.away]
        if away:
            self.access.doing("teacher", f"waiting: {away[0].sentence}")
        else:
            self.access.doing("teacher", "scoring rollouts", self.scored)

    def answer(self) -> bool:
        """Answer the oldest questions. True: some were answered."""
        asked = self.access.store.claim_questions(self.name, ANSWERED_AT_ONCE, seconds=self.lease_s)
        answered = 0
        for teacher, share in self._shares(asked):
            respond = partial(
                respond_or_away,
                teacher,
                [question.prompt_ids for question in share],
                temperature=share[0].temperature,
                max_tokens=share[0].max_tokens,
                seeds=[question.seed for question in share],
            )
            responses = self._ask(teacher, respond)  # none, if it is away
            for question, response in zip(share, responses, strict=bool(responses)):
                answer = Answer([int(id_) for id_ in response.ids], response.logprobs.tolist())
                self.access.store.answer(question.number, answer)
                answered += 1
        self._set_aside(len(asked) - answered)
        return answered > 0

    def _shares(self, asked: Sequence[Question]) -> list[tuple[Engine, list[Question]]]:
        """Questions that one call of one teacher can answer."""
        shares: dict[tuple[int, float, int], tuple[Engine, list[Question]]] = {}
        for question in asked:
            teacher = self.teachers.of(question.task)
            wish = (id(teacher), question.temperature, question.max_tokens)
            shares.setdefault(wish, (teacher, []))[1].append(question)
        return list(shares.values())

    def score(self) -> bool:
        """Score the newest rollouts. True: some were scored."""
        waiting = self.access.store.claim(self.name, SCORED_AT_ONCE, seconds=self.lease_s)
        before = self.scored
        for teacher, share in self.teachers.shares(waiting):
            for rollout in self.teachers.score_share(teacher, share, ask=partial(self._ask, teacher)):
                self.access.check()
                self.access.store.put_scored(rollout)
                self.scored += 1
        self._set_aside(len(waiting) - (self.scored - before))
        return self.scored > before

    def _ask(self, teacher: Engine, ask: Callable[[], Sequence[T]]) -> Sequence[T]:
        """What the teacher answers; nothing while it is away. After too long an absence the error is the run's."""
        absence = self._absences.setdefault(
            id(teacher), Absence(self._note_absence, self._note_return, limit_s=self.access.config.teacher.away_limit_s)
        )
        if not absence.is_asked_again:
            return ()
        try:
            answer = ask()
        except WrongAnswerError:
            absence.ended()
            raise
        except TeacherAwayError as error:
            absence.noticed(error)
            return ()
        absence.ended()
        return answer

    def _set_aside(self, unfinished: int) -> None:
        if unfinished:
            self.access.store.set_aside(self.name, seconds=ASIDE_S)

    def _note_absence(self, away: Away) -> None:
        kind = "teacher_still_away" if away.seconds else "teacher_away"
        event = asdict(away) | {"sentence": away.sentence, "update": self.access.store.updates, "by": self.name}
        self.access.store.note(kind, event)

    def _note_return(self, away: Away) -> None:
        event = {"who": away.who, "error": away.error, "away_s": away.seconds, "by": self.name}
        self.access.store.note("teacher_back", event | {"update": self.access.store.updates})

    @contextmanager
    def keeping_leases(self) -> Generator[None]:
        """Renew what this teacher holds for as long as it works on it, in a thread with a store of its own.

        When it ends, others may have the rest at once.
        """
        over, open_store = threading.Event(), self.access.open_store

        def renew() -> None:
            assert open_store is not None, "a teacher's process can open the store"
            with open_store() as store:
                while not over.wait(self.lease_s / 4):
                    with suppress(StoreError):  # it runs out then, and another teacher does the same work
                        store.renew(self.name, seconds=self.lease_s)

        thread = threading.Thread(target=renew, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            with suppress(StoreError):
                self.access.store.set_aside(self.name, seconds=0.0)
