"""What a model was taught, kept beside its weights as divopd.json: a model that answers in one form fails in another.

`divopd sft` writes it. A configuration that does not say the form of answers takes the student's; one that says another
is followed, and the disagreement is told.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from divopd.errors import InputError

FILE = "divopd.json"
Answer = Literal["think", "labelled", "terse"]
Actions = Literal["listed", "unlisted"]


@dataclass(frozen=True)
class Taught:
    """The environment, the form of answers, and whether prompts listed the allowed actions."""

    environment: str
    answer: Answer
    actions: Actions


def write_taught(folder: Path, taught: Taught) -> None:
    (folder / FILE).write_text(json.dumps(asdict(taught), indent=2) + "\n", encoding="utf-8")


def read_taught(folder: Path) -> Taught | None:
    """What the folder's model was taught; None if nothing says so, as for a model from elsewhere."""
    file = folder / FILE
    try:
        said: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        taught = Taught(**said)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{file}: cannot be read ({error}); expected what divopd sft writes: delete it") from None
    fits = isinstance(taught.environment, str) and taught.answer in get_args(Answer)
    if not fits or taught.actions not in get_args(Actions):
        raise InputError(f"{file}: says {said}; expected what divopd sft writes: delete it")
    return taught


def differences(taught: Taught, used: Taught) -> str:
    """What a model was taught otherwise than it is used here, in words; empty if it is used as it was taught."""
    pairs = {
        "environment": (taught.environment, used.environment),
        "prompts.answer": (taught.answer, used.answer),
        "prompts.actions": (taught.actions, used.actions),
    }
    different = {name: pair for name, pair in pairs.items() if _end(pair[0]) != _end(pair[1])}
    return "; ".join(f"{name} {then}, here it is {now}" for name, (then, now) in different.items())


def _end(name: str) -> str:
    """A user's environment is named by a file and a class; where the file lies does not matter."""
    return name.rpartition("/")[2]
