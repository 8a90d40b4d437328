"""Every benchmark runs to its end, on small sizes, and prints the object that is promised."""

import json
import os
from importlib.util import find_spec
from math import isfinite

import pytest

from divopd.cli import main
from divopd.cli.bench import benchmarks
from divopd.environments.scienceworld.jvm import find_java
from divopd.errors import InputError

pytestmark = pytest.mark.usefixtures("threads_as_before")
KEYS = ("bench", "ratio", "unit", "ours", "reference", "detail")
# packages that a benchmark compares with or is about; what is not listed needs the core alone
PACKAGES = {
    "explorer": ("torch", "transformers"),
    "generation": ("torch", "transformers"),
    "growth": ("torch", "transformers"),
    "learner": ("torch", "transformers"),
    "memory": ("torch", "transformers"),
    "slots": ("torch", "transformers"),
    "scale": ("torch", "transformers"),
    "scienceworld": ("scienceworld",),
    "scoring": ("torch", "transformers"),
    "webshop": ("bm25s", "Stemmer", "rapidfuzz"),
}

# start processes of their own: ten seconds of a core and more
COSTLY = ("learner", "memory", "reports", "scienceworld")


def skip_without_its_needs(name: str) -> None:
    """Skip, with the reason, where the machine lacks what the benchmark measures."""
    for package in PACKAGES.get(name, ()):
        pytest.importorskip(package)
    if name == "alfworld" and not (find_spec("textworld") or os.environ.get("DIVOPD_ALFWORLD_PYTHON")):
        pytest.skip("needs the extra alfworld, or DIVOPD_ALFWORLD_PYTHON")
    if name == "scienceworld":
        try:
            find_java()
        except InputError:
            pytest.skip("needs java")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in COSTLY else []) for name in benchmarks()]
)
def test_every_benchmark_has_a_quick_mode_that_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`--quick` goes the whole way in seconds; a new benchmark without it fails here."""
    skip_without_its_needs(name)
    code = main(["bench", name, "--quick", "--json"])
    printed, said = capsys.readouterr()
    assert code == 0, said
    (line,) = printed.splitlines()
    told = json.loads(line)
    assert tuple(told) == KEYS
    assert told["bench"] == name
    assert isinstance(told["unit"], str)
    assert isinstance(told["detail"], dict)
    for figure in ("ratio", "ours", "reference"):
        assert isinstance(told[figure], float | int)
        assert isfinite(told[figure])
        assert told[figure] > 0, figure
    assert "not measurements" in said
