"""`scripts/fresh` on a small repository of its own: what its stages see, what it says and what it leaves."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "fresh"
pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("git", "make", "timeout"))), reason="needs git, make, timeout"
)


def fresh(folder: Path, makefile: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the script in a repository that has this Makefile only, for a user with a Java and pip settings."""
    repo, tools = folder / "repo", folder / "tools"
    (repo / "scripts").mkdir(parents=True)
    shutil.copy(SCRIPT, repo / "scripts")
    (repo / "Makefile").write_text(makefile, encoding="utf-8")
    for command in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first"],
    ):
        subprocess.run(["git", "-C", repo, *command], check=True)
    (folder / "home" / ".config" / "pip").mkdir(parents=True)
    (folder / "home" / ".config" / "pip" / "pip.conf").write_text("[global]\nproxy = http://p\n", encoding="utf-8")
    for name in ("tools", "tmp"):
        (folder / name).mkdir()
    for name in ("java", "chromium"):
        (tools / name).write_text("#!/bin/sh\n", encoding="utf-8")
        (tools / name).chmod(0o755)
    paths = [str(tools), str(Path(sys.executable).parent), os.environ["PATH"]]
    mine = {"HOME": str(folder / "home"), "PATH": os.pathsep.join(paths), "TMPDIR": str(folder / "tmp"), "MINE": "1"}
    mine |= {"PIP_FIND_LINKS": "wheels", "PIP_CERT": "certificate.pem"}
    return subprocess.run(
        [repo / "scripts" / "fresh"], env={**mine, **variables}, capture_output=True, text=True, check=False, timeout=60
    )


def test_stages_see_a_strangers_machine(tmp_path: Path) -> None:
    """No browser, no Java, none of the user's variables; an interpreter that works; pip's settings and nothing else."""
    done = fresh(
        tmp_path,
        "demo:\n\t@which java chromium; env; find $$HOME -type f; python3 -c 'import venv; print(6 * 7)'\n"
        "test:\n\t@echo 3 skipped for want of a browser\n",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tools" not in done.stdout
    assert "MINE" not in done.stdout
    assert "PIP_FIND_LINKS=wheels" in done.stdout
    assert "pip.conf" in done.stdout
    assert "\n42\n" in done.stdout
    told = done.stdout.partition("fresh: make test")[2].partition("\n\n")[2]
    assert "make demo: passed" in told
    assert "make test: passed" in told
    assert "3 skipped for want of a browser" in told
    assert not list((tmp_path / "tmp").iterdir())


def test_bare_drops_pips_settings_but_certificate_and_proxy(tmp_path: Path) -> None:
    done = fresh(tmp_path, "demo:\n\t@env; find $$HOME -type f\n", FRESH_BARE="1", FRESH_STAGES="demo")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PIP_FIND_LINKS" not in done.stdout
    assert "pip.conf" not in done.stdout
    for line in ("PIP_CONFIG_FILE=/dev/null", "PIP_CERT=certificate.pem", "PIP_PROXY=http://p"):
        assert line in done.stdout.splitlines()


def test_a_stage_that_fails_or_hangs_fails_the_run(tmp_path: Path) -> None:
    """Both stages are tried, each is told, and the folder with the logs stays."""
    done = fresh(tmp_path, "demo:\n\t@echo began; sleep 50\ntest:\n\t@echo broken; exit 3\n", FRESH_LIMIT="1")
    assert done.returncode == 1
    assert "make demo: stopped at its time limit" in done.stdout
    assert "make test: failed" in done.stdout
    (kept,) = (tmp_path / "tmp").iterdir()
    assert f"in {kept}" in done.stdout
    assert "began" in (kept / "demo.log").read_text(encoding="utf-8")
