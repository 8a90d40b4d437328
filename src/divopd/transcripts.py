"""Rollouts for people: what was seen, answered and done, turn by turn, as JSON lines (specification §8).

One object a rollout. `first` is what the reset showed. Of each turn: who acted (`student`, or a `teacher` that took
over), the `answer` as text without control tokens, the `action` that was read in it (null: none), what was `seen` then,
whether the action was understood (`valid`), its `reward`, and how many tokens were read and written.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from divopd.errors import InputError
from divopd.explorer import Acting, Played, PlayedTurn
from divopd.prompts.chat import readable

Json = dict[str, Any]


def transcript_of(played: Played, acting: Acting, *, kind: str) -> Json:
    """A rollout as JSON types; `kind` is that of its task."""
    return {
        "task": played.start.task,
        "kind": kind,
        "success": played.success,
        "reward": played.reward,
        "failure": played.failure,
        "first": _shown(played.first.text, acting),
        "turns": [_turn(number, turn, played, acting) for number, turn in enumerate(played.turns)],
    }


def _turn(number: int, turn: PlayedTurn, played: Played, acting: Acting) -> Json:
    reader = acting.teacher_reader(played.start.task) if turn.actor == "teacher" and acting.teacher_reader else acting
    return {
        "turn": number,
        "actor": turn.actor,
        "answer": reader.codec.decode(turn.response.ids),
        "action": turn.action,
        "seen": _shown(turn.seen.text, acting),
        "valid": turn.seen.valid,
        "reward": turn.seen.reward,
        "prompt_tokens": len(turn.prompt.ids),
        "prompt_truncated": turn.prompt.truncated,
        "response_tokens": len(turn.response.ids),
    }


def _shown(text: str, acting: Acting) -> str:
    """What was seen, for people: a program's calls are JSON."""
    return text if acting.program is None else readable(text)


def refuse_file(path: Path) -> None:
    """Transcripts are written into a new file of a folder that is there; anything else is told before rollouts."""
    if path.exists():
        raise InputError(f"{path} exists already; choose another file for the transcripts")
    if not path.resolve().parent.is_dir():
        raise InputError(f"{path}: there is no folder {path.parent}; make it first")


def add_transcripts(path: Path, transcripts: Iterable[Json]) -> None:
    """Append them to a file, which is made if it is not there."""
    lines = "".join(json.dumps(transcript, ensure_ascii=False) + "\n" for transcript in transcripts)
    try:
        with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(lines)
    except OSError as error:
        raise InputError(f"{path}: transcripts cannot be written ({error.strerror})") from None
