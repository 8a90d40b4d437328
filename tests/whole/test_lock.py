"""constraints.txt, as `make setup` uses it: every version that is installed is one that was tried."""

import re
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest needs it there

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LINES = [line for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines() if line[0] != "#"]
PINS = [Requirement(line) for line in LINES]
EXTRAS = ",".join(re.findall(r"^(?:SLOW_)?EXTRAS := (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))


def locked(name: str, python: str) -> list[str]:
    """The versions of a package that the lock gives to a Python on Linux."""
    place = {"python_version": python, "python_full_version": f"{python}.1", "sys_platform": "linux"}
    return [
        str(pin.specifier).removeprefix("==")
        for pin in PINS
        if canonicalize_name(pin.name) == canonicalize_name(name) and (not pin.marker or pin.marker.evaluate(place))
    ]


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_what_is_installed_is_locked_within_its_range(python: str) -> None:
    """Each requirement of the core and of the extras that the Makefile installs has one version, one that it admits."""
    extras = PROJECT["optional-dependencies"]
    wanted = PROJECT["dependencies"] + [line for extra in EXTRAS.split(",") for line in extras[extra]]
    for requirement in map(Requirement, wanted):
        versions = locked(requirement.name, python)
        assert len(versions) == 1, f"{requirement}: {versions}; run `make lock`"
        assert versions[0] in requirement.specifier, f"{requirement}: {versions}; run `make lock`"


def test_the_lock_fits_every_machine() -> None:
    """It names no index, no build of torch, and nothing that only one build of torch needs."""
    for line, pin in zip(LINES, PINS, strict=True):
        assert re.fullmatch(r"==[\w.]+", str(pin.specifier)), f"{line}: expected one public version"
        assert pin.url is None
        assert not pin.name.startswith(("nvidia", "cuda", "triton")), line
    assert "torch==2.13.0" in LINES
