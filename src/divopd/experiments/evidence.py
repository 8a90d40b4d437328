"""What many seeds have shown, in a small file that is shipped: `{setting: {arm: {"nauc": {mean, low, high, seeds}}}}`.

Differences to vanilla in points, with 95 % limits; docs/evidence.md explains them. They are those of
docs/paper/preregistered.json: `python -m divopd.experiments.evidence docs/paper/preregistered.json` writes them anew.
"""

import json
import sys
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from divopd.methods import BASELINE

NAME = "evidence.json"


def read_evidence() -> dict[str, Any]:
    """The shipped evidence."""
    return json.loads((files("divopd.experiments") / NAME).read_text(encoding="utf-8"))


def known_evidence() -> dict[str, Any]:
    """What is shipped of it; a package without the file has none."""
    try:
        return read_evidence()
    except (OSError, ValueError):
        return {}


def evidence_of(preregistered: Mapping[str, Any]) -> dict[str, Any]:
    """The differences to vanilla among those that `divopd paper preregistered` wrote."""
    found: dict[str, Any] = {}
    for setting, tables in preregistered.items():
        for pair, one in tables["secondary"].items():
            arm, _, base = pair.partition(" - ")
            if base == BASELINE:
                area = one["nauc"]
                limits = {name: round(area[name], 2) for name in ("mean", "low", "high")}
                found.setdefault(setting, {})[arm] = {"nauc": limits | {"seeds": area["count"]}}
    return found


if __name__ == "__main__":
    told = evidence_of(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    Path(__file__).with_name(NAME).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
