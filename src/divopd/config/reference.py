"""Every key that a configuration may have: its type, its default and what it means, read from the classes themselves.

    for key in config_keys():
        print(key.name, key.kind, key.default, key.meaning)

The meaning is the string below a field in the source, so that a page, `divopd config` and a reader of the class see the
same words.
"""

import ast
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from textwrap import dedent
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from divopd.composers import Settings
from divopd.config import SHARED, Config
from divopd.prompts import PromptStyle

BY_ENVIRONMENT = "the environment's own"
FILLED = {(PromptStyle, "system"), (PromptStyle, "actions")}  # have a default in the class that never counts
KINDS = {
    int: "whole number",
    float: "number",
    str: "text",
    bool: "true or false",
    dict: "mapping",
    Mapping: "mapping",
    NoneType: "null",
}
BOUNDS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤", "multiple_of": "a multiple of"}  # as pydantic names them


@dataclass(frozen=True)
class Key:
    """One key of a configuration file; `default` is as YAML has it."""

    name: str
    kind: str
    default: Any
    meaning: str

    @property
    def section(self) -> str:
        """The part of the name before the last dot; empty for a key of the top level."""
        return self.name.rpartition(".")[0]


def config_keys() -> list[Key]:
    """All keys, in the order of the classes."""
    return list(_keys_of(Config, ()))


def section_meanings() -> dict[str, str]:
    """What each section is about, by its name: the first sentence of its class."""
    found: dict[str, str] = {}
    for name, hint in get_type_hints(Config, include_extras=True).items():
        if (kind := _section_in(hint)) is not None:
            found[name] = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0]
    return found


def _keys_of(kind: type, above: tuple[str, ...]) -> Iterator[Key]:
    """A section that may be null (student.lora) is a key itself and has keys."""
    hints, meanings = get_type_hints(kind, include_extras=True), _meanings(kind)
    for name in _field_names(kind):
        if kind is Settings and name in SHARED:
            continue
        hint, place = hints[name], (*above, name)
        part = _section_in(hint)
        if part is None or NoneType in get_args(hint):
            shown = f"{KINDS[NoneType]} or a mapping" if part else kind_of(hint)
            yield Key(".".join(place), shown, _default_of(kind, name), meanings.get(name, ""))
        if part is not None:
            yield from _keys_of(part, place)


def _field_names(kind: Any) -> list[str]:
    return [option.name for option in fields(kind)] if is_dataclass(kind) else list(kind.model_fields)


def _section_in(hint: Any) -> type | None:
    """The class of a section behind a hint, also where null is allowed."""
    options = get_args(hint) or (hint,)
    for option in options:
        if isinstance(option, type) and (is_dataclass(option) or issubclass(option, BaseModel)):
            return option
    return None


def _default_of(kind: Any, name: str) -> Any:
    if (kind, name) in FILLED:
        return BY_ENVIRONMENT
    if not is_dataclass(kind):
        default = kind.model_fields[name].default
        return BY_ENVIRONMENT if default is PydanticUndefined else _plain(default)
    [option] = [one for one in fields(kind) if one.name == name]
    return _plain(option.default if option.default is not MISSING else option.default_factory())  # type: ignore[misc]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


# ── words for types ───────────────────────────────────────────────────────────────────────────────────────────────


def kind_of(hint: Any) -> str:
    """A type in words: `whole number > 0`, `keep | recompute`, `text or null`."""
    origin, options = get_origin(hint), get_args(hint)
    if origin is Annotated:
        bounds = [text for extra in options[1:] for text in _bounds(extra)]
        return " ".join([kind_of(options[0]), ", ".join(bounds)]).strip()
    if origin is Literal:
        return " | ".join(map(str, options))
    if origin in (Union, UnionType):
        return " or ".join(kind_of(option) for option in options)
    if origin is tuple:
        several = options[-1] is Ellipsis
        return f"list of {kind_of(options[0])}" if several else f"[{', '.join(kind_of(one) for one in options)}]"
    return KINDS.get(origin or hint, str(hint))


def _bounds(extra: Any) -> list[str]:
    """What a number must satisfy."""
    inside = extra.metadata if isinstance(extra, FieldInfo) else [extra]
    return [f"{sign} {getattr(one, name):g}" for one in inside for name, sign in BOUNDS.items() if hasattr(one, name)]


# ── the strings below the fields ──────────────────────────────────────────────────────────────────────────────────


@cache
def _meanings(kind: type) -> dict[str, str]:
    """The string that stands below each field, those of the classes it extends included."""
    found: dict[str, str] = {}
    for cls in reversed(kind.__mro__):
        if cls.__module__.startswith("divopd."):
            found |= _strings_below(cls)
    return found


def _strings_below(cls: type) -> dict[str, str]:
    [tree] = ast.parse(dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, str] = {}
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
            found[field.target.id] = " ".join(below.value.value.split())
    return found
