"""What every composer does: the reader's rules, the gate, ageing.

A composer is a subclass with a `select` (which candidates, in which order). It keeps nothing between updates: `read`
and `decide` look at a queue and a pool and return data. What waits is kept by a store, or by a pool (pool.py).
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from divopd.errors import InputError
from divopd.turns import Turn
from divopd.validity import Reason, assess


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


def field(name: str) -> "itemgetter[Any]":
    """What reads a field of a candidate, by its place: faster than by its name."""
    return itemgetter(Candidate._fields.index(name))


def candidate_of(turn: Turn, *, first_seen: int) -> Candidate:
    """Gate a turn and measure its disagreement, once, when it is first seen."""
    measured = assess(turn)
    return Candidate(
        turn.rollout,
        turn.turn,
        turn.task,
        turn.version,
        first_seen,
        measured.reason,
        measured.disagreement,
        turn.tokens,
        measured.valid_tokens,
        turn.rollout_turns,
        turn.rollout_valid_tokens,
    )


class Selection(NamedTuple):
    """Selected candidates in the order of training, and for each the pass over the rollouts that took it (1, 2, …)."""

    candidates: list[Candidate]
    passes: list[int]


class WithOldest(Selection):
    """A selection that spares `decide` a look at every turn of the pool: mostly nothing is old enough to age out."""

    first_seen: int  # nothing of the pool was first seen earlier
    left: list[Candidate] | None = None  # all others, in the order of the pool, where that is known too

    @classmethod
    def of(cls, selection: Selection, first_seen: int, left: list[Candidate] | None = None) -> "WithOldest":
        found = cls(*selection)
        found.first_seen, found.left = first_seen, left
        return found


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
    """Decides which turns enter a batch. It has settings and no state."""

    gated: ClassVar[bool] = True  # drop invalid turns; without a gate they take slots as dead rows
    keeps_pending: ClassVar[bool] = True  # unselected turns wait; otherwise the pool is one batch
    capped: ClassVar[bool] = False  # looks at settings.cap

    def __init__(self, settings: Settings, *, weights: RowWeights = equal_rows) -> None:
        self.settings, self.weights = settings, weights

    @property
    def pool_size(self) -> int:
        """How many pending and fresh turns the composer looks at in one update."""
        return self.settings.batch_size * (self.settings.pool_multiplier if self.keeps_pending else 1)

    def oldest_version(self, update: int) -> int:
        """v_min of specification §4.1: a turn of an older policy version is stale at this update."""
        return max(update - self.settings.max_staleness, 0)

    @abstractmethod
    def select(self, pool: list[Candidate], *, update: int) -> Selection:
        """At most `batch_size` of the pool (valid and fresh enough), in the order of training."""

    def read(self, queue: Iterable[T], *, update: int, pending: Iterable[Versioned]) -> list[T]:
        """Step 2: fresh turns in arrival order until the pool is full or none is left. Pure.

        Stale turns on the way are read too, but take no room: `decide` reports them. `queue` starts at the first
        unread turn and is read no further than needed.
        """
        oldest = self.oldest_version(update)
        room = self.pool_size - sum(turn.version >= oldest for turn in pending)
        fresh: list[T] = []
        for turn in queue if room > 0 else ():
            fresh.append(turn)
            room -= turn.version >= oldest
            if room == 0:
                break
        return fresh

    def decide(self, pool: Sequence[Candidate], *, update: int) -> Decision:
        """Compose one batch from a pool: pending turns, then fresh ones, each in arrival order. Pure."""
        oldest = self.oldest_version(update)
        if self.gated:
            unfit = [c for c in pool if c.version < oldest or c.reason is not None]
        else:
            unfit = [c for c in pool if c.version < oldest]
        stale = [c for c in unfit if c.version < oldest]  # step 1
        invalid = [c for c in unfit if c.version >= oldest]  # step 3
        valid = _without(pool, unfit) if unfit or not isinstance(pool, list) else pool
        selection = self.select(valid, update=update)  # steps 4-7
        selected, passes = selection
        known = selection if isinstance(selection, WithOldest) else None
        left = _without(valid, selected) if known is None or known.left is None else known.left
        born = update - self.settings.max_pending_age  # step 8
        aged_out = [c for c in left if c.first_seen < born] if known is None or known.first_seen < born else []
        return Decision(
            selected=selected,
            weights=self.weights(selected, update=update, settings=self.settings),
            passes=passes,
            stale=stale,
            invalid=invalid,
            aged_out=aged_out,
            pending=[c for c in left if c.first_seen >= born] if aged_out else left,
        )


def _without(pool: Sequence[Candidate], gone: list[Candidate]) -> list[Candidate]:
    """The others, in order. By identity: both lists hold the candidates of one pool."""
    identities = set(map(id, gone))
    return [c for c in pool if id(c) not in identities]


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
