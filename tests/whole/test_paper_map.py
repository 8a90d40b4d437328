"""docs/paper-map.md: everything of the paper is listed, every name exists, every number is that of the code."""

import ast
import re
from functools import cache
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml

from divopd.audits.table import AUDITS
from divopd.cli import COMMANDS
from divopd.config import Config, load_config
from divopd.experiments.items import ITEMS
from divopd.methods import METHODS
from schema_keys import keys_of

ROOT = Path(__file__).parents[2]
SETTINGS = ("alfworld-1.7b", "alfworld-4b", "webshop-3b", "webshop-7b", "scienceworld-1.5b", "scienceworld-3b")
PAPER = {  # what the paper numbers, and how many of each there are
    "Equations and statements": [
        *(f"Equation {n}" for n in range(1, 9)),
        *("Lemma 1", "Proposition 1", "Corollary 1", "Corollary 2"),
    ],
    "Algorithm 1": [str(n) for n in range(1, 10)],
    "Tables": [f"Table {n}" for n in range(1, 20)],
    "Figures": [f"Figure {n}" for n in range(1, 10)],
}
HYPER_PARAMETERS = ("Table 1", "Table 3", "Table 4", "Table 5", "Appendix A", "Appendix G")


@cache
def sections() -> dict[str, list[list[str]]]:
    """The rows of the tables under each heading, without their heads."""
    found: dict[str, list[list[str]]] = {}
    heading, rows = "", []
    for line in (ROOT / "docs" / "paper-map.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            heading, rows = line.lstrip("# "), []
            found[heading] = rows
        elif line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return {name: [row for row in rows if not set(row[0]) <= {"-"}] for name, rows in found.items()}


def names_in(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def exists(name: str) -> bool:
    """Whether this is a command, a method, a key of the configuration, a file, or something of the package."""
    if name.startswith("divopd "):
        command, *rest = name.split()[1:]
        known = {"paper": {*ITEMS, "claims"}, "audit": set(AUDITS)}.get(command, set())
        return command in COMMANDS and (not rest or rest[0] in known)
    if name in METHODS or name in set(keys_of(Config)):
        return True
    file, _, test = name.partition("::")
    if "/" in file or file.endswith(".md"):
        found = (ROOT / file).is_file()
        return found and (not test or f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"))
    return _is_python(name.split("."))


def _is_python(parts: list[str]) -> bool:
    for end in range(len(parts) - 1, 0, -1):
        try:
            thing: Any = import_module(".".join(["divopd", *parts[:end]]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            if not hasattr(thing, part):
                return False
            thing = getattr(thing, part)
        return True
    return False


def value_of(setting: str, key: str) -> Any:
    value: Any = _config(setting).resolved()
    for part in key.split("."):
        value = value[part]
    return value


@cache
def _config(setting: str) -> Config:
    return load_config(ROOT / "configs" / setting / "divopd.yaml")


@pytest.mark.parametrize("section", PAPER)
def test_everything_of_the_paper_is_listed(section: str) -> None:
    """All equations, statements, steps, tables and figures, each once and with a place here."""
    rows = sections()[section]
    listed = [row[0].partition(",")[0] for row in rows]
    assert [name for name in listed if name in PAPER[section]] == PAPER[section]
    assert all(names_in(row[1]) for row in rows[1:])


def test_every_name_exists() -> None:
    """What the map points to is a command, a method, a key, a file or something of the package."""
    named = {name for rows in sections().values() for row in rows for cell in row for name in names_in(cell)}
    assert len(named) > 80
    assert [name for name in sorted(named) if not exists(name)] == []


@pytest.mark.parametrize("name", ["divopd fly", "divopd paper nothing", "composer.capp", "metrics.naucc", "docs/no.md"])
def test_a_name_that_is_gone_is_noticed(name: str) -> None:
    assert not exists(name)


def test_every_method_is_in_the_map() -> None:
    """Also those that the paper does not have: the last column says so."""
    listed = {name for row in sections()["Methods"] for name in names_in(row[1])}
    assert set(METHODS) <= listed


def test_hyper_parameters_are_those_of_the_configurations() -> None:
    """A value in the map is the value with which `configs/SETTING/divopd.yaml` runs."""
    head, *rows = sections()["Hyper-parameters"]
    assert head == ["paper", "key", "value"]
    start = next(number for number, row in enumerate(rows) if row[0] == "paper")
    assert rows[start][2:] == list(SETTINGS)
    shared, own = rows[:start], rows[start + 1 :]
    assert len(shared) >= 12
    assert len(own) >= 9
    for place, key, *cells in [[*row[:2], *[row[2]] * len(SETTINGS)] for row in shared] + own:
        assert place.startswith(HYPER_PARAMETERS)
        for setting, cell in zip(SETTINGS, cells, strict=True):
            got = value_of(setting, key.strip("`"))
            expected = ast.literal_eval(cell) if not cell.startswith("models/") else cell
            assert (list(got) if isinstance(got, tuple) else got) == expected, f"{setting} {key}"


def test_every_claim_is_in_the_map() -> None:
    """The claims that are judged, and no others, each once."""
    text = (files("divopd.experiments") / "claims.yaml").read_text(encoding="utf-8")
    judged = [claim["id"] for claim in yaml.safe_load(text)["claims"]]
    listed = [one for row in sections()["Claims"][1:] for one in row[0].split(", ")]
    assert sorted(listed) == sorted(judged)
