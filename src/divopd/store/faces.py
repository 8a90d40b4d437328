"""What each role may do with a store. Any class with these methods will do: SQLite, a Ray actor, a test's lists.

What the methods promise is the same for all of them: tests/store/test_contract.py says it. Reading a run afterwards is
no face: reports and audits read the SQLite file (StoreReader), and another backend exports to it.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from divopd.composers.composer import Composer
from divopd.curricula import Outcome
from divopd.records import EvaluationRecord, UpdateRecord
from divopd.store.journal import Arrived, Decided, JournaledBatch
from divopd.store.questions import Answer, Question
from divopd.turns import Rollout

WRONG_ANSWER = "wrong_answer"  # what `put` notes of a rollout without scores: rollout, task, reason, turns, update


class Notes(Protocol):
    """Whoever works on a run may say what happened."""

    def note(self, kind: str, event: dict[str, Any]) -> None:
        """Append what happened (a start, a wait, a lost environment) to the log of the run."""
        ...


class Queue(Notes, Protocol):
    """What explorers and teachers may do."""

    def reserve(self, count: int) -> range:
        """Numbers for the next rollouts of an explorer, counted from 0; none is given twice."""
        ...

    def offer(self, rollout: Rollout, *, generated_tokens: int) -> None:
        """Keep a rollout that has ended, durably, until the teacher has scored it and it is `put`.

        Offering it again, or after it was put, changes nothing.
        """
        ...

    def unscored(self, limit: int) -> list[Rollout]:
        """Rollouts that wait for the teacher, the newest first: after a long absence the older ones are stale."""
        ...

    def claim(self, holder: str, count: int, *, seconds: float) -> list[Rollout]:
        """Rollouts for this teacher to score, the newest first; nobody else is given them for so many seconds.

        What it has claimed before and neither put nor set aside, it is given again: it may have died meanwhile.
        """
        ...

    def renew(self, holder: str, *, seconds: float) -> int:
        """Keep all that this teacher holds for so many seconds from now; returns how much that is."""
        ...

    def set_aside(self, holder: str, *, seconds: float) -> int:
        """Give up all that this teacher holds; nobody is given it for so many seconds. Returns how much that is."""
        ...

    def put_scored(self, rollout: Rollout) -> bool:
        """As put, for a rollout that a teacher has claimed. False: it waits no longer, because another was faster.

        Then nothing changes: the first scores count, and those of two teachers may differ in their last digits.
        """
        ...

    def put(self, rollout: Rollout, *, available_at: int | None = None, generated_tokens: int = 0) -> bool:
        """Queue all turns of a scored rollout, durably and together. True: queued now; False: it was there already.

        It no longer waits for the teacher then. Its turns of the teacher are kept beside the queue, in the same moment.
        The same id with another content raises a ConflictError, unless a teacher's wrong answer is what differs: that
        is noted with the first put, which counts.
        `available_at` is the first update that may read the turns: the next one, unless a simulated clock says so.
        `generated_tokens` count for a rollout that was never offered, with its first put.
        """
        ...

    def outcomes(self, *, after: int) -> list[Outcome]:
        """How the rollouts ended that arrived after number `after`, in order of arrival; 0 asks for all of them."""
        ...

    def backlog(self) -> int:
        """Turns in the queue that no update has read yet."""
        ...


class Questions(Protocol):
    """What explorers ask teachers to do in a student's place: recovery on the live clock."""

    def ask(self, asker: str, questions: Sequence[Question]) -> None:
        """Put questions where a teacher finds them. Asking the same again changes nothing."""
        ...

    def claim_questions(self, holder: str, count: int, *, seconds: float) -> list[Question]:
        """Questions for this teacher to answer, those first that were asked first; leased as rollouts are."""
        ...

    def answer(self, number: int, answer: Answer) -> bool:
        """Answer a question. False: it was answered before, or nobody wants to know any more; nothing changes then."""
        ...

    def answers(self, numbers: Iterable[int]) -> dict[int, Answer]:
        """Those of the questions that are answered, with their answers, which stay until they are forgotten."""
        ...

    def forget_questions(self, numbers: Iterable[int]) -> None:
        """Drop these questions, their leases and their answers."""
        ...

    def forget_asker(self, asker: str) -> None:
        """Drop all that this explorer has asked: an earlier life of it may have died before it heard the answers."""
        ...


class Calls(Protocol):
    """What explorers keep of agent programs: an intent before a response is generated, a record before it is sent."""

    def begin_attempt(self, rollout: int, begun: dict[str, Any]) -> int:
        """Begin another attempt at a rollout; its number, from 1 on."""
        ...

    def intend_call(self, rollout: int, attempt: int, call: int, intent: dict[str, Any]) -> None:
        """A response is about to be generated."""
        ...

    def record_call(self, rollout: int, attempt: int, call: int, record: dict[str, Any]) -> None:
        """A response is about to be sent."""
        ...

    def end_attempt(self, rollout: int, attempt: int, ended: dict[str, Any]) -> None:
        """The program has ended, or was killed."""
        ...


class Evaluations(Notes, Protocol):
    """What an evaluator may do."""

    def evaluations(self) -> dict[int, EvaluationRecord]:
        """The evaluations so far, by policy version."""
        ...

    def record_evaluation(self, record: EvaluationRecord) -> bool:
        """Keep the evaluation of a policy version. True: written now; False: there was one, and that one counts."""
        ...


class Ledger(Evaluations, Protocol):
    """What the one learner may do. A FencedError means that another learner has begun: stop."""

    @property
    def updates(self) -> int:
        """How many updates are journalled; also the number of the next one."""
        ...

    def begin_learner(self) -> int:
        """Become the learner of this run: the returned epoch fences every learner that began before."""
        ...

    def rows(self, composer: Composer, *, update: int) -> int:
        """How many rows this composer could choose from now: by it a learner knows whether to wait.

        Stale turns do not count, and for a composer with a gate neither do invalid ones.
        """
        ...

    def compose(self, composer: Composer, *, update: int, epoch: int) -> JournaledBatch:
        """Read the queue, decide the batch of this update, which must be the next one, journal it, then return it."""
        ...

    def batch(self, update: int) -> JournaledBatch:
        """A journalled batch, whole and in order: the same every time it is asked for."""
        ...

    def record(self, record: UpdateRecord) -> bool:
        """Keep what an update showed and cost. True: written now; False: there was a record, and that one counts."""
        ...

    def arrived(self) -> Arrived:
        """What explorers and teacher have produced so far."""
        ...

    def backlog(self) -> int:
        """Turns in the queue that no update has read yet."""
        ...

    def decided(self, update: int) -> Decided:
        """How many rollouts this update was the first to train, how many left with it without a trained turn, and how
        many turns it drained from the queue into its pool, and left there."""
        ...

    def acknowledge(self, update: int, *, epoch: int) -> None:
        """Say that a durable checkpoint holds this update and all before it: only now may they be settled."""
        ...

    def settle(self, update: int, *, epoch: int) -> int:
        """Drop the tokens of all turns that left by this update, which must be acknowledged; returns how many."""
        ...
