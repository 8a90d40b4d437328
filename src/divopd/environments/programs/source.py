"""The command and the tasks of a program: a JSON object a line, with an `id`; the rest is the program's."""

import json
import shlex
import sys
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from divopd.environments.checked import has_lone_surrogate
from divopd.environments.environment import Environment
from divopd.environments.expert import Expert
from divopd.errors import InputError

LONGEST_ID = 200  # characters
MOST_BYTES = 256 * 2**20  # of a file of tasks
COMMAND = "command "  # on a command line, before the words of an agent program
Json = dict[str, Any]


def command_of(asked: str) -> list[str] | str:
    """The `environment.command` of "command WORDS": FILE.py:function alone is a function, all else is started."""
    words = shlex.split(asked.removeprefix(COMMAND))
    return words[0] if len(words) == 1 and ".py:" in words[0] else words


@dataclass(frozen=True, kw_only=True)
class Program:
    """`command`: words, or FILE.py:function. `tasks_by_split`: a file of tasks for each split."""

    command: list | str = ""
    tasks_by_split: dict = field(default_factory=dict)

    def argv(self) -> list[str]:
        """What is started."""
        if isinstance(self.command, str):
            if ".py:" not in self.command and ":" not in self.command:
                raise InputError(
                    f"environment.command is {self.command!r}; expected a list of words such as [node, agent.js], or "
                    "FILE.py:function"
                )
            return [sys.executable, "-m", "divopd.environments.programs.called", self.command]
        if not self.command or not all(isinstance(word, str) and word for word in self.command):
            raise InputError(f"environment.command is {self.command!r}; expected a list of words, none of them empty")
        return list(self.command)

    def tasks(self, split: str) -> list[str]:
        return list(self._split(split))

    def kind(self, task: str) -> str:
        """What the task itself says, under `kind`; else its id up to the first /."""
        said = self.records().get(task, {}).get("kind")
        before, slash, _ = task.partition("/")
        return said if isinstance(said, str) else before if slash else "all"

    def records(self) -> dict[str, Json]:
        """Every task of every split, by id."""
        merged: dict[str, Json] = {}
        for split in self.tasks_by_split:
            merged |= self._split(split)
        return merged

    def environment(self) -> Environment:
        raise InputError(
            "a program is no environment that somebody else can act in: it asks a student itself; name one with "
            "--policy MODEL"
        )

    def expert(self, environment: Environment) -> Expert:
        raise InputError("a program brings no expert; name a teacher that is a model")

    def _split(self, split: str) -> dict[str, Json]:
        file = self.tasks_by_split.get(split)
        if not isinstance(file, str):
            raise InputError(f"environment.tasks has no file for {split!r}; expected {{{split}: FILE.jsonl}} in it")
        path = Path(file)
        try:
            changed = path.stat().st_mtime_ns
        except OSError as error:
            raise InputError(f"environment.tasks: {file} cannot be read ({error.strerror})") from None
        return read_tasks(path, changed)


@lru_cache(maxsize=8)
def read_tasks(path: Path, changed: int) -> dict[str, Json]:
    """The tasks of a file, in its order; `changed` is when it was written."""
    del changed
    if path.stat().st_size > MOST_BYTES:
        raise InputError(f"{path}: over {MOST_BYTES} bytes; expected fewer tasks, or shorter ones")
    found: dict[str, Json] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if line.strip():
            task = _task(line, where=f"{path}:{number}")
            if task["id"] in found:
                raise InputError(f"{path}:{number}: the id {task['id']!r} was there before; expected another")
            found[task["id"]] = task
    if not found:
        raise InputError(f"{path}: no task in it; expected one JSON object a line, with an id")
    return found


def _task(line: bytes, *, where: str) -> Json:
    try:
        task = json.loads(line)
    except (ValueError, RecursionError):
        raise InputError(f"{where}: no JSON; expected one object a line, with an id") from None
    name = task.get("id") if isinstance(task, dict) else None
    if isinstance(name, int) and not isinstance(name, bool):
        name = task["id"] = str(name)
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_ID or has_lone_surrogate(name):
        raise InputError(f"{where}: the id is {name!a:.60}; expected 1 to {LONGEST_ID} characters")
    return task
