"""From a file to a checked configuration, or to an error that names the field."""

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import (
    ValidationError,
)
from pydantic_core import ErrorDetails

from divopd.composers import Settings
from divopd.config.files import Layered, find_config, read_layers, shown
from divopd.config.schema import SHARED, Config
from divopd.errors import InputError, UnknownNameError


def load_config(path: Path | str, overrides: Sequence[str] = (), *, machine: str | None = None) -> Config:
    """Read a file, what it extends, the file of a machine, then overrides such as `learner.lr=1e-5`, as YAML.

    A name such as `default/divopd` is a file that comes with divopd; a machine is one of configs/machines, or a file.

    Anything wrong is an InputError of one line that names the file or override, the field, what was got and what was
    expected. `versions`, which a stored configuration has, tells about the past and is no setting.
    """
    return validated(read_layers(find_config(path), overrides, machine=machine))


def validated(layered: Layered) -> Config:
    """The configuration that merged files make."""
    settings = {name: value for name, value in layered.data.items() if name != "versions"}
    try:
        return Config.model_validate(settings)
    except ValidationError as error:
        # the composer repeats values of other sections: those sections say better what is wrong
        first = min(error.errors(), key=lambda detail: detail["loc"][:1] == ("composer",))
        raise InputError(_message(first, layered)) from None


def _message(detail: ErrorDetails, layered: Layered) -> str:
    """One line about the first thing that is wrong."""
    at = tuple(str(part) for part in detail["loc"])
    what = detail["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    field = ".".join(at)
    if detail["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"{layered.origin(at)}: {UnknownNameError('key', field, _known_keys(at[:-1]))}"
    if detail["type"] == "value_error":  # our own sentence: it names the field of a section and its value
        named = [key for key in layered.origins if key[: len(at)] == at and key != at and f"{key[-1]} is " in what]
        section = f"{field}: " if field else ""
        return f"{layered.origin(named[0] if named else at)}: {section}{what}"
    if detail["type"] == "missing":
        return f"{layered.origin(at)}: {field} is missing"
    if "instance of" in what:
        what = "a mapping of its settings"
    return f"{layered.origin(at)}: {field} is {shown(detail['input'])}; expected {what}"


def _known_keys(at: tuple[str, ...]) -> list[str]:
    """The keys that stand at a place of the configuration, written in full."""
    kind: Any = Config
    for name in at:
        kind = _annotations(kind)[name]
        kind = next((option for option in get_args(kind) if is_dataclass(option)), kind)
    hidden = SHARED if kind is Settings else ()
    return [".".join((*at, name)) for name in _annotations(kind) if name not in hidden]


def _annotations(kind: Any) -> dict[str, Any]:
    if is_dataclass(kind):
        return {option.name: option.type for option in fields(kind)}
    return {name: info.annotation for name, info in kind.model_fields.items()}
