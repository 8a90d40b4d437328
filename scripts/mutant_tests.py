"""Which tests should notice a drawn bug? Those that run its line, the quickest first, some of every test file.

Needs the package coverage, besides `make setup`; in a folder of its own it does not touch the environment:

    pip install --target /tmp/cover coverage
    PYTHONPATH=src:/tmp/cover python scripts/mutant_tests.py measure --data /tmp/measured tests/core tests/store
    PYTHONPATH=src:/tmp/cover python scripts/mutant_tests.py fill --data /tmp/measured

`measure` runs tests and notes which lines of the modules that bugs are drawn from each of them runs, also in processes
that it starts; measured in parts, give every part a folder of its own and `fill` all of them. `fill` writes the lines
`Test: ...` into the patches of tests/mutants that have none. Runs that tests of one file share are counted for the
first of them, so a file of tests/wiring or tests/config_keys is named whole.
"""

import argparse
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from itertools import chain, zip_longest
from pathlib import Path

import pytest
from draw_mutants import DRAWN_FROM

from mutants import PATCHES, ROOT, read_junit

ENOUGH_S = 60.0  # of tests for one bug
SHARED = ("tests/wiring/", "tests/config_keys/")  # files whose tests look at the same runs
SETTINGS = """[run]
parallel = true
patch = _exit
sigterm = true
data_file = {data}/lines
context = ${{PYTEST_CURRENT_TEST-}}
include = {include}
"""


# ── a pytest plugin: whose line it is ─────────────────────────────────────────────────────────────────────────────


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    from coverage import Coverage

    current = Coverage.current()
    assert current is not None, "started by `measure`"
    current.switch_context(item.nodeid)
    result = yield
    current.switch_context("")
    return result


# ── measuring ─────────────────────────────────────────────────────────────────────────────────────────────────────


def measure(data: Path, tests: Sequence[str]) -> int:
    """Run tests under coverage; a child process starts it by the module that Python imports first."""
    data.mkdir(parents=True)
    places = [f"{ROOT}/src/divopd/{name}{end}" for name in DRAWN_FROM for end in ("/*", ".py")]
    settings = data / "settings"
    settings.write_text(SETTINGS.format(data=data, include=",".join(places)), encoding="utf-8")
    (data / "sitecustomize.py").write_text("import coverage\n\ncoverage.process_startup()\n", encoding="utf-8")
    path = [str(data), str(ROOT / "scripts"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"COVERAGE_PROCESS_START": str(settings), "PYTHONPATH": os.pathsep.join(path)}
    words = (
        "-p",
        "mutant_tests",
        "-p",
        "no:cacheprovider",
        f"--junitxml={data}/junit.xml",
        "-o",
        "junit_family=xunit1",
    )
    command = [sys.executable, "-m", "pytest", *words, *tests]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def tests_by_line(folders: Sequence[Path]) -> dict[str, dict[int, set[str]]]:
    """Of each source file and line, the tests that run it."""
    from coverage import CoverageData

    found: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for file in (file for folder in folders for file in folder.glob("lines.*")):
        data = CoverageData(str(file))
        data.read()
        for path in data.measured_files():
            for line, contexts in data.contexts_by_lineno(path).items():
                tests = {name for context in contexts if (name := test_of(context))}
                found[str(Path(path).relative_to(ROOT))][line] |= tests
    return found


def test_of(context: str) -> str:
    """The test function of a context, `FILE::TEST[CASE]` or in a child `FILE::TEST[CASE] (call)`; where runs are
    shared, its file.
    """
    name = context.partition("[")[0].partition(" (")[0]
    return name.partition("::")[0] if name.startswith(SHARED) else name


# ── choosing ──────────────────────────────────────────────────────────────────────────────────────────────────────


def seconds_by_test(folders: Sequence[Path]) -> dict[str, float]:
    """How long each test function took, with all its cases; of a shared file, all of it."""
    seconds: dict[str, float] = defaultdict(float)
    for folder in folders:
        for name, taken in read_junit(folder / "junit.xml").seconds.items():
            seconds[test_of(name)] += taken
    return seconds


def choose(tests: set[str], seconds: Mapping[str, float]) -> list[str]:
    """The quickest test of every file, then the second of every file, and so on, as long as it is short enough."""
    by_file: dict[str, list[str]] = defaultdict(list)
    for test in sorted(tests & seconds.keys(), key=lambda test: seconds[test]):
        by_file[test.partition("::")[0]].append(test)
    files = sorted(by_file.values(), key=lambda group: seconds[group[0]])
    chosen: list[str] = []
    total = 0.0
    for test in (test for test in chain.from_iterable(zip_longest(*files)) if test):
        if not chosen or total + seconds[test] <= ENOUGH_S:
            chosen.append(test)
            total += seconds[test]
    return chosen


def changed_lines(patch: str) -> tuple[str, set[int]]:
    """The file of a patch, and the numbers of the lines that it takes away."""
    [path] = re.findall(r"^--- a/(\S+)$", patch, re.MULTILINE)
    lines: set[int] = set()
    number = 0
    for line in patch.splitlines():
        if begins := re.match(r"@@ -(\d+)", line):
            number = int(begins[1])
        elif number:
            if line.startswith("-"):
                lines.add(number)
            number += not line.startswith("+")
    return path, lines


def fill(folders: Sequence[Path]) -> int:
    """Write the tests into every patch that names none; those for which there is no test are told."""
    by_line, seconds = tests_by_line(folders), seconds_by_test(folders)
    for file in sorted(PATCHES.glob("*.patch")):
        header, mark, rest = file.read_text(encoding="utf-8").partition("\n--- a/")
        if "\nTest: " in header:
            continue
        path, lines = changed_lines(f"{mark}{rest}")
        running = set().union(*(by_line[path][line] for line in lines))
        whole = set().union(*by_line[path].values())  # a line outside of functions runs at the import, for no test
        chosen = choose(running or whole, seconds)
        how = "run the line" if running else "run the file"
        print(f"{file.name}: {len(running or whole)} tests {how}, {len(chosen)} named")
        named = "".join(f"\nTest: {test}" for test in chosen)
        file.write_text(f"{header}{named}{mark}{rest}", encoding="utf-8")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure", help="run tests and note which lines each runs")
    measuring.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="a new folder for what is noted")
    measuring.add_argument("tests", nargs="*", help="files, folders, test names")
    filling = commands.add_parser("fill", help="write the tests into the patches that name none")
    filling.add_argument("--data", type=Path, nargs="+", required=True, metavar="FOLDER", help="folders of `measure`")
    args = parser.parse_args()
    return measure(args.data.resolve(), args.tests) if args.command == "measure" else fill(args.data)


if __name__ == "__main__":
    sys.exit(main())
