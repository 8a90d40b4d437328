"""Every command where only the core is installed (`pip install .`): it works, or one line names the extra it needs."""

import os
import signal
import subprocess
import sys
import urllib.request
import venv
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from test_lock import PROJECT

from divopd.cli import COMMANDS
from divopd.extras import MODULES
from divopd.synth import PRESETS, synthesize
from divopd.turns import write_turns
from fake_runs import make_run

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "configs" / "default" / "divopd.yaml"

# command lines in a folder with a run and a recording, each with the extra that it needs
CALLS = {
    "demo --quick --out made": "train",
    f"train {CONFIG} --out made": "train",
    f"train {CONFIG} --dry-run": "train",
    "train default/divopd --dry-run": "train",
    "init --environment builtin --student embedded:student --teacher embedded:teacher": None,
    "config": None,
    "config default/divopd": None,
    f"evaluate embedded:teacher --config {CONFIG}": "train",
    "sft alfworld-small --out made": "train",
    "compare run": None,
    "compare run --figure curves.png": "plots",
    "report run": None,
    "watch run": None,
    "replay turns.jsonl --method vanilla divopd": None,
    "explain run 2": None,
    "why run r.0.0.0": None,
    "audit ledger run": None,
    "audit utilization turns.jsonl": "plots",
    "audit geometry run": "train",
    "export run exported.jsonl": None,
    "synth alfworld --out synthetic.jsonl --updates 2": None,
    "play alfworld-small --policy expert": None,
    "play webshop-small --policy expert": "webshop",
    "play scienceworld --policy expert": "scienceworld",
    "play gym --set id=rooms-v0": "gym",
    "envs": None,
    "envs --tasks alfworld-small --split test": None,
    "methods": None,
    f"paper --list --setting default --configs {ROOT / 'configs'}": None,
    f"paper main --quick --configs {ROOT / 'configs'} --out made": "train",
    "bench": None,
    "bench scoring --json": "train",
    "doctor": None,
    "doctor --json": None,
}


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `divopd` of a virtual environment that has the wheel and what the core requires, and nothing else.

    What the core requires is linked from here, so that nothing is downloaded; pip says whether that is all of it.
    """
    pytest.importorskip("hatchling", reason="needs hatchling (extra dev)")
    folder = tmp_path_factory.mktemp("core")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    make = [*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT]
    subprocess.run(make, check=True)
    venv.create(folder / "venv", symlinks=True)
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    for name in _closure(PROJECT["dependencies"]):
        files = distribution(name).files or []
        for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
            (packages / top).symlink_to(distribution(name).locate_file(top))  # type: ignore[arg-type]
    inside = [*pip, "--python", folder / "venv" / "bin" / "python"]
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*inside, "install", "--quiet", "--no-index", "--no-deps", wheel], check=True)
    subprocess.run([*inside, "check"], check=True)
    assert (packages / "divopd" / "py.typed").is_file()
    return folder / "venv" / "bin" / "divopd"


def _closure(requirements: list[str]) -> set[str]:
    names: set[str] = set()
    left = [Requirement(line) for line in requirements]
    while left:
        one = left.pop()
        if one.name not in names and (one.marker is None or one.marker.evaluate({"extra": ""})):
            names.add(one.name)
            left += [Requirement(line) for line in distribution(one.name).requires or []]
    return names


@pytest.fixture
def place(tmp_path: Path) -> Path:
    make_run(tmp_path / "run")
    write_turns(tmp_path / "turns.jsonl", synthesize(PRESETS["alfworld"], updates=6, seed=0))
    return tmp_path


def _environment(place: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(place), "COLUMNS": "120", "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize(("call", "extra"), CALLS.items(), ids=lambda one: str(one).replace(str(ROOT), ""))
def test_it_works_or_names_the_extra(core: Path, place: Path, call: str, extra: str | None) -> None:
    """Exit code 0; or 2 and one line that says what to install, before anything was made."""
    if call.startswith("watch"):
        _watch(core, place, call)
        return
    done = subprocess.run(
        [core, *call.split()], cwd=place, env=_environment(place), capture_output=True, text=True, check=False
    )
    if extra is None:
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        assert done.stdout or done.stderr
    else:
        assert done.returncode == 2, done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
        assert done.stderr.endswith(f" is not installed; run pip install -e '.[{extra}]' in the clone of divopd\n")
        assert not (place / "made").exists()


def _watch(core: Path, place: Path, call: str) -> None:
    process = subprocess.Popen(
        [core, *call.split()], cwd=place, env=_environment(place), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().decode().strip()
        with urllib.request.urlopen(address, timeout=30) as page:
            assert b"<html" in page.read()
    finally:
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert b"Traceback" not in said


def test_every_command_is_tried() -> None:
    assert {call.split()[0] for call in CALLS} == set(COMMANDS)


def test_every_extra_is_known_by_its_modules() -> None:
    """The table that turns a missing module into an extra has every extra of pyproject.toml but the developers' own."""
    assert set(MODULES) == set(PROJECT["optional-dependencies"]) - {"dev", "docs"}
