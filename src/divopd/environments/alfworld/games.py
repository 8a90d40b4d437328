"""Collections of ALFWorld games: the official ones, read from the user's data, one split at a time in a fixed order.

Two layouts are read. The data folder of the `alfworld` package (SPLIT/TASK/TRIAL/game.tw-pddl below `json_2.1.1`), and
JSON lines, plain or .xz (`alfworld_SPLIT.jsonl`, one object a line with id, task, problem, walkthrough).
"""

import json
import lzma
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol, TextIO

from divopd.errors import InputError, UnknownNameError

HORIZON = 30  # turns of a rollout (specification §6.1)
SPLITS = ("train", "valid_seen", "valid_unseen", "valid_train")
_DAMAGE = (lzma.LZMAError, EOFError, UnicodeDecodeError, json.JSONDecodeError, RecursionError)
_MAX_LINE = 10_000_000  # characters of one game; the official ones have under 100,000


@dataclass(frozen=True, slots=True)
class Game:
    """One game as data: what to do in words, the PDDL problem, and a solution if one is known."""

    id: str
    task: str
    problem: str
    walkthrough: tuple[str, ...] = ()


class Games(Protocol):
    """A collection of games. Task names are stable: the same name is the same game on any machine."""

    def tasks(self, split: str) -> list[str]: ...

    def game(self, task: str) -> Game: ...


class OfficialGames:
    """The official games below a folder. A split is read when it is first asked for.

    `valid_seen` holds the 140 games that the paper tests on, in the order of their file (JSON lines) or path (folder).
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        if not folder.is_dir():
            raise InputError(f"no folder {folder}; {MISSING_DATA}")

    def tasks(self, split: str) -> list[str]:
        """The task names of a split, in fixed order."""
        return list(self._split(split))

    def game(self, task: str) -> Game:
        """The game of that name. InputError if there is none."""
        games = self._split(task.partition("/")[0][:200])
        if task not in games:
            raise InputError(
                f"unknown ALFWorld task {task[:200]!r}; expected one of {len(games)}, like {next(iter(games))!r}"
            )
        return games[task]

    def _split(self, split: str) -> dict[str, Game]:
        if split not in SPLITS:
            raise UnknownNameError("split of ALFWorld", split, SPLITS)
        games = read_split(self._folder, split)
        if not games:
            raise InputError(f"{self._folder} has no ALFWorld games of the split {split}; {MISSING_DATA}")
        return games


MISSING_DATA = (
    "point DIVOPD_DATA at a folder with alfworld/alfworld_SPLIT.jsonl.xz, or ALFWORLD_DATA at the folder that "
    "alfworld-download made, or play generated games, which need no data"
)


def find_official_games() -> OfficialGames | None:
    """The user's official games, from DIVOPD_DATA or ALFWORLD_DATA; None if neither has any."""
    for variable, below in (("DIVOPD_DATA", "alfworld"), ("ALFWORLD_DATA", ".")):
        folder = Path(os.environ[variable]) / below if os.environ.get(variable) else None
        if folder and any(next(_read(folder, split), None) for split in ("valid_seen", "train")):
            return OfficialGames(folder)
    return None


@lru_cache(maxsize=8)
def read_split(folder: Path, split: str) -> dict[str, Game]:
    """All games of a split by name, in fixed order; empty if the folder has none."""
    return {game.id: game for game in _read(folder, split)}


def _read(folder: Path, split: str) -> Iterator[Game]:
    for suffix, opener in ((".jsonl", open), (".jsonl.xz", lzma.open)):
        path = folder / f"alfworld_{split}{suffix}"
        if path.is_file():
            with opener(path, "rt", encoding="utf-8") as lines:
                yield from _read_lines(path, lines)
            return
    for root in (folder / "json_2.1.1" / split, folder / split):
        if root.is_dir():
            yield from _read_folder(root, split)
            return


def _read_lines(path: Path, lines: TextIO) -> Iterator[Game]:
    try:
        for number, line in enumerate(iter(lambda: lines.readline(_MAX_LINE), ""), start=1):
            if line.strip():
                yield _game(json.loads(line), f"{path} line {number}")
    except _DAMAGE as error:
        raise InputError(f"{path} is damaged ({error}); copy it again") from None


def _game(record: object, where: str) -> Game:
    match record:
        case {"id": str(name), "task": str(task), "problem": str(problem), **rest}:
            walkthrough = rest.get("walkthrough") or ()
            if isinstance(walkthrough, list | tuple) and all(isinstance(action, str) for action in walkthrough):
                return Game(name, task, problem, tuple(walkthrough))
    raise InputError(
        f"{where}: expected an object with id, task, problem as strings and a list of strings, walkthrough"
    )


def _read_folder(root: Path, split: str) -> Iterator[Game]:
    """Games as the package selects them: solvable, and neither with sliced things nor with movable receptacles."""
    for path in sorted(root.glob("*/*/game.tw-pddl")):
        name = path.parent.relative_to(root).as_posix()
        if "movable" in name or "Sliced" in name:
            continue
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except _DAMAGE as error:
            raise InputError(f"{path} is damaged ({error}); download the games again") from None
        task = re.search(r"Your task is to: (.*?)\.\s*\"", str(data.get("grammar")))
        if data.get("solvable") and task:
            record = {"id": f"{split}/{name}", "task": task[1], "problem": data.get("pddl_problem")}
            yield _game(record | {"walkthrough": data.get("walkthrough")}, str(path))
