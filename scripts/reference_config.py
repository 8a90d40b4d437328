"""docs/reference/config.md: every key of a configuration with type, default, meaning and the paper's value."""

import json
import re
from itertools import groupby
from pathlib import Path

from reference_text import page, prose, table

from divopd.config.reference import BY_ENVIRONMENT, Key, config_keys, section_meanings

PAPER_MAP = Path(__file__).parents[1] / "docs" / "paper-map.md"


INTRODUCTION = """
A configuration is a YAML file; `--set learner.lr=1e-5` changes one key of it. A file may extend another one
(`extends: ../common.yaml`): mappings are merged key by key, other values are replaced. An unknown key, a wrong type or
a value out of range stops `divopd train` before anything starts, with one line that names the file. The whole resolved
configuration is kept in `RUN/config.yaml`. `divopd config` prints the tables of this page in the terminal.

In the last column: the value of the paper, where it has one, with its place
([from the paper to the code](../paper-map.md#hyper-parameters)). *Base system*: not in the paper, but in the public
system on which it builds. Several values belong to the paper's six settings, in the order of that page.
"""


def config_page() -> str:
    """The keys of the file itself, then one table a section."""
    parts = [
        "# Every key of a configuration",
        prose(INTRODUCTION),
    ]
    meanings, paper = section_meanings(), paper_values()
    for section, keys in groupby(config_keys(), key=lambda key: key.name.rpartition(".")[0].partition(".")[0]):
        told = " ".join(meanings.get(section, "").split())
        parts += [f"## {section or 'The file itself'}", told, _table(list(keys), paper)]
    return page(*parts)


def _table(keys: list[Key], paper: dict[str, str]) -> str:
    rows = [[f"`{key.name}`", key.kind, _default(key), key.meaning, paper.get(key.name, "–")] for key in keys]
    return table(["key", "type", "default", "meaning", "paper"], rows)


def _default(key: Key) -> str:
    if key.default == BY_ENVIRONMENT:
        return BY_ENVIRONMENT
    return f"`{key.default}`" if isinstance(key.default, str) and key.default else f"`{json.dumps(key.default)}`"


def paper_values() -> dict[str, str]:
    """Key → the paper's value and its place, from docs/paper-map.md, which a test compares with the configurations."""
    text = PAPER_MAP.read_text(encoding="utf-8").partition("## Hyper-parameters")[2].partition("\n## ")[0]
    found: dict[str, str] = {}
    for place, key, values in re.findall(r"^\| (\w[^|]*?), [^|]*\| `([\w.]+)` \| (.*) \|$", text, re.M):
        told = [value.strip().removeprefix("models/") for value in values.split("|")]
        found[key] = f"{told[0] if len(set(told)) == 1 else ', '.join(told)} ({place})"
    ours = text.partition("Not in the paper")[2]
    return found | {key: f"{value} (base system)" for key, value in re.findall(r"`([\w.]+)` \(([\d,]+)\)", ours)}
