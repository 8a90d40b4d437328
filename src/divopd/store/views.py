"""Counts and pages over a whole store, each by one query: what a page can show of a run with very many turns."""

from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from divopd.composers.composer import Settings
from divopd.errors import InputError
from divopd.metrics import Share
from divopd.store.journal import StoredTurn
from divopd.store.reader import BY_ARRIVAL, StoreReader
from divopd.store.schema import connect, store_path

# what became of a turn, as it is shown: a dead row is in a batch like a trained turn, but teaches nothing
ShownFate = Literal["trained", "dead", "invalid", "stale", "aged_out", "pending", "queued"]
FATES: tuple[ShownFate, ...] = get_args(ShownFate)
_DEAD = "t.fate = 'trained' AND t.reason IS NOT NULL"
_IS = {fate: f"t.fate = '{fate}'" for fate in FATES} | {
    "trained": "t.fate = 'trained' AND t.reason IS NULL",
    "dead": _DEAD,
}
# what a page of rollouts can be sorted by; nothing of a request becomes SQL
_ORDERS = {"arrival": "r.number", "turns": "r.turns", "disagreement": "disagreement", **{fate: fate for fate in FATES}}
_TALLY = ", ".join(f"sum({is_so}) AS {fate}" for fate, is_so in _IS.items())
_TALLIED = f"""SELECT r.id, r.task, r.version, r.available_at, r.turns, sum(t.tokens),
    max(CASE WHEN t.reason IS NULL THEN t.disagreement END) AS disagreement, r.success, r.reward, {_TALLY}
    FROM rollouts r JOIN turns t ON t.rollout = r.number"""
_NAMED = "(instr(lower(r.id), lower(:text)) OR instr(lower(r.task), lower(:text)))"


class Cursor(NamedTuple):
    """How far a store has got: equal cursors, nothing new."""

    updates: int
    turns: int
    evaluations: int
    records: int  # of updates
    events: int


class RolloutTally(NamedTuple):
    """How much of one rollout could be trained, and was."""

    version: int  # the newest of its valid turns
    available_at: int
    valid_turns: int
    trained_turns: int  # without dead rows
    valid_tokens: int  # of its valid turns
    trained_valid_tokens: int  # of the trained ones


class DepthTally(NamedTuple):
    """The turns at one depth with one fate."""

    turn: int
    fate: ShownFate
    turns: int
    valid_turns: int
    valid_tokens: int
    disagreement: float  # summed over the valid ones


class RolloutRow(NamedTuple):
    """One line of a list of rollouts. `success` and `reward` are None where nobody knows."""

    rollout: str
    task: str
    version: int  # when it began
    available_at: int
    turns: int
    tokens: int
    disagreement: float | None  # the largest of its valid turns
    fates: dict[ShownFate, int]
    success: bool | None
    reward: float | None


class RolloutPage(NamedTuple):
    """Some rollouts of `total` that fit."""

    rows: list[RolloutRow]
    total: int


class StoreViews(StoreReader):
    """The store of a run as a page looks at it."""

    @staticmethod
    def open(run: Path | str) -> "StoreViews":
        """Open the store of a run for reading; see StoreReader.open_read_only."""
        path = store_path(run)
        return StoreViews(path, connect(path, mode="ro"))

    def cursor(self) -> Cursor:
        with self.snapshot():
            turns = self._one("SELECT max(arrival) FROM turns", default=0)
            events = self._one("SELECT max(number) FROM events", default=0)
            counts = dict(self._db.execute("SELECT kind, count(*) FROM records GROUP BY kind").fetchall())
            return Cursor(self.updates, turns, counts.get("evaluation", 0), counts.get("update", 0), events)

    def settings(self) -> Settings | None:
        """The settings of the last batch; None before there is one."""
        with self.snapshot():
            return self.journal(self.updates - 1).settings if self.updates else None

    def reasons(self) -> dict[str, int]:
        """How many turns were discarded as invalid, by reason."""
        query = "SELECT reason, count(*) FROM turns WHERE fate = 'invalid' GROUP BY reason ORDER BY count(*) DESC"
        with self.snapshot():
            return {str(reason): count for reason, count in self._db.execute(query)}

    def dead_rows(self) -> dict[str, int]:
        """How many turns took a slot in a batch without a valid token, by reason."""
        query = f"SELECT t.reason, count(*) FROM turns t WHERE {_DEAD} GROUP BY t.reason ORDER BY count(*) DESC"
        with self.snapshot():
            return {str(reason): count for reason, count in self._db.execute(query)}

    def rollout_tallies(self, *, available_before: int) -> list[RolloutTally]:
        """Every rollout that had arrived before this update was composed."""
        query = """SELECT coalesce(max(CASE WHEN t.reason IS NULL THEN t.version END), r.version), r.available_at,
                sum(t.reason IS NULL),
                sum(t.reason IS NULL AND t.fate = 'trained'),
                sum(CASE WHEN t.reason IS NULL THEN t.valid_tokens ELSE 0 END),
                sum(CASE WHEN t.reason IS NULL AND t.fate = 'trained' THEN t.valid_tokens ELSE 0 END)
            FROM rollouts r JOIN turns t ON t.rollout = r.number WHERE r.available_at < ? GROUP BY r.number"""
        with self.snapshot():
            return [RolloutTally(*row) for row in self._db.execute(query, (available_before,))]

    def rollout_ids(self) -> list[str]:
        """Every rollout that was put, in the order of arrival."""
        with self.snapshot():
            return [rollout for (rollout,) in self._db.execute("SELECT id FROM rollouts ORDER BY number")]

    def depth_tallies(self) -> list[DepthTally]:
        """Turns by their place in the rollout and their fate, the first turn first."""
        query = f"""SELECT turn, CASE WHEN {_DEAD} THEN 'dead' ELSE fate END AS shown, count(*), sum(reason IS NULL),
                sum(CASE WHEN reason IS NULL THEN valid_tokens ELSE 0 END),
                sum(CASE WHEN reason IS NULL THEN disagreement ELSE 0.0 END)
            FROM turns t GROUP BY turn, shown ORDER BY turn"""
        with self.snapshot():
            return [DepthTally(*row) for row in self._db.execute(query)]

    def ages(self) -> dict[int, int]:
        """How many trained turns were so many policy versions old."""
        query = """SELECT fate_update - version AS age, count(*) FROM turns
            WHERE fate = 'trained' GROUP BY age ORDER BY age"""
        with self.snapshot():
            return dict(self._db.execute(query).fetchall())

    def waits(self) -> dict[int, int]:
        """How many trained turns had been pending for so many updates."""
        query = """SELECT fate_update - first_seen AS wait, count(*) FROM turns
            WHERE fate = 'trained' GROUP BY wait ORDER BY wait"""
        with self.snapshot():
            return dict(self._db.execute(query).fetchall())

    def trained(self, *, first: int, last: int) -> dict[int, list[StoredTurn]]:
        """The trained turns of these updates, both included, in arrival order."""
        condition = "WHERE t.fate = 'trained' AND t.fate_update BETWEEN ? AND ? ORDER BY t.arrival"
        with self.snapshot():
            turns = self._stored(BY_ARRIVAL + condition, first, last)
        batches: dict[int, list[StoredTurn]] = {update: [] for update in range(first, last + 1)}
        for turn in turns:
            batches[turn.fate.update or 0].append(turn)
        return batches

    def shares(self, *, first: int, last: int) -> dict[int, list[Share]]:
        """What each rollout has in the batches of these updates, both included."""
        query = """SELECT fate_update, sum(version), count(*), sum(valid_tokens = 0), sum(tokens),
                sum(valid_tokens), sum(disagreement)
            FROM turns WHERE fate = 'trained' AND fate_update BETWEEN ? AND ? GROUP BY fate_update, rollout"""
        batches: dict[int, list[Share]] = {update: [] for update in range(first, last + 1)}
        with self.snapshot():
            for update, *share in self._db.execute(query, (first, last)):
                batches[update].append(Share(*share))
        return batches

    def exits(self, *, first: int, last: int) -> dict[tuple[int, str], int]:
        """How many turns left the queue untrained, by update and fate."""
        query = """SELECT fate_update, fate, count(*) FROM turns
            WHERE fate_update BETWEEN ? AND ? AND fate <> 'trained' GROUP BY fate_update, fate"""
        with self.snapshot():
            return {(update, fate): count for update, fate, count in self._db.execute(query, (first, last))}

    def drained(self, *, first: int, last: int) -> dict[int, int]:
        """How many turns each of these updates, both included, read into its pool; stale ones are not counted."""
        query = """SELECT first_seen, count(*) FROM turns WHERE first_seen BETWEEN ? AND ?
            AND NOT (fate = 'stale' AND fate_update = first_seen) GROUP BY first_seen"""
        with self.snapshot():
            found = dict(self._db.execute(query, (first, last)).fetchall())
        return {update: found.get(update, 0) for update in range(first, last + 1)}

    def pending_counts(self) -> list[int]:
        """How many turns each update left pending: read by it or earlier, and not decided about."""
        change = [0] * (self.updates + 1)
        with self.snapshot():
            for sign, column in ((1, "first_seen"), (-1, "fate_update")):
                query = f"SELECT {column}, count(*) FROM turns WHERE {column} IS NOT NULL GROUP BY {column}"
                for update, turns in self._db.execute(query):
                    change[update] += sign * turns
        return list(accumulate(change[:-1]))

    def invalid_counts(self, *, first: int, last: int) -> dict[int, dict[str, int]]:
        """How many turns these updates, both included, found invalid, by reason: dropped by the gate, or dead rows."""
        query = """SELECT fate_update, reason, count(*) FROM turns WHERE fate_update BETWEEN ? AND ?
            AND (fate = 'invalid' OR fate = 'trained' AND reason IS NOT NULL) GROUP BY fate_update, reason"""
        found: dict[int, dict[str, int]] = {update: {} for update in range(first, last + 1)}
        with self.snapshot():
            for update, reason, turns in self._db.execute(query, (first, last)):
                found[update][reason] = turns
        return found

    def watermarks(self) -> list[int]:
        """How far each update had read the queue."""
        with self.snapshot():
            return [watermark for (watermark,) in self._db.execute("SELECT watermark FROM updates ORDER BY number")]

    def arrivals(self) -> list[tuple[int, int, int]]:
        """(update, rollouts, turns): what came into the queue before each update that something came before."""
        query = "SELECT available_at, count(*), sum(turns) FROM rollouts GROUP BY available_at ORDER BY available_at"
        with self.snapshot():
            return self._db.execute(query).fetchall()

    def rollout_page(
        self, *, first: int, count: int, order: str = "arrival", fate: str | None = None, text: str = ""
    ) -> RolloutPage:
        """Rollouts of which some turn has this fate, and whose id or task holds this text.

        `order` names a column; with a minus before it the largest come first.
        """
        column = order.removeprefix("-")
        if column not in _ORDERS or not (fate is None or fate in FATES):
            raise InputError(f"order {order!r}, fate {fate!r}; expected {', '.join(_ORDERS)}; a fate or none")
        with_fate = [f"EXISTS (SELECT 1 FROM turns t WHERE t.rollout = r.number AND {_IS[fate]})"] if fate else []
        conditions = with_fate + ([_NAMED] if text else [])
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        ordered = f"ORDER BY {_ORDERS[column]} {'DESC' if order != column else 'ASC'}, r.number"
        if column == "arrival":  # only the rollouts of the page need to be looked at
            some = f"SELECT r.number FROM rollouts r {where} {ordered} LIMIT :count OFFSET :first"
            page = f"{_TALLIED} WHERE r.number IN ({some}) GROUP BY r.number {ordered}"
        else:
            page = f"{_TALLIED} {where} GROUP BY r.number {ordered} LIMIT :count OFFSET :first"
        values: dict[str, Any] = {"first": first, "count": count, "text": text}
        with self.snapshot():
            total = self._db.execute(f"SELECT count(*) FROM rollouts r {where}", values).fetchone()[0]
            found = self._db.execute(page, values).fetchall()
        return RolloutPage([_rollout_row(row) for row in found], total)


def _rollout_row(row: tuple[Any, ...]) -> RolloutRow:
    rollout, task, version, available_at, turns, tokens, disagreement, success, reward, *fates = row
    tallies = dict(zip(FATES, fates, strict=True))
    ending = None if success is None else bool(success), reward
    return RolloutRow(rollout, task, version, available_at, turns, tokens, disagreement, tallies, *ending)
