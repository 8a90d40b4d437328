"""The wheel as a stranger installs it: with the extra `train`, into an empty environment, far from any clone."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from divopd.config import load_config
from divopd.config.files import config_names

ROOT = Path(__file__).parents[2]
SMALL = ("learner.updates=2", "composer.batch_size=8", "evaluation.tasks=4", "evaluation.every=2")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling", reason="needs hatchling (extra dev)")
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--no-build-isolation", "--wheel-dir", folder, ROOT], check=True)
    [made] = folder.glob("*.whl")
    return made


@pytest.mark.slow
def test_the_wheel_holds_what_its_commands_read(wheel: Path) -> None:
    """Every configuration that has a name, with what it extends, and the skeleton that `divopd init` copies."""
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"divopd/configs/{name}.yaml" for name in config_names()} <= names
    assert {"divopd/configs/common.yaml", "divopd/configs/gpu.yaml", "divopd/configs/default/setting.yaml"} <= names
    assert {"divopd/environments/skeleton.py", "divopd/py.typed"} <= names
    assert not [name for name in names if name.startswith(("tests/", "docs/"))]


@pytest.mark.slow
@pytest.mark.timeout(3600)  # it unpacks torch
def test_an_installed_wheel_trains_a_configuration_by_name(wheel: Path, tmp_path: Path) -> None:
    """In an empty folder, with nothing of this checkout on the path; what pip takes is what the lock has."""
    venv.create(tmp_path / "venv", with_pip=True)
    binaries = tmp_path / "venv" / "bin"
    install = [binaries / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "--constraint", ROOT / "constraints.txt", f"{wheel}[train]"], check=True)
    subprocess.run([binaries / "python", "-m", "pip", "check"], check=True)
    (tmp_path / "empty").mkdir()
    clean = {"PATH": f"{binaries}:/usr/bin:/bin", "HOME": str(tmp_path / "empty"), "OMP_NUM_THREADS": "1"}
    clean |= {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}

    def divopd(*arguments: str) -> str:
        command = [binaries / "divopd", *arguments]
        done = subprocess.run(command, cwd=tmp_path / "empty", env=clean, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert divopd("config", "--names").split() == config_names()
    updates = load_config(ROOT / "configs" / "default" / "divopd.yaml").learner.updates
    assert f"updates     {updates} of 64 rows" in divopd("train", "default/divopd", "--dry-run")
    small = [word for setting in SMALL for word in ("--set", setting)]
    divopd("train", "default/divopd", "--out", "run", *small)
    assert (tmp_path / "empty" / "run" / "report.html").is_file()
    divopd("audit", "ledger", "run")
