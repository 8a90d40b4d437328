"""The store as a few lists: the model that tests drive beside the SQLite one, and compare it with.

It keeps nothing through a crash and knows no second process. It shares types with the real store, but no code: the
reader's rule is written out again here.
"""

from dataclasses import replace

from divopd.composers.composer import Candidate, Composer, candidate_of
from divopd.errors import ConflictError, FencedError, InputError, QueueFullError, StoreError, TurnFormatError
from divopd.journal import Account, JournalEntry, ResumePoint
from divopd.turns import Fate, Rollout, Turn


class MemoryStore:
    """What a store should do, without any of the reasons why it is hard."""

    def __init__(self, *, max_queued: int | None = None) -> None:
        self.max_queued = max_queued
        self.rollouts: dict[str, Rollout] = {}
        self.queue: list[Turn] = []
        self.pending: list[Candidate] = []
        self.arrived: list[Turn] = []
        self.fate: dict[tuple[str, int], Fate] = {}
        self.entries: list[JournalEntry] = []
        self.dropped: set[tuple[str, int]] = set()
        self.epoch = self.acknowledged = self.read = 0

    def put(self, rollout: Rollout, *, available_at: int | None = None, wait_s: float = 0.0) -> bool:
        del wait_s  # nobody else could make room meanwhile
        if rollout.id in self.rollouts:
            if self.rollouts[rollout.id] != rollout:
                raise ConflictError(rollout.id)
            return False
        if self.max_queued is not None and self.queue and len(self.queue) + len(rollout.turns) > self.max_queued:
            raise QueueFullError(rollout.id)
        earliest = max([len(self.entries), *(turn.available_at for turn in self.arrived[-1:])])
        available_at = earliest if available_at is None else available_at
        if available_at < earliest:
            raise InputError(rollout.id)
        if rollout.version > available_at:
            raise TurnFormatError(rollout.id)
        self.rollouts[rollout.id] = rollout
        turns = [replace(turn, available_at=available_at) for turn in rollout.turns]
        self.queue += turns
        self.arrived += turns
        self.fate |= {turn.key: Fate("queued") for turn in turns}
        return True

    def begin_learner(self) -> int:
        self.epoch += 1
        return self.epoch

    def compose(self, composer: Composer, *, update: int, epoch: int) -> JournalEntry:
        self._check(epoch)
        if update != len(self.entries):
            raise StoreError(str(update))
        pool = self.pending + self._read(composer, update)
        decision = composer.decide(pool, update=update)
        exits = {"trained": decision.selected, "stale": decision.stale, "aged_out": decision.aged_out}
        self.fate |= {c.key: Fate(kind, update) for kind, left in exits.items() for c in left}  # pyright: ignore[reportArgumentType]
        self.fate |= {c.key: Fate("invalid", update, c.reason) for c in decision.invalid}
        self.fate |= {c.key: Fate("pending") for c in decision.pending}
        self.pending = decision.pending
        entry = JournalEntry(
            update=update,
            settings=composer.settings,
            watermark=self.read,
            selected=[c.key for c in decision.selected],
            weights=decision.weights,
            passes=decision.passes,
            stale=[c.key for c in decision.stale],
            invalid=[(*c.key, str(c.reason)) for c in decision.invalid],
            aged_out=[c.key for c in decision.aged_out],
        )
        self.entries.append(entry)
        return entry

    def _read(self, composer: Composer, update: int) -> list[Candidate]:
        oldest = max(update - composer.settings.max_staleness, 0)
        fresh: list[Candidate] = []
        while self.queue and self.queue[0].available_at <= update:
            alive = [c for c in (*self.pending, *fresh) if c.version >= oldest]
            if len(alive) >= composer.pool_size:
                break
            fresh.append(candidate_of(self.queue.pop(0), first_seen=update))
            self.read += 1
        return fresh

    def turns(self, update: int) -> list[Turn]:
        """The batch of an update, whole."""
        whole = {turn.key: turn for turn in self.arrived}
        if self.dropped & set(self.entries[update].selected):
            raise StoreError("settled")
        return [whole[key] for key in self.entries[update].selected]

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
        new = left - self.dropped
        self.dropped |= new
        return len(new)

    def resume_point(self) -> ResumePoint:
        return ResumePoint(self.acknowledged, len(self.entries))

    def account(self) -> Account:
        kinds = [fate.kind for fate in self.fate.values()]
        return Account(len(self.arrived), *(kinds.count(kind) for kind in Account._fields[1:]))  # pyright: ignore[reportArgumentType]

    def _check(self, epoch: int) -> None:
        if epoch != self.epoch:
            raise FencedError(str(epoch))
