"""The store as a few lists: a Queue and a Ledger without a disk, for tests of roles and loops.

It keeps nothing through a crash and knows no second process. It shares types with the real store, but no code: the
reader's rule is written out again here, so that test_store_model.py can drive both stores and compare them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

from divopd.composers.composer import Candidate, Composer, candidate_of
from divopd.curricula import Outcome
from divopd.errors import ConflictError, FencedError, InputError, StoreError, TurnFormatError
from divopd.records import EvaluationRecord, UpdateRecord
from divopd.store import (
    WRONG_ANSWER,
    Account,
    Answer,
    Arrived,
    Decided,
    JournaledBatch,
    JournalEntry,
    Key,
    Ledger,
    Question,
    Questions,
    Queue,
    Store,
)
from divopd.turns import Fate, FateKind, Rollout, TeacherTurn, Turn


class MemoryStore:
    """What a store should do, without any of the reasons why it is hard."""

    def __init__(self) -> None:
        self.started = self.generated_tokens = self.epoch = self.acknowledged = 0
        self.offered: dict[str, Rollout] = {}
        self.clock: Callable[[], float] = lambda: 0.0
        self.leases: dict[Any, tuple[str, float]] = {}  # of rollouts by id and of questions by number: holder, end
        self.asked: dict[int, tuple[str, Question]] = {}
        self.answered: dict[int, Answer] = {}
        self.rollout: dict[str, Rollout] = {}  # as they were put, in order of arrival
        self.arrivals: list[Turn] = []
        self.read = 0  # so many of the arrivals
        self.pending: list[Candidate] = []
        self.fate: dict[Key, Fate] = {}
        self.entries: list[JournalEntry] = []
        self.batches: list[JournaledBatch] = []
        self.settled: set[Key] = set()
        self._records: dict[int, UpdateRecord] = {}
        self._evaluations: dict[int, EvaluationRecord] = {}
        self._events: list[tuple[int, str, dict[str, Any]]] = []

    # ── explorers and teachers ────────────────────────────────────────────────────────────────────────────────────

    def reserve(self, count: int) -> range:
        self.started += count
        return range(self.started - count, self.started)

    def offer(self, rollout: Rollout, *, generated_tokens: int) -> None:
        if rollout.id not in self.rollout and rollout.id not in self.offered:
            self.offered[rollout.id] = rollout
            self.generated_tokens += generated_tokens

    def unscored(self, limit: int) -> list[Rollout]:
        return list(reversed(self.offered.values()))[:limit]

    def claim(self, holder: str, count: int, *, seconds: float) -> list[Rollout]:
        free = [name for name in reversed(self.offered) if self._is_free(name, holder, seconds)][:count]
        self.leases |= {name: (holder, self.clock() + seconds) for name in free}
        return [self.offered[name] for name in free]

    def _is_free(self, name: Any, holder: str, seconds: float) -> bool:
        whose, until = self.leases.get(name, (holder, 0.0))
        return whose == holder or until <= self.clock() or until > self.clock() + seconds

    def renew(self, holder: str, *, seconds: float) -> int:
        return self._move(holder, holder, seconds)

    def set_aside(self, holder: str, *, seconds: float) -> int:
        return self._move(holder, "", seconds)

    def _move(self, holder: str, to: str, seconds: float) -> int:
        held = [name for name, (whose, _) in self.leases.items() if whose == holder]
        self.leases |= {name: (to, self.clock() + seconds) for name in held}
        return len(held)

    def put_scored(self, rollout: Rollout) -> bool:
        return rollout.id in self.offered and self.put(rollout)

    def ask(self, asker: str, questions: Sequence[Question]) -> None:
        for question in questions:
            self.asked.setdefault(question.number, (asker, question))

    def claim_questions(self, holder: str, count: int, *, seconds: float) -> list[Question]:
        waiting = [number for number in self.asked if number not in self.answered]
        free = [number for number in waiting if self._is_free(number, holder, seconds)][:count]
        self.leases |= {number: (holder, self.clock() + seconds) for number in free}
        return [self.asked[number][1] for number in free]

    def answer(self, number: int, answer: Answer) -> bool:
        if number not in self.asked or number in self.answered:
            return False
        self.answered[number] = answer
        self.leases.pop(number, None)
        return True

    def answers(self, numbers: Iterable[int]) -> dict[int, Answer]:
        return {number: self.answered[number] for number in numbers if number in self.answered}

    def forget_questions(self, numbers: Iterable[int]) -> None:
        for number in list(numbers):
            self.asked.pop(number, None)
            self.answered.pop(number, None)
            self.leases.pop(number, None)

    def forget_asker(self, asker: str) -> None:
        self.forget_questions([number for number, (who, _) in self.asked.items() if who == asker])

    def put(self, rollout: Rollout, *, available_at: int | None = None, generated_tokens: int = 0) -> bool:
        if rollout.id in self.rollout:
            known = self.rollout[rollout.id]
            if known != rollout and known.wrong_answer is None and rollout.wrong_answer is None:
                raise ConflictError(rollout.id)
            return False
        earliest = max([len(self.entries), *(turn.available_at for turn in self.arrivals[-1:])])
        available_at = earliest if available_at is None else available_at
        if available_at < earliest:
            raise InputError(rollout.id)
        if any(turn.version > available_at for turn in rollout.turns):
            raise TurnFormatError(rollout.id)
        self.generated_tokens += 0 if self.offered.pop(rollout.id, None) else generated_tokens
        self.leases.pop(rollout.id, None)
        self.rollout[rollout.id] = rollout
        self.arrivals += [replace(turn, available_at=available_at) for turn in rollout.turns]
        self.fate |= {turn.key: Fate("queued") for turn in rollout.turns}
        if rollout.wrong_answer is not None:
            event = {"rollout": rollout.id, "task": rollout.task, "reason": rollout.wrong_answer}
            self.note(WRONG_ANSWER, event | {"turns": len(rollout.turns), "update": self.updates})
        return True

    def teacher_turns(self, rollout: str) -> tuple[TeacherTurn, ...]:
        return self.rollout[rollout].teacher_turns

    def outcomes(self, *, after: int) -> list[Outcome]:
        return [
            Outcome(number, rollout.version, bool(rollout.turns[0].success), tuple(map(_measured, rollout.turns)))
            for number, rollout in enumerate(self.rollout.values(), 1)
            if number > after
        ]

    def backlog(self) -> int:
        return len(self.arrivals) - self.read

    def note(self, kind: str, event: dict[str, Any]) -> None:
        self._events.append((len(self._events) + 1, kind, event))

    # ── the learner ───────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def updates(self) -> int:
        return len(self.entries)

    def begin_learner(self) -> int:
        self.epoch += 1
        return self.epoch

    def rows(self, composer: Composer, *, update: int) -> int:
        oldest = update - composer.settings.max_staleness
        fresh = [c for c in self._pool(composer, update) if c.version >= oldest]
        return len([c for c in fresh if c.reason is None] if composer.gated else fresh)

    def compose(self, composer: Composer, *, update: int, epoch: int) -> JournaledBatch:
        self._check(epoch)
        if update != len(self.entries):
            raise StoreError(str(update))
        pool = self._pool(composer, update)
        decision = composer.decide(pool, update=update)
        self.read += len(pool) - len(self.pending)
        self.pending = decision.pending
        exits: dict[FateKind, list[Candidate]] = {
            "trained": decision.selected,
            "stale": decision.stale,
            "aged_out": decision.aged_out,
        }
        self.fate |= {c.key: Fate(kind, update) for kind, left in exits.items() for c in left}
        self.fate |= {c.key: Fate("invalid", update, c.reason) for c in decision.invalid}
        self.fate |= {c.key: Fate("pending") for c in decision.pending}
        entry = JournalEntry(
            update=update,
            settings=composer.settings,
            watermark=self.read,
            selected=[c.key for c in decision.selected],
            weights=list(decision.weights),
            passes=list(decision.passes),
            stale=[c.key for c in decision.stale],
            invalid=[(*c.key, str(c.reason)) for c in decision.invalid],
            aged_out=[c.key for c in decision.aged_out],
        )
        self.entries.append(entry)
        whole = {turn.key: turn for turn in self.arrivals}
        digest = sha256(repr(self.entries).encode()).hexdigest()
        turns = [whole[key] for key in entry.selected]
        self.batches.append(JournaledBatch(entry, digest, turns, list(decision.selected)))
        return self.batches[-1]

    def _pool(self, composer: Composer, update: int) -> list[Candidate]:
        """Pending turns, then fresh ones until as many as the pool takes are not stale."""
        pool = list(self.pending)
        for turn in self.arrivals[self.read :]:
            alive = [c for c in pool if c.version >= update - composer.settings.max_staleness]
            if turn.available_at > update or len(alive) >= composer.pool_size:
                break
            pool.append(candidate_of(turn, first_seen=update))
        return pool

    def batch(self, update: int) -> JournaledBatch:
        if not 0 <= update < len(self.entries):
            raise InputError(str(update))
        if self.settled & set(self.entries[update].selected):
            raise StoreError("settled")
        return self.batches[update]

    def acknowledge(self, update: int, *, epoch: int) -> None:
        self._check(epoch)
        if not 0 <= update < len(self.entries):
            raise InputError(str(update))
        self.acknowledged = max(self.acknowledged, update + 1)

    def settle(self, update: int, *, epoch: int) -> int:
        self._check(epoch)
        if update >= self.acknowledged:
            raise StoreError(str(update))
        left = {key for key, fate in self.fate.items() if fate.update is not None and fate.update <= update}
        new = left - self.settled
        self.settled |= new
        return len(new)

    def _check(self, epoch: int) -> None:
        if epoch != self.epoch:
            raise FencedError(str(epoch))

    # ── records and counts ────────────────────────────────────────────────────────────────────────────────────────

    def record(self, record: UpdateRecord) -> bool:
        known = record.update in self._records
        self._records.setdefault(record.update, record)
        return not known

    def record_evaluation(self, record: EvaluationRecord) -> bool:
        known = record.version in self._evaluations
        self._evaluations.setdefault(record.version, record)
        return not known

    def update_records(self, *, first: int = 0, last: int | None = None) -> dict[int, UpdateRecord]:
        known = sorted(number for number in self._records if number >= first and (last is None or number <= last))
        return {number: self._records[number] for number in known}

    def evaluations(self) -> dict[int, EvaluationRecord]:
        return dict(sorted(self._evaluations.items()))

    def events(self, *, after: int = 0) -> list[tuple[int, str, dict[str, Any]]]:
        return self._events[after:]

    def arrived(self) -> Arrived:
        scored = sum(turn.tokens for turn in self.arrivals)
        return Arrived(len(self.rollout), len(self.arrivals), self.generated_tokens, scored)

    def rollouts(self, *, available_by: int) -> int:
        return len({turn.rollout for turn in self.arrivals if turn.available_at <= available_by})

    def decided(self, update: int) -> Decided:
        if not 0 <= update < len(self.entries):
            raise InputError(str(update))
        used = unused = 0
        for rollout in self.rollout.values():
            fates = [self.fate[turn.key] for turn in rollout.turns if candidate_of(turn, first_seen=0).reason is None]
            trained = [fate.update for fate in fates if fate.kind == "trained" and fate.update is not None]
            left = [fate.update for fate in fates if fate.update is not None]
            used += bool(trained) and min(trained) == update
            unused += not trained and bool(left) and len(left) == len(fates) and max(left) == update
        before = self.entries[update - 1].watermark if update else 0
        read = self.arrivals[before : self.entries[update].watermark]
        drained = sum(self.fate[turn.key] != Fate("stale", update) for turn in read)
        ends = [self.fate[turn.key].update for turn in self.arrivals[: self.entries[update].watermark]]
        return Decided(used, unused, drained, pending=sum(end is None or end > update for end in ends))

    def account(self) -> Account:
        kinds = [fate.kind for fate in self.fate.values()]
        return Account(len(self.arrivals), *(_count(kinds, kind) for kind in Account._fields[1:]))


AnyStore = Store | MemoryStore


def as_faces(store: MemoryStore) -> tuple[Queue, Questions, Ledger]:
    """It can be handed to every role as it is: the type checker says so."""
    return store, store, store


def _count(kinds: Iterable[str], wanted: str) -> int:
    return sum(kind == wanted for kind in kinds)


def _measured(turn: Turn) -> tuple[float, int]:
    candidate = candidate_of(turn, first_seen=0)
    return candidate.disagreement, candidate.valid_tokens
