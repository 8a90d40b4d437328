"""What `divopd doctor` tells."""

import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from divopd.cli import doctor
from divopd.plan.machine import cores, free_disk, free_memory, in_bytes


def test_the_core_works_here(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0, and each part with what was found or how to get it."""
    assert doctor.run(Namespace(json=True)) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["core_works"]
    assert told["cores"] == cores()
    assert told["free_disk_bytes"] > 0
    parts = {check["part"]: check for check in told["checks"]}
    assert parts["numpy"]["found"]
    assert parts["environment alfworld-small"]["found"] == "ready"
    assert any(part.startswith("framework") for part in parts)
    for check in told["checks"]:
        assert bool(check["found"]) != bool(check["install"]), check


def test_the_table_ends_with_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    """For people: a table, a line for each way to get what is missing, and whether the core works."""
    assert doctor.run(Namespace(json=False)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("python 3.")
    assert lines[-1].startswith("The core works.")


def test_data_folders_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that names no folder is told as such."""
    monkeypatch.setenv("DIVOPD_DATA", str(tmp_path / "gone"))
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    wrong, there = doctor.check_data()
    assert wrong.found is None
    assert "is no folder" in wrong.install
    assert there.found == str(tmp_path)


def test_it_works_without_any_extra() -> None:
    """With torch and every optional package out of reach the doctor still answers, and says how to get them."""
    code = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'tokenizers', 'safetensors', 'yaml', 'pydantic', 'scienceworld'):\n"
        "    sys.modules[name] = None\n"
        "from argparse import Namespace\n"
        "from divopd.cli import doctor\n"
        "sys.exit(doctor.run(Namespace(json=True)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    parts = {check["part"]: check for check in json.loads(done.stdout)["checks"]}
    assert "pip install -e '.[train]'" in parts["GPU"]["install"]


def test_the_machine_is_measured(tmp_path: Path) -> None:
    """Free disk is asked where the folder will be, also before it is there; memory is known on Linux."""
    assert free_disk(tmp_path / "a" / "b") == pytest.approx(free_disk(tmp_path), rel=0.1)
    if sys.platform == "linux":
        assert (free_memory() or 0) > 0
    assert [in_bytes(n) for n in (1500, 2_000_000, 15e9, 3e12)] == ["2 kB", "2.0 MB", "15 GB", "3.0 TB"]
