"""YAML as configurations need it, with bounds: a file may come from anybody.

Only regular files are opened, and only small ones. What is wrong is told by its place, never by quoting: the file may
be one that nobody meant to show.
"""

import stat
from collections.abc import Mapping
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from divopd.errors import InputError

MAX_FILE_BYTES = 256 * 1024
MAX_VALUES = 20_000  # with aliases written out
MAX_DEPTH = 32
MAX_NUMBER = 10**9  # of a whole number; seeds may be larger
SUFFIXES = (".yaml", ".yml")


def read_yaml(file: Path, *, asked_by: Path | None = None) -> Any:
    """What a file says; an InputError if it cannot be read, is no YAML or goes beyond a bound.

    `asked_by` is the file that extends it: only .yaml and .yml files may be extended.
    """
    why = f", which {asked_by} extends," if asked_by else ""
    if asked_by and file.suffix not in SUFFIXES:
        raise InputError(f"{file}{why} is no configuration; expected a file that ends in .yaml or .yml")
    try:
        found = file.stat()
        if not stat.S_ISREG(found.st_mode):
            raise InputError(f"{file}{why} is no regular file; expected a YAML file")
        if found.st_size > MAX_FILE_BYTES:
            raise InputError(f"{file}{why} has {found.st_size} bytes; expected at most {MAX_FILE_BYTES}")
        with file.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
        text = content.decode("utf-8")
    except OSError as error:
        raise InputError(f"{file}{why} cannot be read ({error.strerror}); expected a YAML file") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: is not YAML: no UTF-8 text at byte {error.start}") from None
    return deepcopy(_parsed(text, f"{file}: "))


@lru_cache(maxsize=64)  # a run reads its own file many times, a plan the common ones; parsing is what takes long
def _parsed(text: str, origin: str) -> Any:
    return parse_yaml(text, origin=origin)


def parse_yaml(text: str, *, origin: str) -> Any:
    """What a text says; `origin` begins the message of an InputError."""
    try:
        data = _Loader(text).get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise InputError(f"{origin}is not YAML{where}: {_plain_problem(error)}") from None
    except (yaml.YAMLError, ValueError) as error:  # a date or a number that does not exist
        raise InputError(f"{origin}is not YAML: {type(error).__name__}") from None
    except RecursionError:
        raise InputError(f"{origin}is nested too deeply; expected at most {MAX_DEPTH} levels") from None
    _check_size(data, origin)
    return data


class _Loader(yaml.SafeLoader):
    """Plain data only, and no merge keys: a few of them multiply without end before there is anything to count."""

    def flatten_mapping(self, node: Any) -> None:
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                raise yaml.MarkedYAMLError(problem="a merge key", problem_mark=key.start_mark)
        super().flatten_mapping(node)


def _plain_problem(error: yaml.MarkedYAMLError) -> str:
    """What is wrong, without what the file holds: the parser quotes characters, names and tags."""
    problem = str(error.problem or error.context or "no reason told")
    return problem.partition("'")[0].partition('"')[0].strip() or "no reason told"


def _check_size(data: Any, origin: str) -> None:
    """Count the values as if every alias were written out, no further than the bound."""
    waiting: list[tuple[str, Any, int]] = [("", data, 0)]
    count = 0
    while waiting:
        name, value, depth = waiting.pop()
        count += 1
        if depth > MAX_DEPTH:
            raise InputError(f"{origin}is nested too deeply, or holds itself; expected at most {MAX_DEPTH} levels")
        if count > MAX_VALUES:
            raise InputError(f"{origin}holds more than {MAX_VALUES} values, aliases written out; expected fewer")
        if isinstance(value, Mapping):
            waiting += [(str(key)[:80], below, depth + 1) for key, below in value.items()]
        elif isinstance(value, list | tuple | set):
            waiting += [(name, below, depth + 1) for below in value]
        elif isinstance(value, int) and abs(value) > MAX_NUMBER and not name.endswith("seed"):
            raise InputError(f"{origin}{name or 'a value'} is above {MAX_NUMBER:,}; expected a smaller number")
