"""The card of a run: commit, versions, machine, command and time, written once."""

import json
import shutil
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from divopd.errors import InputError
from divopd.run.card import checkout, command_line, make_card

ROOT = Path(__file__).parents[2]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A checkout with one commit, laid out as divopd's."""
    if shutil.which("git") is None:
        pytest.skip("for want of git")
    package = tmp_path / "clone" / "src" / "divopd"
    package.mkdir(parents=True)
    (package / "errors.py").write_text("one\n")
    (tmp_path / "clone" / "constraints.txt").write_text("numpy==2.0\n")
    git(tmp_path / "clone", "init", "--quiet")
    git(tmp_path / "clone", "add", ".")
    git(tmp_path / "clone", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "first")
    return package


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", folder, *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()  # fmt: skip


def test_a_checkout_is_known_by_its_commit(clone: Path) -> None:
    """Sources that differ from it are told, other files are not; the lock is known by its digest."""
    found = checkout(clone)
    assert found is not None
    assert found["commit"] == git(clone, "rev-parse", "HEAD")
    assert found["changed"] is False
    (clone.parents[1] / "notes.txt").write_text("no source\n")
    assert checkout(clone) == found
    (clone / "errors.py").write_text("two\n")
    assert checkout(clone) == found | {"changed": True}
    (clone.parents[1] / "constraints.txt").write_text("numpy==2.1\n")
    assert (checkout(clone) or {})["lock"] != found["lock"]


def test_an_installed_package_has_no_commit(clone: Path) -> None:
    """Also where it lies inside a checkout of somebody's own project."""
    installed = clone.parents[1] / "packages" / "divopd"
    installed.mkdir(parents=True)
    assert checkout(installed) is None


def test_the_card_names_machine_versions_and_time() -> None:
    card = make_card()
    assert card["python"] == ".".join(map(str, sys.version_info[:3]))
    assert card["versions"]["numpy"]
    assert card["cores"] >= 1
    assert card["processor"]
    assert datetime.fromisoformat(card["began"]).utcoffset() is not None
    assert isinstance(card["gpus"], list)
    json.dumps(card)


def test_the_command_is_what_a_user_types() -> None:
    assert command_line(["/some/bin/divopd", "train", "my file.yaml"]) == "divopd train 'my file.yaml'"
    assert command_line(["/some/divopd/__main__.py", "doctor"]) == "divopd doctor"
    assert command_line(["mine.py"]) == "mine.py"


def test_every_run_has_its_card(tmp_path: Path) -> None:
    """From its beginning; an attempt to begin the same run again changes nothing."""
    pytest.importorskip("torch", reason="for want of the extra train")
    from divopd.config import Config
    from divopd.pipeline.begin import begin_run

    file = tmp_path / "run" / "run.json"
    begin_run(Config.model_validate({}), tmp_path / "run")
    card = json.loads(file.read_text(encoding="utf-8"))
    file.write_text("{}")
    with pytest.raises(InputError, match="is a run already"):
        begin_run(Config.model_validate({}), tmp_path / "run")
    assert file.read_text() == "{}"
    assert (card["code"] or {}).get("commit") == (checkout(ROOT / "src" / "divopd") or {}).get("commit")
