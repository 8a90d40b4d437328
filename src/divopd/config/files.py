"""YAML files that extend one another, a machine's file, and overrides on top: plain data that remembers its origins.

    read_layers(find_config("alfworld-1.7b/divopd"), ["learner.lr=1e-5"], machine="2x8xh100")

A later one counts: setting, machine, override. A file may name a machine, `machine: 8xh100`: that one's file lies below
it, and is left out where another machine is asked for.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from divopd.config.bounded_yaml import parse_yaml, read_yaml
from divopd.errors import InputError, UnknownNameError

MACHINES = "machines"  # the folder of their files, beside those of the settings
MAX_FILES = 16  # that extend one another
Place = tuple[str, ...]  # the keys that lead to a value


SWITCHES = (
    ("environment", "settings"),
    ("learner", "compile"),
    ("learner", "keep_tokens"),
    ("prompts", "template"),
)  # where true and false are values


@dataclass(frozen=True)
class Layered:
    """Merged data, and for each place the file or override that said it last."""

    file: Path
    data: dict[str, Any] = field(default_factory=dict)
    origins: dict[Place, str] = field(default_factory=dict)

    def origin(self, place: Place) -> str:
        """Who said the value at a place, or the nearest one above it."""
        above = (place[:length] for length in range(len(place), 0, -1))
        return next((self.origins[known] for known in above if known in self.origins), str(self.file))

    def put(self, data: Mapping[Any, Any], origin: str) -> None:
        """Merge data over what is there: mappings key by key, all other values replaced."""
        self._merge(self.data, data, origin, ())

    def _merge(self, into: dict[Any, Any], data: Mapping[Any, Any], origin: str, above: Place) -> None:
        for key, value in data.items():
            place = (*above, str(key))
            self.origins[place] = origin
            if isinstance(value, bool) and place[:2] not in SWITCHES:
                raise InputError(
                    f"{origin}: {'.'.join(place)} is {value}, as YAML reads yes, no, on and off; expected another value"
                )
            if isinstance(value, Mapping):
                below = into.get(key)
                into[key] = dict(below) if isinstance(below, Mapping) else {}
                self._merge(into[key], value, origin, place)
            else:
                into[key] = value


def shipped_configs() -> Path:
    """The folder of the configurations that come with divopd: inside an installed package, else beside the sources."""
    inside = Path(__file__).parents[1] / "configs"
    return inside if inside.is_dir() else Path(__file__).parents[3] / "configs"


def config_names() -> list[str]:
    """The names by which the configurations that come with divopd are known, such as `default/divopd`."""
    files = sorted(shipped_configs().glob("*/*.yaml"))
    return [f"{f.parent.name}/{f.stem}" for f in files if f.stem != "setting" and f.parent.name != MACHINES]


def machine_names() -> list[str]:
    """The machines that come with divopd, such as `8xh100`."""
    return sorted(file.stem for file in (shipped_configs() / MACHINES).glob("*.yaml"))


def find_machine(name: str) -> Path:
    """The file of a machine: a path that ends in .yaml, or one of `machine_names`; else an UnknownNameError."""
    if Path(name).suffix in (".yaml", ".yml"):
        return Path(name)
    if name not in machine_names():
        raise UnknownNameError("machine (one of your own is a file, FILE.yaml)", name, machine_names())
    return shipped_configs() / MACHINES / f"{name}.yaml"


def find_config(name: Path | str) -> Path:
    """The file of a path, or of a name such as `default/divopd`; a file of the user goes first.

    UnknownNameError for what is neither, unless it ends in .yaml: whoever reads it says that it is not there.
    """
    file = Path(name)
    if file.exists() or file.suffix in (".yaml", ".yml"):
        return file
    known = config_names()
    if str(name) not in known:
        raise UnknownNameError("configuration (no file has that name either)", str(name), known)
    return shipped_configs() / f"{name}.yaml"


def read_layers(file: Path, overrides: Sequence[str], *, machine: str | None = None) -> Layered:
    """A file over what it extends (`extends: ../common.yaml`, relative to itself), a machine, overrides KEY=VALUE."""
    layered = Layered(file)
    asked = [] if machine is None else _chain(find_machine(machine), machines=False)
    for path, data in [*_chain(file, machines=machine is None), *asked]:
        layered.put(data, str(path))
    for override in overrides:
        layered.put(_parse_override(override), f"--set {override}")
    return layered


def _chain(file: Path, *, machines: bool) -> list[tuple[Path, dict[str, Any]]]:
    """The files that are extended, the most general first, and the file itself; `machines`: and those they name."""
    chain: list[tuple[Path, dict[str, Any]]] = []
    while True:
        if len(chain) > MAX_FILES:
            raise InputError(f"{chain[0][0]}: extends more than {MAX_FILES} files, one after the other; expected fewer")
        if any(file.samefile(path) for path, _ in chain if file.exists()):
            links = " → ".join(str(path) for path in [*(path for path, _ in chain), file])
            raise InputError(f"{file}: extends goes in a circle: {links}")
        data = _read(file, asked_by=chain[-1][0] if chain else None)
        base = data.pop("extends", None)
        chain.append((file, data))
        named = data.pop("machine") if isinstance(data.get("machine"), str) else None
        if named and machines:  # its values lie below those of the file that names it
            chain += _chain(find_machine(named), machines=False)[::-1]
        if base is None:
            return chain[::-1]
        if not isinstance(base, str):
            raise InputError(f"{file}: extends is {shown(base)}; expected one file, relative to this one")
        file = file.parent / base


def _read(file: Path, *, asked_by: Path | None) -> dict[str, Any]:
    data = read_yaml(file, asked_by=asked_by)
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise InputError(f"{file}: holds a {type(data).__name__}; expected a mapping such as `method: divopd`")
    return data


def _parse_override(override: str) -> dict[str, Any]:
    key, equals, text = override.partition("=")
    if not equals or not all(key.split(".")):
        raise InputError(f"--set {override}: expected KEY=VALUE with a key such as learner.lr")
    value = parse_yaml(text, origin=f"--set {override}: {key}: ")
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def shown(value: object) -> str:
    """A value inside a message: one line, not too long."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # Python does not write numbers of thousands of digits
        return "a number of too many digits"
    return text if len(text) <= 80 else f"{text[:80]}…"


def yaml_word(value: Any) -> str:
    """A value as YAML on one line: text without quotes where it is read as the same text, JSON for the rest."""
    if isinstance(value, float):  # YAML reads 1e-06 as text
        text = repr(value)
        return text.replace("e", ".0e") if "e" in text and "." not in text else text
    if isinstance(value, str) and value and "\n" not in value:
        return yaml.safe_dump(value, width=10**6, allow_unicode=True).removesuffix("\n").removesuffix("\n...")
    return json.dumps(value, ensure_ascii=False)
