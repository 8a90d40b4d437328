"""Planted bugs: every patch applies, those that were drawn are the draw of the seed, and the runner judges rightly."""

import ast
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import draw_mutants
import mutant_tests

import mutants

ROOT = mutants.ROOT
ALL = mutants.read_mutants()
SMALL = """def f(a, b: int = 2):
    '''A text, 3.'''
    if a < b and not a:
        print(f"{a + 1}", max(a, b))
    return a - 1
"""


def test_every_patch_still_applies() -> None:
    """A bug that can no longer be planted says nothing about the tests; the refused ones are named."""
    refused = {mutant.name: why for mutant in ALL if (why := mutants.why_not_applicable(mutant, ROOT))}
    assert not refused


def test_every_test_of_a_bug_is_there() -> None:
    """A test that was renamed would leave its bug without one."""
    named = {test for mutant in ALL for test in mutant.tests}
    functions = {
        f"{path.relative_to(ROOT)}::{node.name}"
        for path in (ROOT / "tests").glob("*/test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    }
    files = {function.partition("::")[0] for function in functions}
    assert {test.partition("[")[0] for test in named} <= functions | files


def test_there_are_enough_bugs_and_enough_were_drawn() -> None:
    """At least 100 in all, 60 of them by chance, and no two the same."""
    assert len(ALL) >= 100
    assert sum(mutant.drawn is not None for mutant in ALL) >= 60
    changes = [mutant.file.read_text(encoding="utf-8").partition("\n--- ")[2] for mutant in ALL]
    assert len(set(changes)) == len(changes)


def test_what_was_drawn_is_the_draw_of_the_seed() -> None:
    """All of the draw is there and nothing else; a patch may have been adapted to the code since, its origin not."""
    drawn = [mutant.drawn for mutant in ALL if mutant.drawn]
    [base] = {line.partition(" from ")[2].partition(",")[0] for line in drawn}
    known = ["git", "-C", str(ROOT), "cat-file", "-e", f"{base}^{{commit}}"]
    if subprocess.run(known, capture_output=True, check=False).returncode:
        pytest.skip("for want of the history")
    sites = draw_mutants.draw(draw_mutants.sources_at(base), seed=draw_mutants.SEED, count=draw_mutants.DRAWS)
    assert drawn == [draw_mutants.drawn_line(site, number, base=base) for number, site in enumerate(sites, 1)]


def test_operators_change_code_and_nothing_else() -> None:
    """Every site is another program that parses; annotations, texts and what is said to people stay."""
    sites = draw_mutants.sites_of("small.py", SMALL)
    assert [f"{site.line}:{site.operator}: {site.before} -> {site.after}" for site in sites] == [
        "1:constant: 2 -> 3",
        "3:body: a < b and not a -> False",
        "3:condition: a < b and not a -> not (a < b and not a)",
        "3:compare: < -> <=",
        "3:compare: < -> >",
        "3:and-or: and -> or",
        "3:not: not a -> (a)",
        '4:statement: print(f"{a + 1}", max(a, b)) -> pass',
        '4:arguments: f"{a + 1}", max(a, b) -> max(a, b), f"{a + 1}"',
        "4:opposite: max -> min",
        "4:arguments: a, b -> b, a",
        "5:return: return a - 1 -> return None",
        "5:arithmetic: - -> +",
        "5:constant: 1 -> 2",
    ]
    programs = {ast.dump(ast.parse(site.applied(SMALL))) for site in sites}
    assert len(programs - {ast.dump(ast.parse(SMALL))}) == len(sites)


def test_a_draw_follows_from_its_seed() -> None:
    """The same seed draws the same; another seed draws others; nothing is drawn twice."""
    sources = {"small.py": SMALL, "other.py": SMALL}
    first = draw_mutants.draw(sources, seed=1, count=20)
    assert first == draw_mutants.draw(sources, seed=1, count=20) != draw_mutants.draw(sources, seed=2, count=20)
    assert len(set(first)) == 20


SOUND = mutants.Mutant(Path("001-x.patch"), "src/x.py", "a bug", ("tests/test_x.py",), None, None)
FAILED = "FAILED tests/test_x.py::test_a[b c] - assert 1 - 1\n"


@pytest.mark.parametrize(
    ("equivalent", "code", "output", "result", "detail"),
    [
        (None, 1, FAILED, "noticed", "tests/test_x.py::test_a[b c]"),
        (None, 1, f"Failed: Timeout (>3.0s) from pytest-timeout.\n{FAILED}", "noticed", "test_a[b c] (timeout)"),
        (None, None, "", "noticed", "killed (timeout)"),
        (None, 4, "ImportError while loading conftest", "noticed", "exit code 4 of pytest"),
        (None, 0, "", "survived", "no test failed"),
        ("a reason", 0, "", "equivalent", "a reason"),
        ("a reason", 1, FAILED, "error", "called equivalent, but noticed by tests/test_x.py::test_a[b c]"),
    ],
)
def test_a_run_is_judged(equivalent: str | None, code: int | None, output: str, result: str, detail: str) -> None:
    """A failure notices the bug, and so does a hang; a bug that is called equivalent must not be noticed."""
    judged, said = mutants.judge(replace(SOUND, equivalent=equivalent), code, output)
    assert judged == result
    assert said.endswith(detail)


@pytest.mark.parametrize(
    ("results", "fails"),
    [
        (["noticed", "equivalent", "survived", "survived"], None),
        (["noticed", "survived", "survived", "survived"], "3 survived, at most 2 may"),
        (["noticed", "does not apply"], "1 does not apply"),
        (["noticed", "error"], "1 error"),
    ],
)
def test_when_the_command_fails(results: list[mutants.Result], fails: str | None) -> None:
    """Two survivors are allowed; a patch that does not apply, or whose tests fail without it, never."""
    assert mutants.verdict([mutants.Outcome(SOUND, result, "") for result in results]) == fails


@pytest.mark.parametrize(
    ("header", "complaint"),
    [
        ("Test: tests/test_x.py", "one Bug"),
        ("Bug: x", "a Test or more"),
        ("Bug: x\nTest: tests/test_x.py\nNote: y", "line 'Note: y'"),
        ("Bug: x\nTest: tests/test_x.py\nEquivalent: ", "line 'Equivalent: '"),
        ("Bug: x\nTest: tests/test_x.py\n--- a/one.py\n+++ b/one.py\n@@ -1 +1 @@\n-x\n+y", "changes 2 files"),
    ],
)
def test_a_patch_needs_its_header(tmp_path: Path, header: str, complaint: str) -> None:
    """What the bug is, and who should notice it, in one file of source."""
    patch = tmp_path / "001-x.patch"
    patch.write_text(f"{header}\n--- a/src/x.py\n+++ b/src/x.py\n@@ -1 +1 @@\n-a\n+b\n", encoding="utf-8")
    with pytest.raises(mutants.Trouble, match=complaint):
        mutants.read_mutant(patch)


def test_the_tests_that_run_a_line_are_named_some_of_every_file() -> None:
    """The quickest of each file, then the next of each, within the time that is enough; a slow one only if alone."""
    seconds = {"a::1": 1.0, "a::2": 2.0, "b::1": 3.0, "c::1": 55.0, "c::2": 90.0}
    assert mutant_tests.choose(set(seconds), seconds) == ["a::1", "b::1", "c::1"]
    assert mutant_tests.choose({"a::2", "a::1", "b::1", "never::ran"}, seconds) == ["a::1", "b::1", "a::2"]
    assert mutant_tests.choose({"c::2"}, seconds) == ["c::2"]


@pytest.mark.parametrize(
    ("context", "test"),
    [
        ("tests/core/test_x.py::test_a[b::c (call)]", "tests/core/test_x.py::test_a"),
        ("tests/core/test_x.py::test_a[b|c] (call)", "tests/core/test_x.py::test_a"),
        ("tests/core/test_x.py::test_a (setup)", "tests/core/test_x.py::test_a"),
        ("tests/wiring/test_x.py::test_a", "tests/wiring/test_x.py"),
        ("", ""),
    ],
)
def test_whose_line_it_is(context: str, test: str) -> None:
    """A context names a test function, in whatever process its line ran."""
    assert mutant_tests.test_of(context) == test


def test_the_lines_that_a_patch_changes() -> None:
    """Counted in the file without the bug, over several places."""
    patch = "--- a/x.py\n+++ b/x.py\n@@ -3,3 +3,2 @@\n a\n-b\n c\n@@ -9,2 +8,3 @@\n+new\n d\n-e\n+f\n"
    assert mutant_tests.changed_lines(patch) == ("x.py", {4, 10})
