"""The vocabulary: a turn, a rollout, a fate, and recordings as JSON lines.

A recording is untrusted. Lists of a turn may be missing, short or not finite: that makes the turn invalid
(validity.py), never the file unreadable. Anything else that is wrong stops the reading with one line that
names file, line, field and value.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from divopd.errors import TurnFormatError

MAX_LINE_BYTES = 64 * 2**20  # of one turn in a recording; a 10k-token prompt takes about 0.1 MB
ROLLOUT_ID = re.compile(r"(?!.*\.\.)[A-Za-z0-9._/-]{1,128}", re.DOTALL)


@dataclass(frozen=True)
class Turn:
    """One student response inside a rollout: a row of training data (specification §2).

    The four lists that follow `response_ids` have one entry per response token; `teacher_mask` None means that
    every token has a usable teacher score. The last four fields are of the whole rollout: how it ended, its turns, and
    the valid tokens of its rows, known once they are scored. No selection looks at them; audits do, and row weights may
    look at the last two.
    """

    rollout: str
    turn: int
    task: str
    version: int
    available_at: int = 0
    prompt_ids: Sequence[int] = ()
    prompt_truncated: bool = False
    response_ids: Sequence[int] = ()
    student_logprobs: Sequence[float] | None = None
    teacher_logprobs: Sequence[float] | None = None
    action_mask: Sequence[int] | None = None
    teacher_mask: Sequence[int] | None = None
    reward: float | None = None
    success: bool | None = None
    rollout_turns: int | None = None
    rollout_valid_tokens: int | None = None

    @property
    def key(self) -> tuple[str, int]:
        """What identifies the turn."""
        return self.rollout, self.turn

    @property
    def tokens(self) -> int:
        """Prompt and response tokens: the whole row (ours; the paper says "tokens" and no more)."""
        return len(self.prompt_ids) + len(self.response_ids)


FateKind = Literal["queued", "pending", "trained", "stale", "aged_out", "invalid"]


class Fate(NamedTuple):
    """What became of a turn; `update` is when, `reason` is why (invalid turns only)."""

    kind: FateKind
    update: int | None = None
    reason: str | None = None

    def __str__(self) -> str:
        inside = self.reason if self.kind == "invalid" else self.update if self.kind == "trained" else None
        return self.kind if inside is None else f"{self.kind}({inside})"


@dataclass(frozen=True)
class TeacherTurn:
    """A turn in which the teacher acted for a stuck student (specification §6.3): no row, kept for the trace of a run.

    `action` is None if there was none in the response; `seen` is what the environment said then.
    """

    turn: int
    response_ids: tuple[int, ...]
    action: str | None
    seen: str


@dataclass(frozen=True)
class Rollout:
    """The student turns of one rollout, which enter the queue together and in turn order.

    Turns of the teacher go with them into the store, and never into the queue. `teacher_prompts`: what the teacher
    reads before each response, where that is not the student's prompt. They are dropped once it has scored.
    `wrong_answer`: what was wrong with the teacher's answer about it; its turns have no scores then. It is no part of
    the content.
    """

    id: str
    turns: tuple[Turn, ...]
    teacher_turns: tuple[TeacherTurn, ...] = ()
    teacher_prompts: tuple[Sequence[int], ...] | None = None
    wrong_answer: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not self.turns:
            raise TurnFormatError(f"rollout {self.id!r} has no turn; a rollout is put with at least one")
        if self.teacher_prompts is not None and len(self.teacher_prompts) != len(self.turns):
            got = f"{len(self.teacher_prompts)} prompts of the teacher for {len(self.turns)} turns"
            raise TurnFormatError(f"rollout {self.id!r} has {got}; expected one for each turn")
        first, newest = self.turns[0], self.turns[0].version
        previous = -1
        for turn in self.turns:
            if (turn.rollout, turn.task) != (self.id, first.task):
                raise TurnFormatError(
                    f"rollout {self.id!r} turn {turn.turn}: got rollout {turn.rollout!r}, task {turn.task!r}; all "
                    f"turns of a rollout share them ({self.id!r}, {first.task!r})"
                )
            if turn.version < newest:
                raise TurnFormatError(
                    f"rollout {self.id!r} turn {turn.turn}: version {turn.version} follows version {newest}; weights "
                    "that change within a rollout are newer ones"
                )
            newest = turn.version
            if turn.turn <= previous:
                raise TurnFormatError(
                    f"rollout {self.id!r}: turn {turn.turn} follows turn {previous}; put turns in order"
                )
            previous = turn.turn
        taught = [turn.turn for turn in self.teacher_turns]
        if taught != sorted(set(taught)) or not {turn.turn for turn in self.turns}.isdisjoint(taught):
            raise TurnFormatError(
                f"rollout {self.id!r}: turns of the teacher are {taught}; expected rising numbers that no row has"
            )

    @property
    def task(self) -> str:
        return self.turns[0].task

    @property
    def version(self) -> int:
        """Of its first row; later turns may have newer ones (`explorer.versions: turn`)."""
        return self.turns[0].version


def group_into_rollouts(turns: Iterable[Turn]) -> list[Rollout]:
    """Gather turns by rollout, rollouts in order of their first turn, turns in turn order."""
    groups: dict[str, list[Turn]] = {}
    for turn in turns:
        groups.setdefault(turn.rollout, []).append(turn)
    return [Rollout(name, tuple(sorted(group, key=lambda t: t.turn))) for name, group in groups.items()]


# ── JSON ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def turn_to_json(turn: Turn) -> dict[str, Any]:
    """The interchange form of a turn: JSON types only; not-finite numbers stay as Python's json writes them."""
    return {name: _plain(getattr(turn, name)) for name in FIELDS}


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # an array of another framework
        return value.tolist()
    if not isinstance(value, list | tuple):
        return value
    items = list(cast(Sequence[Any], value))
    return [item.tolist() for item in items] if items and hasattr(items[0], "tolist") else items


def turn_from_json(record: object, *, where: str = "turn") -> Turn:
    """Check one JSON object and make it a turn; `where` (file and line) starts the error message."""
    if not isinstance(record, dict):
        raise TurnFormatError(f"{where}: got {_short(record)}, expected a JSON object with the fields of a turn")
    values = _read(cast(dict[str, Any], record), where=where)
    if values["version"] > values["available_at"]:
        raise TurnFormatError(
            f"{where}: field 'version' is {values['version']}, above 'available_at' {values['available_at']}; "
            "a turn cannot be queued before the policy that generated it exists"
        )
    return Turn(**values)


def _read(given: dict[str, Any], *, where: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, (read, expected) in _READERS.items():
        value = given.get(name)
        if value is None and name in _REQUIRED:
            raise TurnFormatError(f"{where}: field {name!r} is missing; expected {expected}")
        if value is None:
            continue
        try:
            values[name] = read(value)
        except (TypeError, ValueError, OverflowError):
            raise TurnFormatError(f"{where}: field {name!r} is {_short(value)}; expected {expected}") from None
    return values


def read_turns(path: Path | str) -> list[Turn]:
    """All turns of a JSON-lines recording, in recorded order. A broken line stops it with a TurnFormatError.

    A last line that breaks off is left out: whoever wrote it was killed.
    """
    path = Path(path)
    turns: list[Turn] = []
    first_line: dict[tuple[str, int], int] = {}
    for number, where, record in json_lines(path):
        turn = turn_from_json(record, where=where)
        if turn.key in first_line:
            raise TurnFormatError(
                f"{where}: rollout {turn.rollout!r} turn {turn.turn} was already on line "
                f"{first_line[turn.key]}; a turn occurs once in a recording"
            )
        first_line[turn.key] = number
        turns.append(turn)
    if not turns:
        raise TurnFormatError(f"{path}: no turn in it; expected one JSON object a line")
    return turns


def write_turns(path: Path | str, turns: Iterable[Turn]) -> int:
    """Write a recording whole or not at all (a temporary file beside it, then a rename); returns the number."""
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    count = 0
    try:
        with partial.open("w", encoding="utf-8") as file:
            for turn in turns:
                file.write(json.dumps(turn_to_json(turn), separators=(",", ":")) + "\n")
                count += 1
        partial.replace(path)
    except OSError as error:
        raise TurnFormatError(f"{path}: cannot write the recording ({error.strerror})") from None
    finally:
        partial.unlink(missing_ok=True)
    return count


def json_lines(path: Path) -> Iterator[tuple[int, str, object]]:
    """Number, place (file and line) and value of every line that is not blank, without a last one that breaks off."""
    for number, line in _lines(path):
        where = f"{path}:{number}"
        try:
            value = _decode(line, where=where)
        except TurnFormatError:
            if number > 1 and not line.endswith(b"\n"):
                return
            raise
        yield number, where, value


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise TurnFormatError(
                        f"{path}:{number}: a line of over {MAX_LINE_BYTES} bytes; one turn is smaller"
                    )
                if line.strip():
                    yield number, line
    except OSError as error:
        raise TurnFormatError(f"{path}: cannot be read ({error.strerror})") from None


def _decode(line: bytes, *, where: str) -> object:
    try:
        return json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        raise TurnFormatError(f"{where}: not UTF-8 text; expected one JSON object a line") from None
    except json.JSONDecodeError as error:
        raise TurnFormatError(f"{where}: broken JSON at column {error.colno} ({error.msg})") from None
    except (ValueError, RecursionError):
        raise TurnFormatError(f"{where}: JSON with a number or a nesting that is too large") from None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


# ── one reader per field: takes the JSON value, returns the Python value, or raises TypeError / ValueError ─────────


def _rollout_id(value: object) -> str:
    if not isinstance(value, str) or not ROLLOUT_ID.fullmatch(value):
        raise ValueError
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > 65_536:
        raise TypeError
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < 2**53:
        raise ValueError
    return value


def _number(value: object) -> float:
    if type(value) not in (int, float):
        raise TypeError
    return float(value)  # pyright: ignore[reportArgumentType]


def _list(value: object, allowed: set[type]) -> list[Any]:
    if not isinstance(value, list) or not set(map(type, cast(list[Any], value))) <= allowed:
        raise TypeError
    return cast(list[Any], value)


def _ids(value: object) -> list[int]:
    ids = _list(value, {int})
    if ids and (min(ids) < 0 or max(ids) >= 2**31):
        raise ValueError
    return ids


def _logprobs(value: object) -> list[float]:
    # null inside a list is how strict JSON writers say "not a number"
    return [float("nan") if item is None else float(item) for item in _list(value, {int, float, type(None)})]


def _mask(value: object) -> list[int]:
    mask = _list(value, {int, float, bool})
    if not set(mask) <= {0, 1}:
        raise ValueError
    return [int(item) for item in mask]


_Reader = tuple[Callable[[object], Any], str]
_READERS: dict[str, _Reader] = {
    "rollout": (_rollout_id, "1 to 128 of the characters A-Z a-z 0-9 . _ / - without '..'"),
    "turn": (_count, "an integer, 0 or more"),
    "task": (_text, "a string"),
    "version": (_count, "an integer, 0 or more"),
    "available_at": (_count, "an integer, 0 or more"),
    "prompt_ids": (_ids, "a list of token ids (integers from 0 to 2^31 - 1)"),
    "prompt_truncated": (_flag, "true or false"),
    "response_ids": (_ids, "a list of token ids (integers from 0 to 2^31 - 1)"),
    "student_logprobs": (_logprobs, "a list of numbers"),
    "teacher_logprobs": (_logprobs, "a list of numbers, or null"),
    "action_mask": (_mask, "a list of 0 and 1"),
    "teacher_mask": (_mask, "a list of 0 and 1, or null"),
    "reward": (_number, "a number, or null"),
    "success": (_flag, "true, false or null"),
    "rollout_turns": (_count, "an integer, 0 or more, or null"),
    "rollout_valid_tokens": (_count, "an integer, 0 or more, or null"),
}
_REQUIRED = {"rollout", "turn", "task", "version", "available_at", "prompt_truncated"}
FIELDS = tuple(field.name for field in fields(Turn))
