"""docs/reference/config.md: every key of a configuration with its type, its default, its meaning and the paper's value."""

import re
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from divopd import config
from divopd.config import SHARED, Config
from divopd.prompts.formats import Format
from reference_source import FieldText, module
from reference_text import flat, page, prose, table

PAPER_MAP = Path(__file__).parents[1] / "docs" / "paper-map.md"
ALIASES = vars(config) | {"Format": Format}
FILLED = {  # what config.py fills in where a file is silent
    "environment.train_split": "`train`",
    "environment.evaluation_split": "by the environment",
    "environment.horizon": "by the environment",
    "evaluation.tasks": "by the environment",
    "prompts.system": "by the environment and `prompts.answer`",
    "prompts.actions": "by the environment, or as the student was taught",
    "prompts.answer": "`think`, or as the student was taught",
}


def config_page() -> str:
    """The keys of the file itself, then one table a section."""
    sections = {name: _section(info.annotation) for name, info in Config.model_fields.items()}
    own = [name for name, section in sections.items() if section is None]
    parts = [
        "# Every key of a configuration",
        "A configuration is a YAML file; `--set learner.lr=1e-5` changes one key of it. A file may extend another one "
        "(`extends: ../common.yaml`): mappings are merged key by key, other values are replaced. An unknown key, a wrong "
        "type or a value out of range stops `divopd train` before anything starts, with one line that names the file. The "
        "whole resolved configuration is kept in `RUN/config.yaml`.",
        "In the last column: the value of the paper, where it has one, with its place "
        "([from the paper to the code](../paper-map.md#hyper-parameters)). *Base system*: not in the paper, but in the public "
        "system on which it builds. Several values belong to the paper's six settings, in the order of that page.",
        "## The file itself",
        _rows([(name, _text(Config, name)) for name in own]),
    ]
    for name, section in sections.items():
        if section is not None:
            texts = [(f"{name}.{one}", _text(section, one)) for one in _names(section)]
            parts += [f"## {name}", prose(_docstring(section)), _rows(_with_inner(section, texts))]
    return page(*parts)


def _section(kind: Any) -> type | None:
    """The class of a section; None for a plain value."""
    found = [one for one in (kind, *get_args(kind)) if isinstance(one, type) and (is_dataclass(one) or issubclass(one, BaseModel))]
    return found[0] if found else None


def _names(section: type) -> list[str]:
    if is_dataclass(section):
        hidden = SHARED if "total_updates" in {one.name for one in fields(section)} else ()
        return [one.name for one in fields(section) if one.name not in hidden]
    assert issubclass(section, BaseModel)
    return list(section.model_fields)


def _with_inner(section: type, texts: list[tuple[str, FieldText]]) -> list[tuple[str, FieldText]]:
    """A value that may be a section itself (student.lora) is followed by its own keys."""
    found: list[tuple[str, FieldText]] = []
    for key, text in texts:
        found.append((key, text))
        kind = None if is_dataclass(section) else section.model_fields[text.name].annotation  # pyright: ignore
        inner = _section(kind)
        if inner is not None:
            found += [(f"{key}.{one}", _text(inner, one)) for one in _names(inner)]
    return found


def _docstring(section: type) -> str:
    return module(section.__module__.removeprefix("divopd.")).docstring_of(section.__name__)


def _text(section: type, name: str) -> FieldText:
    """What the source says of a field, in the class that declares it; a subclass may change the default only."""
    declared = [one for one in section.__mro__ if name in vars(one).get("__annotations__", {})]
    texts = [
        next(text for text in module(one.__module__.removeprefix("divopd.")).fields(one.__name__) if text.name == name)
        for one in declared
    ]
    meaning = next((text.meaning for text in texts if text.meaning), "")
    if not meaning:
        raise SystemExit(f"{section.__name__}.{name} says nothing of itself; write a docstring below it")
    return FieldText(name, texts[0].kind, _default(section, name), flat(meaning))


def _default(section: type, name: str) -> str | None:
    if is_dataclass(section):
        value = getattr(section(**({"method": ""} if "method" in _required(section) else {})), name)
    else:
        assert issubclass(section, BaseModel)
        value = section.model_fields[name].get_default(call_default_factory=True)
    return None if value is PydanticUndefined else _shown(value)


def _required(section: Any) -> list[str]:
    return [one.name for one in fields(section) if one.default is MISSING and one.default_factory is MISSING]


def _shown(value: Any) -> str:
    """As YAML has it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_shown, value))}]"
    return str(dict(value)) if isinstance(value, dict) else str(value) or '""'


def _rows(texts: list[tuple[str, FieldText]]) -> str:
    paper = paper_values()
    rows = [
        [f"`{key}`", f"`{_kind(text.kind)}`", FILLED.get(key) or (f"`{text.default}`" if text.default else "–"), text.meaning,
         paper.get(key, "–")]
        for key, text in texts
    ]  # fmt: skip
    return table(["key", "type", "default", "meaning", "paper"], rows)


def _kind(annotation: str) -> str:
    """A type for people: what a reader of YAML needs to know of it."""
    words = {
        "PositiveInt": "int > 0",
        "NonNegativeInt": "int ≥ 0",
        "PositiveFloat": "number > 0",
        "NonNegativeFloat": "number ≥ 0",
        "float": "number",
        "Name": "string",
        "str": "string",
        "None": "null",
        "bool": "true or false",
    }
    annotation = re.sub(r"Annotated\[(\w+), .*\](?= \| None$|$)", r"\1", annotation)
    annotation = re.sub(r"\b[A-Z]\w+\b", lambda found: _choices(found[0]), annotation)
    annotation = re.sub(r"^tuple\[(.*), \.\.\.\]$", r"list of \1", annotation)
    annotation = re.sub(r"^(dict|Mapping)\[.*\]$", "mapping", annotation)
    annotation = re.sub(r"Literal\[(.*?)\]", lambda found: found[1].replace("'", "").replace(", ", " | "), annotation)
    return re.sub(r"\b(\w+)\b", lambda found: words.get(found[1], found[1]), annotation)


def _choices(name: str) -> str:
    """What a named choice stands for: `float32 | bfloat16 | …`."""
    choices = get_args(ALIASES.get(name))
    return " | ".join(choices) if choices and all(isinstance(one, str) for one in choices) else name


def paper_values() -> dict[str, str]:
    """Key → the paper's value and where it stands, from docs/paper-map.md, which a test compares with the configurations."""
    text = PAPER_MAP.read_text(encoding="utf-8").partition("## Hyper-parameters")[2].partition("\n## ")[0]
    found: dict[str, str] = {}
    for place, key, values in re.findall(r"^\| (\w[^|]*?), [^|]*\| `([\w.]+)` \| (.*) \|$", text, re.M):
        told = [value.strip() for value in values.split("|")]
        same = set(told)
        shown = told[0] if len(same) == 1 else ", ".join(one.removeprefix("models/") for one in told)
        found[key] = f"{shown} ({place})"
    ours = text.partition("Not in the paper")[2]
    found |= {key: f"{value} (base system)" for key, value in re.findall(r"`([\w.]+)` \(([\d,]+)\)", ours)}
    return found


