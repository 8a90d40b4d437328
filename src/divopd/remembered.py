"""Small results that are worth keeping beyond a run: JSON files in a folder of the user.

A file is written whole or not at all, and one that is damaged counts as absent: what it says is then found out again.
Nobody needs these files, so a folder that cannot be written is no error.
"""

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

FOLDER = "DIVOPD_CACHE"  # the environment variable that names another folder


def remembered_file(kind: str, key: str) -> Path:
    """Where the result of a kind with this key lies, if it is there: ~/.cache/divopd/KIND/KEY.json."""
    said = os.environ.get(FOLDER)
    base = Path(said) if said else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "divopd"
    return base / kind / f"{key}.json"


def key_of(facts: dict[str, Any]) -> str:
    """A name for what a result depends on: other facts give another name."""
    return hashlib.sha256(_text(facts).encode()).hexdigest()[:16]


def recall(file: Path) -> dict[str, Any] | None:
    """What was kept in a file; None if nothing was, or if it is damaged."""
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        return stored["kept"] if stored["sha256"] == _digest(stored["kept"]) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep(file: Path, result: dict[str, Any]) -> bool:
    """Keep a result, in place of an older one; False if that is not possible here."""
    text = json.dumps({"sha256": _digest(result), "kept": result}, indent=2, ensure_ascii=False) + "\n"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor, partial = tempfile.mkstemp(dir=file.parent, prefix=f".{file.stem}.")
    except OSError:
        return False
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.replace(partial, file)
    except OSError:
        Path(partial).unlink(missing_ok=True)
        return False
    return True


def _digest(result: Any) -> str:
    return hashlib.sha256(_text(result).encode()).hexdigest()


def _text(data: Any) -> str:
    return json.dumps(data, sort_keys=True, ensure_ascii=False)
