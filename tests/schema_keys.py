"""Every key that a configuration file may have, from the schema itself."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel


def keys_of(section: type, above: str = "") -> Iterator[str]:
    """Dotted names of all values. A section that may be null (student.lora) is a key itself and has keys."""
    for name, kind in _annotations(section).items():
        parts = [kind] if _is_section(kind) else [part for part in get_args(kind) if _is_section(part)]
        if kind not in parts:
            yield above + name
        for part in parts:
            yield from keys_of(part, f"{above}{name}.")


def _annotations(section: Any) -> dict[str, Any]:
    if is_dataclass(section):
        hints = get_type_hints(section)
        return {option.name: hints[option.name] for option in fields(section)}
    return {name: info.annotation for name, info in section.model_fields.items()}


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and (is_dataclass(kind) or issubclass(kind, BaseModel))
