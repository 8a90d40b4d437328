"""`divopd config`: every key, and for a file what each value is and who said it."""

import argparse
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from divopd.errors import InputError, UnknownNameError
from divopd.printable import printable

if TYPE_CHECKING:
    from divopd.config.files import Place

HELP = "Print every key with its type, default and meaning; or a file as a run would have it, and who said each value."
EXAMPLE = """divopd config
  divopd config learner.lr
  divopd config default/divopd --set learner.lr=1e-5
  divopd config mine.yaml > resolved.yaml"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", nargs="?", metavar="FILE|KEY", help="a YAML file or a name such as default/divopd; or a key or section"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override, with a FILE")
    parser.add_argument("--machine", metavar="NAME", help="on this machine, with a FILE")
    parser.add_argument("--names", action="store_true", help="the names of the configurations that come with divopd")
    parser.add_argument("--json", action="store_true", help="one object a line for each key")


class Setting(NamedTuple):
    """A value of a resolved configuration and who said it."""

    place: "Place"
    value: Any
    origin: str


def run(args: argparse.Namespace) -> int:
    from divopd.config.files import config_names

    if args.names:
        if args.what or args.set or args.machine:
            raise InputError("--names lists names alone; leave FILE and --set out")
        print(*(json.dumps(name) if args.json else name for name in config_names()), sep="\n")
    elif args.what is None or _is_key(args.what):
        if args.set or args.machine:
            option = "--set" if args.set else "--machine"
            raise InputError(f"{option} overrides what a FILE says; name one, such as default/divopd")
        _print_keys(args.what, as_json=args.json)
    else:
        settings = list(resolve(args.what, args.set, machine=args.machine))
        if args.json:
            for place, value, origin in settings:
                print(json.dumps({"key": ".".join(place), "value": value, "from": origin}, ensure_ascii=False))
        else:
            print(printable("\n".join(_as_yaml(settings)), most=10**6))
    return 0


def _is_key(what: str) -> bool:
    """Whether it names a key or a section; a file of that name goes first."""
    from divopd.config.reference import config_keys

    names = [key.name for key in config_keys()]
    if Path(what).exists():
        return False
    section, dot, _ = what.partition(".")
    if dot and what not in names and any(name.startswith(f"{section}.") for name in names):
        raise UnknownNameError("key", what, names)
    return any(name == what or name.startswith(f"{what}.") for name in names)


def _print_keys(what: str | None, *, as_json: bool) -> None:
    from dataclasses import asdict

    from divopd.config.reference import BY_ENVIRONMENT, config_keys, section_meanings

    meanings, section = section_meanings(), ""
    for key in config_keys():
        if what and key.name != what and not key.name.startswith(f"{what}."):
            continue
        if as_json:
            print(json.dumps(asdict(key), ensure_ascii=False))
            continue
        if key.section != section and key.section in meanings:
            print(f"{key.section}: {meanings[key.section]}\n")
        section = key.section
        default = key.default if key.default == BY_ENVIRONMENT else json.dumps(key.default, ensure_ascii=False)
        print(f"  {key.name}  ({key.kind}; default: {default})\n      {key.meaning}")


# ── a resolved file ───────────────────────────────────────────────────────────────────────────────────────────────


def resolve(file: str, overrides: list[str], *, machine: str | None = None) -> Iterator[Setting]:
    """Every value that a run of this file would have, in the order of the classes, and who said it."""
    from divopd.config import LearnerPart, StudentPart, validated
    from divopd.config.completion import complete
    from divopd.config.files import find_config, read_layers

    layered = read_layers(find_config(file), overrides, machine=machine)
    resolved = validated(layered).resolved()
    resolved.pop("versions")
    filled = complete(layered.data, updates=LearnerPart.updates, student=StudentPart().model).sources
    for place, value in _leaves(resolved, ()):
        yield Setting(place, value, filled.get(place) or _short(layered.origins.get(place)) or "default")


def _short(origin: str | None) -> str | None:
    """A file below the current folder by its path from there; any other without its detours."""
    if origin is None or origin.startswith("--set "):
        return origin
    path = Path(os.path.normpath(Path(origin).absolute()))
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _leaves(values: Mapping[str, Any], above: "Place") -> Iterator[tuple["Place", Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*above, str(name)))
        else:
            yield (*above, str(name)), value


def _as_yaml(settings: list[Setting]) -> Iterator[str]:
    """A file that can be trained; the origin of each value is a comment."""
    from divopd.config.files import yaml_word

    open_sections: Place = ()
    for place, value, origin in settings:
        shared = 0
        while shared < len(place) - 1 and place[: shared + 1] == open_sections[: shared + 1]:
            shared += 1
        for depth in range(shared, len(place) - 1):
            yield f"{'  ' * depth}{yaml_word(place[depth])}:"
        open_sections = place[:-1]
        said = f"{'  ' * (len(place) - 1)}{yaml_word(place[-1])}: {yaml_word(value)}"
        yield f"{said:<48}  # {origin}"
