"""The ledger audit: every batch of a run, recomputed from what was put and the settings in the journal.

It trusts as little as it can: turns are measured again from their tokens (unless they were settled), the queue is read
again by the reader's rule, every decision is taken again, and every fate is compared with the one in the store.
"""

from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

from divopd.composers.composer import Candidate, candidate_of
from divopd.errors import InputError, LedgerError
from divopd.methods import make_composer
from divopd.store.journal import Account, JournalEntry, Key, StoredTurn, entry_of, exits_of
from divopd.store.reader import StoreReader, available
from divopd.turns import Fate


@dataclass(frozen=True)
class LedgerReport:
    """What was recomputed and found equal."""

    updates: int
    rollouts: int
    account: Account
    settled: int  # turns whose tokens are gone, so that their measurements could not be repeated


def audit_ledger(store: StoreReader) -> LedgerReport:
    """Recompute a run's ledger; a LedgerError names the first difference, a NotAStoreError the first damage."""
    with store.snapshot():
        store.check()
        turns = list(store.stored_turns())
        settled = sum(not _measured_again(store, turn) for turn in turns)
        fates = _recompute(store, turns)
        for turn in turns:
            expected = fates.get(turn.key, (None, Fate("queued")))
            if (turn.first_seen, turn.fate) != expected:
                raise LedgerError(
                    f"rollout {turn.rollout!r} turn {turn.turn}: the store says {_fate(turn.first_seen, turn.fate)}, "
                    f"recomputed {_fate(*expected)}"
                )
        account = store.account()
        if not account.adds_up:
            raise LedgerError(f"the account does not add up: {account}")
        return LedgerReport(store.updates, len({turn.rollout for turn in turns}), account, settled)


def _measured_again(store: StoreReader, turn: StoredTurn) -> bool:
    """Compare the columns of a turn with its tokens; False if those are gone."""
    if store.is_settled(turn):
        return False
    stored, again = turn.candidate(update=0), candidate_of(store.whole(turn), first_seen=turn.first_seen or 0)
    if stored != again:
        raise LedgerError(f"rollout {turn.rollout!r} turn {turn.turn}: the store says {stored}, its tokens say {again}")
    return True


def _recompute(store: StoreReader, turns: list[StoredTurn]) -> dict[Key, tuple[int | None, Fate]]:
    """(first seen, fate) of every turn that was read, after taking all decisions again."""
    unread = deque(turn._replace(first_seen=None) for turn in turns)
    pending: list[Candidate] = []
    fates: dict[Key, tuple[int | None, Fate]] = {}
    watermark = 0
    for update in range(store.updates):
        entry = store.journal(update)
        try:
            composer = make_composer(**asdict(entry.settings))
            fresh = composer.read(available(unread, update=update), update=update, pending=pending)
            pool = pending + [unread.popleft().candidate(update=update) for _ in fresh]
            decision = composer.decide(pool, update=update)
        except (InputError, TypeError) as error:  # a stranger's store may hold any settings
            raise LedgerError(f"update {update}: its {entry.settings} compose nothing ({error})") from None
        watermark = fresh[-1].arrival if fresh else watermark
        _compare(entry, entry_of(decision, update=update, composer=composer, watermark=watermark))
        for kind, left in exits_of(decision).items():
            fates |= {c.key: (c.first_seen, Fate(kind, update, c.reason if kind == "invalid" else None)) for c in left}
        pending = decision.pending
    return fates | {c.key: (c.first_seen, Fate("pending")) for c in pending}


def _compare(journaled: JournalEntry, again: JournalEntry) -> None:
    for field, got in asdict(journaled).items():
        expected = asdict(again)[field]
        if got != expected:
            raise LedgerError(f"update {journaled.update}: {field}: {_first_difference(got, expected)}")


def _first_difference(journaled: Any, again: Any) -> str:
    if isinstance(journaled, list) and isinstance(again, list):
        for place, (got, expected) in enumerate(zip(journaled, again, strict=False)):
            if got != expected:
                return f"number {place} is {got} in the journal, {expected} when recomputed"
        return f"{len(journaled)} in the journal, {len(again)} when recomputed"
    return f"{journaled} in the journal, {again} when recomputed"


def _fate(first_seen: int | None, fate: Fate) -> str:
    return f"{fate} at update {fate.update}, first seen at {first_seen}"
