"""The suite's own guards: a planted leak fails its test by name, and the run ends; one line tells what was skipped."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from wants import WAYS, closing_line

HERE = Path(__file__).parents[1]
PLANTED = {
    "thread": "threading.Thread(target=threading.Event().wait, name='forgotten').start()",
    "process": "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])",
    "orphan": "subprocess.run('sleep 600 & true', shell=True, check=True)",
    "port": "KEPT.append(socket.create_server(('127.0.0.1', 0)))",
    "temporary folder": "tempfile.mkdtemp(prefix='forgotten')",
}
NAMED = {
    "thread": "thread forgotten",
    "process": "time.sleep(600)",
    "orphan": "sleep 600",
    "port": "port ",
    "temporary folder": "/forgotten",
}
TOP = "import pytest, socket, subprocess, sys, tempfile, threading\nKEPT = []\n"


def suite(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Run these tests as `make test` does: with this suite's settings, conftest and plugins."""
    for name in ("conftest.py", "leak_guard.py", "wants.py", "browser.py"):
        (folder / name).write_text((HERE / name).read_text())
    (folder / "pyproject.toml").write_text((HERE.parent / "pyproject.toml").read_text().replace('"tests"', '"."'))
    (folder / "test_planted.py").write_text(TOP + text)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--basetemp", str(folder / "base")]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=250, check=False)


@pytest.mark.slow
def test_a_planted_leak_fails_the_run_by_name(tmp_path: Path) -> None:
    """A thread, a child, a child's child, a port and a folder: the test that left each is named, its neighbour is not,
    and the run ends, though Python would wait for the thread."""
    tests = [f"def test_{kind.replace(' ', '_')}(): {line}\ndef test_after_{number}(): pass\n"
             for number, (kind, line) in enumerate(PLANTED.items())]  # fmt: skip
    done = suite(tmp_path, "@pytest.mark.filterwarnings('default')\n".join(["", *tests]))
    assert done.returncode == 1, done.stdout + done.stderr
    for kind, words in NAMED.items():
        test = f"test_planted.py::test_{kind.replace(' ', '_')}"
        assert re.search(rf"^{test} left behind: .*{re.escape(words)}", done.stdout, re.MULTILINE), done.stdout
    assert f"{2 * len(PLANTED)} passed, 1 warning, {len(PLANTED)} errors" in done.stdout
    assert "not waited for: thread forgotten" in done.stdout


FIXTURES = """
@pytest.fixture(scope='module')
def server():
    with socket.create_server(('127.0.0.1', 0)) as made:
        yield made
@pytest.fixture(scope='module')
def sleeper():
    yield subprocess.Popen(['sleep', '600'])
def test_one(server, sleeper): assert sleeper.poll() is None
def test_two(server, sleeper): assert sleeper.poll() is None
"""


def test_a_fixture_may_keep_things_as_long_as_it_lives(tmp_path: Path) -> None:
    """What a fixture of a module started is no test's, and must be gone when the fixture is."""
    done = suite(tmp_path, FIXTURES)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.findall("(.*) left behind: (.*)", done.stdout)[0][0] == "a fixture of test_planted.py"
    assert "2 passed, 1 error" in done.stdout, done.stdout
    assert "(sleep 600)" in done.stdout


HANGING = """
@pytest.mark.timeout(2)
def test_hangs(): threading.Event().wait()
@pytest.mark.browser
def test_page(server): raise AssertionError('it starts')
@pytest.fixture
def server(): raise AssertionError('it starts')
def test_data(): pytest.skip('for want of the official data')
"""


def test_a_hang_fails_with_its_stack_and_skips_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that hangs fails; without a browser its test is skipped before its fixtures start; one line says so."""
    monkeypatch.setenv("PATH", str(tmp_path))
    done = suite(tmp_path, HANGING)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Timeout (>2.0s)" in done.stdout
    assert "test_hangs" in done.stdout
    assert done.stdout.splitlines()[-1] == (
        "skipped: 1 for want of a browser (apt-get install chromium), "
        "1 for want of the official data (DIVOPD_DATA=FOLDER make test)"
    )


def test_every_want_has_a_way() -> None:
    """The tests' reasons stand in the table with the command that gets what they want; other reasons are counted."""
    texts = "".join(path.read_text(encoding="utf-8") for path in sorted(HERE.rglob("*.py")) if path.name[:5] != "wants")
    wanted = set(re.findall(r"[\"']for want of ([^\"{]+)[\"']\)", texts))
    assert wanted >= {"a browser", "Java", "the official data"}
    assert wanted <= WAYS.keys()
    assert closing_line(["Skipped: for want of strace", "Skipped: no GPU here"]) == (
        "skipped: 1 for want of strace (apt-get install strace), 1 for other reasons (pytest -rs)"
    )
