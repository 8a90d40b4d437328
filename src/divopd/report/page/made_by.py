"""The card of a run as the page shows it: which code on which machine made the run, and with what command."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from divopd.run.folder import RunFolder

COMMIT_LETTERS = 12


def made_by(folder: Path) -> dict[str, str] | None:
    """The card in texts; None of a replay, of a run of before there were cards, and of a card that cannot be read."""
    try:
        card = json.loads(RunFolder(folder).card.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return _texts(card) if isinstance(card, Mapping) else None


def _texts(card: Mapping[str, Any]) -> dict[str, str]:
    code = card.get("code")
    code = code if isinstance(code, Mapping) else {}
    versions = card.get("versions")
    versions = versions if isinstance(versions, Mapping) else {}
    gpus = card.get("gpus")
    cores = card.get("cores")
    texts = {
        "began": str(card.get("began") or "").replace("T", " ").replace("+00:00", " UTC"),
        "commit": _commit(code) if code.get("commit") else "an installed package" if "code" in card else None,
        "lock": code.get("lock"),
        "machine": ", ".join(filter(None, (_text(card.get("processor")), f"{cores} cores" if cores else None))),
        "gpus": ", ".join(map(str, gpus)) or "none" if isinstance(gpus, list) else None,
        "python": card.get("python"),
        "packages": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "command": card.get("command"),
    }
    return {name: str(text) for name, text in texts.items() if text}


def _commit(code: Mapping[str, Any]) -> str:
    return f"{str(code['commit'])[:COMMIT_LETTERS]}{', changed since' if code.get('changed') else ''}"


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
