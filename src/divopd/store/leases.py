"""Work that several teachers share: rollouts that wait for scores, and questions of explorers, leased to one at a time.

A lease says who works on something, and until when. While it lasts nobody else is given the same; when its holder dies
it runs out, and another one takes the work over. It never decides what counts: the first score and the first answer do.
All of this is gone when the work is done; a recording holds none of it.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from divopd.store.journal import to_json_bytes
from divopd.store.payload import decode_rollout
from divopd.store.questions import Answer, Question, decode_answer, decode_question, encode_answer, encode_question
from divopd.store.reader import RecordKind, StoreReader
from divopd.store.session import seal
from divopd.turns import Rollout

NOBODY = ""  # the holder of work that is set aside
LeaseKind = Literal["lease", "question_lease"]  # of a rollout, by its number in `unscored`; of a question


class Leases(StoreReader):
    """The part of a store where explorers and teachers meet."""

    clock: Callable[[], float] = staticmethod(time.time)

    # ── rollouts ──────────────────────────────────────────────────────────────────────────────────────────────────

    def claim(self, holder: str, count: int, *, seconds: float) -> list[Rollout]:
        """Rollouts for this teacher to score, the newest first; nobody else is given them for so many seconds.

        What it has claimed before and neither put nor set aside, it is given again: it may have died meanwhile.
        """
        waiting = "SELECT number FROM unscored ORDER BY number DESC"
        numbers = self._claim("lease", waiting, holder, count, seconds)
        query = "SELECT id, content, digest FROM unscored WHERE number = ?"
        with self.snapshot():
            rows = [row for number in numbers for row in self._db.execute(query, (number,))]
        return [self._unsealed(decode_rollout, content, digest, name) for name, content, digest in rows]

    def renew(self, holder: str, *, seconds: float) -> int:
        """Keep all that this teacher holds for so many seconds from now; returns how much that is."""
        return self._move(holder, holder, seconds)

    def set_aside(self, holder: str, *, seconds: float) -> int:
        """Give up all that this teacher holds; nobody is given it for so many seconds. Returns how much that is."""
        return self._move(holder, NOBODY, seconds)

    # ── questions ─────────────────────────────────────────────────────────────────────────────────────────────────

    def ask(self, asker: str, questions: Sequence[Question]) -> None:
        """Put questions where a teacher finds them. Asking the same again changes nothing."""
        rows = [(question.number, encode_question(question, asker=asker)) for question in questions]
        with self._transaction():
            for number, text in rows:
                self._insert_record("question", number, text)

    def claim_questions(self, holder: str, count: int, *, seconds: float) -> list[Question]:
        """Questions for this teacher to answer, those first that were asked first; leased as rollouts are."""
        answered = "SELECT 1 FROM records a WHERE a.kind = 'answer' AND a.number = q.number"
        waiting = f"SELECT number FROM records q WHERE kind = 'question' AND NOT EXISTS ({answered}) ORDER BY q.rowid"
        numbers = self._claim("question_lease", waiting, holder, count, seconds)
        with self.snapshot():
            return [question for _, question in self._questions(numbers)]

    def answer(self, number: int, answer: Answer) -> bool:
        """Answer a question. False: it was answered before, or nobody wants to know any more; nothing changes then."""
        with self._transaction():
            if self._one("SELECT 1 FROM records WHERE kind = 'question' AND number = ?", number) is None:
                return False
            self._delete(["question_lease"], number)
            return self._insert_record("answer", number, encode_answer(answer))

    def answers(self, numbers: Iterable[int]) -> dict[int, Answer]:
        """Those of the questions that are answered, with their answers, which stay until they are forgotten."""
        kind: RecordKind = "answer"
        query = "SELECT json, digest FROM records WHERE kind = ? AND number = ?"
        with self.snapshot():
            rows = [(n, *row) for n in numbers for row in self._db.execute(query, (kind, n))]
        return {n: self._unsealed(decode_answer, text, digest, kind, n) for n, text, digest in rows}

    def forget_questions(self, numbers: Iterable[int]) -> None:
        """Drop these questions, their leases and their answers."""
        with self._transaction():
            for number in numbers:
                self._delete(["question", "question_lease", "answer"], number)

    def forget_asker(self, asker: str) -> None:
        """Drop all that this explorer has asked: an earlier life of it may have died before it heard the answers."""
        with self.snapshot():
            every = [number for (number,) in self._db.execute("SELECT number FROM records WHERE kind = 'question'")]
            own = [question.number for who, question in self._questions(every) if who == asker]
        self.forget_questions(own)

    # ── inside a transaction ──────────────────────────────────────────────────────────────────────────────────────

    def _claim(self, kind: LeaseKind, waiting: str, holder: str, count: int, seconds: float) -> list[int]:
        with self.snapshot():  # most looks find nothing, and should not stop others from writing
            if not self._free(kind, waiting, holder, count, seconds):
                return []
        with self._transaction():
            numbers = self._free(kind, waiting, holder, count, seconds)
            self._lease(kind, numbers, holder, seconds)
        return numbers

    def _free(self, kind: LeaseKind, waiting: str, holder: str, count: int, seconds: float) -> list[int]:
        now, held = self.clock(), self._leases(kind)
        found: list[int] = []
        for (number,) in self._db.execute(waiting):
            whose, until = held.get(number, (holder, 0.0))
            # a lease that lasts longer than any: the clock was set back since
            if whose == holder or not now < until <= now + seconds:
                found.append(number)
            if len(found) >= count:
                break
        return found

    def _leases(self, kind: LeaseKind) -> dict[int, tuple[str, float]]:
        rows = self._db.execute("SELECT number, json, digest FROM records WHERE kind = ?", (kind,)).fetchall()
        return {number: tuple(self._json(text, digest, kind, number)) for number, text, digest in rows}

    def _lease(self, kind: LeaseKind, numbers: Iterable[int], holder: str, seconds: float) -> None:
        text = to_json_bytes([holder, self.clock() + seconds])
        rows = [(kind, number, text, seal(text, kind, number)) for number in numbers]
        self._db.executemany("INSERT OR REPLACE INTO records (kind, number, json, digest) VALUES (?, ?, ?, ?)", rows)

    def _move(self, holder: str, to: str, seconds: float) -> int:
        kinds: tuple[LeaseKind, ...] = ("lease", "question_lease")
        count = 0
        with self._transaction():
            for kind in kinds:
                held = [number for number, (whose, _) in self._leases(kind).items() if whose == holder]
                self._lease(kind, held, to, seconds)
                count += len(held)
        return count

    def _questions(self, numbers: Iterable[int]) -> list[tuple[str, Question]]:
        kind: RecordKind = "question"
        query = "SELECT json, digest FROM records WHERE kind = ? AND number = ?"
        rows = [(number, *row) for number in numbers for row in self._db.execute(query, (kind, number))]
        return [self._unsealed(decode_question, text, digest, kind, number) for number, text, digest in rows]

    def _insert_record(self, kind: RecordKind, number: int, text: bytes) -> bool:
        row = (kind, number, text, seal(text, kind, number))
        insert = "INSERT OR IGNORE INTO records (kind, number, json, digest) VALUES (?, ?, ?, ?)"
        return self._db.execute(insert, row).rowcount == 1

    def _delete(self, kinds: Iterable[RecordKind], number: int) -> None:
        for kind in kinds:
            self._db.execute("DELETE FROM records WHERE kind = ? AND number = ?", (kind, number))
