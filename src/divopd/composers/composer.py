"""What every composer does: the reader's rules, the gate, ageing, and the state between updates.

A composer is a subclass with a `select` (which candidates, in which order). Deciding is pure: `read` and `decide` look
at a queue and a pool and return data. `compose` is the same for callers who hold whole turns and no store.
"""

import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from divopd.errors import InputError, NothingToTrainWarning
from divopd.turns import Turn, turn_from_state, turn_to_json
from divopd.validity import Reason, disagreement, valid_mask, why_invalid


class Candidate(NamedTuple):
    """All that a composer may look at: a turn without its tokens. The last two fields are for row weights only."""

    rollout: str
    turn: int
    task: str
    version: int
    first_seen: int
    reason: Reason | None  # why the turn is invalid
    disagreement: float  # 0.0 for an invalid turn
    tokens: int
    valid_tokens: int
    rollout_turns: int | None = None
    rollout_valid_tokens: int | None = None

    @property
    def key(self) -> tuple[str, int]:
        return self.rollout, self.turn


def candidate_of(turn: Turn, *, first_seen: int) -> Candidate:
    """Gate a turn and measure its disagreement, once, when it is first seen."""
    reason = why_invalid(turn)
    alive = reason is None
    return Candidate(
        turn.rollout,
        turn.turn,
        turn.task,
        turn.version,
        first_seen,
        reason,
        disagreement(turn) if alive else 0.0,
        turn.tokens,
        sum(valid_mask(turn)) if alive else 0,
        turn.rollout_turns,
        turn.rollout_valid_tokens,
    )


class Selection(NamedTuple):
    """Selected candidates in the order of training, and for each the pass over the rollouts that took it (1, 2, …)."""

    candidates: list[Candidate]
    passes: list[int]


class Decision(NamedTuple):
    """What a composer wants done with a pool. Every candidate of the pool is in exactly one list."""

    selected: list[Candidate]
    weights: list[float]
    passes: list[int]
    stale: list[Candidate]
    invalid: list[Candidate]
    aged_out: list[Candidate]
    pending: list[Candidate]


@dataclass(frozen=True)
class Batch:
    """What to train on, in order, and what fell out of the pool on the way."""

    turns: list[Turn]
    weights: list[float]
    stale: list[Turn]
    invalid: list[tuple[Turn, Reason]]
    aged_out: list[Turn]


@dataclass(frozen=True)
class Settings:
    """The numbers of a composer; the defaults are the paper's (Table "Shared sampler configuration")."""

    method: str
    batch_size: int = 64
    """B: turns of an update."""
    pool_multiplier: int = 4
    """c: the composer looks at c·B turns."""
    cap: int | None = 4
    """k: turns a rollout may give in the first pass; null: as many as it has."""
    max_staleness: int = 2
    """δ: a turn that is more policy versions old is not trained."""
    max_pending_age: int = 8
    """W: a turn that has waited for more updates in the pool falls out."""
    seed: int = 0
    total_updates: int = 250  # length of training; only turnopd's schedule looks at it

    def __post_init__(self) -> None:
        least = {"batch_size": 1, "pool_multiplier": 1, "max_staleness": 0, "max_pending_age": 0, "total_updates": 1}
        for name, smallest in least.items():
            if getattr(self, name) < smallest:
                raise InputError(f"{name} is {getattr(self, name)}; expected {smallest} or more")
        if self.cap is not None and self.cap < 1:
            raise InputError(f"cap is {self.cap}; expected 1 or more, or none for no cap")


class RowWeights(Protocol):
    """What each selected row weighs in the loss, in order; the mean over a batch is 1."""

    def __call__(self, selected: Sequence[Candidate], *, update: int, settings: Settings) -> list[float]: ...


def equal_rows(selected: Sequence[Candidate], *, update: int, settings: Settings) -> list[float]:
    """Every row weighs 1, as in the paper."""
    del update, settings
    return [1.0] * len(selected)


class Versioned(Protocol):
    """Anything of a policy version: a candidate, a stored turn, a turn."""

    @property
    def version(self) -> int: ...


T = TypeVar("T", bound=Versioned)


class Composer(ABC):
    """Fills learner batches from scored turns. One instance belongs to one run and keeps its pending turns."""

    gated: ClassVar[bool] = True  # drop invalid turns; without a gate they take slots as dead rows
    keeps_pending: ClassVar[bool] = True  # unselected turns wait; otherwise the pool is one batch
    capped: ClassVar[bool] = False  # looks at settings.cap

    def __init__(self, settings: Settings, *, weights: RowWeights = equal_rows) -> None:
        self.settings, self.weights = settings, weights
        self._pending: list[tuple[Candidate, Turn]] = []
        self._has_warned = False

    @property
    def pool_size(self) -> int:
        """How many pending and fresh turns the composer looks at in one update."""
        return self.settings.batch_size * (self.settings.pool_multiplier if self.keeps_pending else 1)

    def oldest_version(self, update: int) -> int:
        """v_min of specification §4.1: a turn of an older policy version is stale at this update."""
        return max(update - self.settings.max_staleness, 0)

    # ── deciding ──────────────────────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def select(self, pool: list[Candidate], *, update: int) -> Selection:
        """At most `batch_size` of the pool (valid and fresh enough), in the order of training."""

    def read(self, queue: Iterable[T], *, update: int, pending: Iterable[Versioned]) -> list[T]:
        """Step 2: fresh turns in arrival order until the pool is full or none is left. Pure.

        Stale turns on the way are read too, but take no room: `decide` reports them. `queue` starts at the first
        unread turn and is read no further than needed.
        """
        oldest, room = self.oldest_version(update), self._room(pending, update=update)
        fresh: list[T] = []
        for turn in queue if room > 0 else ():
            fresh.append(turn)
            room -= turn.version >= oldest
            if room == 0:
                break
        return fresh

    def _room(self, pending: Iterable[Versioned], *, update: int) -> int:
        oldest = self.oldest_version(update)
        return self.pool_size - sum(turn.version >= oldest for turn in pending)

    def decide(self, pool: Sequence[Candidate], *, update: int) -> Decision:
        """Compose one batch from a pool: pending turns, then fresh ones, each in arrival order. Pure."""
        oldest = self.oldest_version(update)
        stale = [c for c in pool if c.version < oldest]  # step 1
        eligible = [c for c in pool if c.version >= oldest] if stale else list(pool)
        invalid = [c for c in eligible if c.reason is not None] if self.gated else []  # step 3
        valid = [c for c in eligible if c.reason is None] if invalid else eligible
        selected, passes = self.select(valid, update=update)  # steps 4-7
        taken = set(map(id, selected))  # by identity: select() returns candidates of the pool
        left = [c for c in valid if id(c) not in taken]
        born = update - self.settings.max_pending_age  # step 8
        aged_out = [c for c in left if c.first_seen < born]
        return Decision(
            selected=selected,
            weights=self.weights(selected, update=update, settings=self.settings),
            passes=passes,
            stale=stale,
            invalid=invalid,
            aged_out=aged_out,
            pending=[c for c in left if c.first_seen >= born] if aged_out else left,
        )

    # ── for callers who hold whole turns ──────────────────────────────────────────────────────────────────────────

    def room(self, update: int) -> int:
        """How many fresh turns the composer can take at this update."""
        return self._room((candidate for candidate, _ in self._pending), update=update)

    def take(self, queue: Iterable[Turn], update: int) -> list[Turn]:
        """The turns to compose from at this update: those of a queue that the pool has room for, in arrival order.

        Stale ones on the way come with them and take no room. The queue is read no further than needed.
        """
        return self.read(queue, update=update, pending=(candidate for candidate, _ in self._pending))

    def compose(self, fresh: Sequence[Turn], update: int) -> Batch:
        """Add fresh turns, in arrival order, and compose the batch of this update.

        Stale turns among them take no room and are reported in `stale`. Selected turns are never seen again;
        unselected ones stay pending inside the composer until they are selected or fall out. If this raises,
        nothing has changed. The first batch in which no turn is valid is told by a NothingToTrainWarning.
        """
        oldest = self.oldest_version(update)
        eligible = sum(turn.version >= oldest for turn in fresh)
        if eligible > self.room(update):
            raise InputError(
                f"update {update}: got {eligible} fresh turns that are not stale, but there is room for "
                f"{self.room(update)}; pass at most composer.room(update) turns and leave the rest in the queue"
            )
        pool = [*self._pending, *((candidate_of(turn, first_seen=update), turn) for turn in fresh)]
        whole = {candidate.key: turn for candidate, turn in pool}
        if len(whole) < len(pool):
            raise InputError(f"update {update}: a fresh turn is already pending, or was passed twice")
        decision = self.decide([candidate for candidate, _ in pool], update=update)
        if not self._has_warned and (text := nothing_to_train(decision, update=update)):
            warnings.warn(text, NothingToTrainWarning, stacklevel=2)
            self._has_warned = True
        self._pending = [(candidate, whole[candidate.key]) for candidate in decision.pending]
        return Batch(
            turns=[whole[c.key] for c in decision.selected],
            weights=decision.weights,
            stale=[whole[c.key] for c in decision.stale],
            invalid=[(whole[c.key], c.reason) for c in decision.invalid if c.reason is not None],
            aged_out=[whole[c.key] for c in decision.aged_out],
        )

    def state_dict(self) -> dict[str, Any]:
        """All that the next update depends on, as JSON types."""
        pending = [{"first_seen": c.first_seen, "turn": turn_to_json(turn)} for c, turn in self._pending]
        return {"settings": asdict(self.settings), "pending": pending}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state; composing continues identically. A state of another method is refused."""
        method = state["settings"]["method"]
        if method != self.settings.method:
            raise InputError(f"the saved state is of method {method!r}, this composer is {self.settings.method!r}")
        self._pending = []
        for entry in state["pending"]:
            turn = turn_from_state(entry["turn"], where="composer state")
            self._pending.append((candidate_of(turn, first_seen=entry["first_seen"]), turn))


def nothing_to_train(decision: Decision, *, update: int) -> str | None:
    """What to tell when turns came and none of them is valid: the gate dropped all, or all rows are dead."""
    if any(candidate.reason is None for candidate in decision.selected):
        return None
    lost = [*decision.invalid, *decision.selected]
    if not lost:
        return None
    return (
        f"update {update}: there is nothing to train, all {len(lost)} turns are invalid ({counted_reasons(lost)}); "
        "see divopd.validity for what a turn needs"
    )


def counted_reasons(candidates: Sequence[Candidate]) -> str:
    """Why turns are invalid, the most frequent reason first: `no_action_mask 12, prompt_truncated 3`."""
    reasons = Counter(candidate.reason for candidate in candidates if candidate.reason is not None)
    return ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
