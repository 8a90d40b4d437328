"""What became of the turns: all of them counted, and one in a sentence, as `divopd why` prints it."""

from typing import Any

from divopd.records import ProgramFigures
from divopd.store.calls import CallAttempt, read_attempts
from divopd.store.journal import Account, JournalEntry, StoredTurn
from divopd.store.reader import StoreReader
from divopd.turns import TeacherTurn

_PARSED = {
    "no_tools": "a text",
    "text": "answered with a text",
    "calls": "called",
    "unparsed": "a call that does not parse",
}
_ENDINGS = {"stop": "ended by itself", "tool_calls": "ended with its call", "length": "cut at its limit of tokens"}
LAST_WORDS = 200  # characters of what a program has printed
ORDINALS = ("first", "second", "third", "fourth", "fifth")


def shown_fates(account: Account, *, dead: int) -> dict[str, int]:
    """How many turns are where. Dead rows took a slot in a batch, so the store says trained; they taught nothing.

    A method with a gate discards the same turns as invalid: only told apart are two methods comparable.
    """
    others = {fate: turns for fate, turns in account._asdict().items() if fate not in ("put", "trained")}
    return {"trained": account.trained - dead, "dead": dead, **others}


def why(store: StoreReader, rollout: str) -> dict[str, Any]:
    """A rollout as JSON types, with the fate of every row and a sentence about it, and the turns of the teacher."""
    with store.snapshot():
        turns = store.turns_of(rollout)
        left_at = {turn.fate.update for turn in turns if turn.fate.update is not None}
        entries = {update: store.journal(update) for update in left_at}
        taught = store.teacher_turns(rollout)
        attempts = calls_of(store, rollout)
    sentences = [sentence(t, None if t.fate.update is None else entries[t.fate.update]) for t in turns]
    told = _as_json(turns, sentences) | {"teacher_turns": [_taught_as_json(turn) for turn in taught]}
    if not attempts:
        return told
    last = attempts[-1]
    return told | {"calls": call_lines(last), "attempts": len(attempts), "program": program_lines(last)}


def calls_of(store: StoreReader, rollout: str) -> list[CallAttempt]:
    """The attempts of an agent program at this rollout; none if its environment is no program."""
    number = rollout.removeprefix("r")
    return read_attempts(store, int(number)) if number.isdecimal() and len(number) < 12 else []


def program_lines(attempt: CallAttempt) -> list[str]:
    """How the program of an attempt ended, which of its calls were refused, and what it printed last; for people."""
    if attempt.ended is None:
        return ["the program was broken off with the process that had started it"]
    refused = attempt.ended.get("refused", [])
    more = attempt.ended.get("counts", {}).get("refused", len(refused)) - len(refused)
    end = attempt.ended["ended"]
    lines = [
        end if end.startswith("the ") else f"the program: {end}",
        *(f"a call was refused: {sentence}" for sentence in refused),
    ]
    lines += [f"{counted(more, 'call')} more {'was' if more == 1 else 'were'} refused"] if more > 0 else []
    words = attempt.ended.get("output", "").strip()
    return [*lines, f"it printed last: {words.rpartition(chr(10))[2][-LAST_WORDS:]}"] if words else lines


def call_lines(attempt: CallAttempt) -> list[dict[str, Any]]:
    """Every call of an attempt, for people: who asked, how it was answered, and whether the program heard it."""
    lost = set((attempt.ended or {}).get("undelivered", ()))
    return [_call_as_json(turn, record, delivered=turn not in lost) for turn, record in attempt.calls.items()]


def _call_as_json(turn: int, record: dict[str, Any] | None, *, delivered: bool) -> dict[str, Any]:
    if record is None:
        text = f"call {turn} was begun and never answered: the attempt is incomplete"
        return {"turn": turn, "agent": None, "delivered": False, "sentence": text}
    read, written = len(record["prompt_ids"]), len(record["completion_ids"])
    offered = f"{counted(len(record['tools']), 'tool')} offered, {_PARSED[record['parsed']]}"
    ending = _ENDINGS[record["finish"]]
    heard = "delivered" if delivered else "not delivered: no row unless environment.undelivered is train"
    version = "" if record["first_version"] is None else f" of version {record['first_version']}"
    text = (
        f"call {turn} of agent {record['agent']}: {read} tokens read, {written} written by the "
        f"{record['actor']}{version}, {offered}, {ending}, {heard}"
    )
    kept = ("agent", "actor", "asked", "applied", "tools", "parsed", "action", "finish", "streamed")
    return {"turn": turn, "delivered": delivered, "sentence": text} | {name: record[name] for name in kept}


def told_of_programs(figures: ProgramFigures) -> str:
    """What the programs of a run asked for and heard, in a line."""
    tools = f"; tools were offered in {figures.with_tools}: {figures.tool_calls} answers called one, "
    tools = f"{tools}{figures.unparsed} did not parse" if figures.with_tools else ""
    return (
        f"{counted(figures.attempts, 'program')} ended, {figures.broke_off} of them broke off; "
        f"{counted(figures.calls, 'call')} answered, {figures.undelivered} not heard{tools}; "
        f"{counted(figures.refused, 'call')} refused"
    )


def _taught_as_json(turn: TeacherTurn) -> dict[str, Any]:
    did = "answered without an action" if turn.action is None else f"did {turn.action!r}"
    text = f"turn {turn.turn} was the teacher's, which {did} for a stuck student: no row"
    return {"turn": turn.turn, "action": turn.action, "tokens": len(turn.response_ids), "sentence": text}


def sentence(turn: StoredTurn, entry: JournalEntry | None) -> str:
    """The fate of a turn; `entry` is the journal of the update at which it left, None if it has not left."""
    valid = turn.reason is None
    about = f"disagreement {round(turn.disagreement, 2) + 0.0:.2f}" if valid else f"invalid: {turn.reason}"
    subject = f"turn {turn.turn} ({about}, {counted(turn.valid_tokens if valid else turn.tokens, 'token')})"
    if entry is None:
        if turn.first_seen is None:
            return f"{subject} is queued: no update has read it yet"
        return f"{subject} is pending since update {turn.first_seen}"
    update, settings = entry.update, entry.settings
    waited = update - (turn.first_seen if turn.first_seen is not None else update)
    if turn.fate.kind == "trained":
        how = "was trained" if valid else "took a slot as a dead row"
        return f"{subject} {how} in update {update}, {_after(waited)}, as {_place(turn, entry)}"
    if turn.fate.kind == "stale":
        oldest = max(update - settings.max_staleness, 0)
        was = "was stale when it was read" if not waited else f"became stale, {_after(waited)},"
        return f"{subject} {was} at update {update}: its policy version {turn.version} is below {oldest}"
    if turn.fate.kind == "aged_out":
        return (
            f"{subject} aged out at update {update}: pending since update {turn.first_seen}, "
            f"longer than {_updates(settings.max_pending_age)}"
        )
    return f"{subject} was discarded at update {update}, when it was read"


def _place(turn: StoredTurn, entry: JournalEntry) -> str:
    """Which of its rollout's turns it was, in the pass over the rollouts that took it."""
    number = entry.passes[entry.selected.index(turn.key)]
    together = [
        key
        for key, other in zip(entry.selected, entry.passes, strict=True)
        if key[0] == turn.rollout and other == number
    ]
    which = (
        f"the {_nth(together.index(turn.key) + 1)} of {len(together)} turns" if len(together) > 1 else "the only turn"
    )
    name = f"the {ORDINALS[number - 1]} pass" if number <= len(ORDINALS) else f"pass {number}"
    return f"{which} its rollout gave in {name}"


def _after(waited: int) -> str:
    return f"{_updates(waited)} after it was first seen" if waited else "when it was first seen"


def _updates(count: int) -> str:
    return "one update" if count == 1 else counted(count, "update")


def counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _nth(number: int) -> str:
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def _as_json(turns: list[StoredTurn], sentences: list[str]) -> dict[str, Any]:
    first = turns[0]
    rows = [
        {
            "turn": turn.turn,
            "fate": turn.fate.kind,
            "update": turn.fate.update,
            "reason": turn.reason,
            "first_seen": turn.first_seen,
            "disagreement": turn.disagreement,
            "tokens": turn.tokens,
            "valid_tokens": turn.valid_tokens,
            "sentence": text,
        }
        for turn, text in zip(turns, sentences, strict=True)
    ]
    about = {"rollout": first.rollout, "task": first.task, "version": first.version}
    return {**about, "available_at": first.available_at, "turns": rows}
