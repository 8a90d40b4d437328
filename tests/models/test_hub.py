"""Models by their name on the Hub: the real client against a local server, in processes of their own.

The client reads its address and its cache from the environment when it is imported, as it does for users.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="for want of the extra train")
pytest.importorskip("transformers", reason="for want of the extra train")

from divopd.config import Config
from divopd.models.hub import is_hub_name
from divopd.models.model_files import model_folder, require_model
from divopd.models.taught import Taught, write_taught
from divopd.plan.dry_run import TO_COME, make_plan
from hub_server import HubServer

ROOM = Path(__file__).parents[2] / "examples" / "counting_room"
FETCH = "import sys; from divopd.models.hub import fetch_models; print(*fetch_models(sys.argv[1:]), sep='\\n')"
FIND = "import sys; from divopd.models.model_files import model_folder; print(model_folder(sys.argv[1]).is_dir())"


@pytest.fixture
def hub(models: Path, tmp_path: Path) -> Iterator[HubServer]:
    """The repository of a tiny student, with files beside its weights that nobody should download."""
    folder = tmp_path / "repository"
    folder.mkdir()
    for file in (models / "student").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    write_taught(folder, Taught("CountingRoom", "terse", "unlisted"))
    for name in ("pytorch_model.bin", "modeling_own.py", "consolidated.safetensors", "onnx/model.safetensors"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"must not be loaded")
    server = HubServer(folder)
    yield server
    server.stop()


def call(hub: HubServer, place: Path, *command: object) -> subprocess.CompletedProcess[str]:
    """A process that knows this Hub and has an empty cache of its own at first."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    own = {"HF_ENDPOINT": hub.url, "HF_HOME": str(place / "hf"), "HF_HUB_DISABLE_XET": "1"}
    arguments = [sys.executable, *map(str, command)]
    return subprocess.run(arguments, env=known | own, cwd=place, capture_output=True, text=True, check=False)


def test_only_what_a_model_needs_is_downloaded_and_only_once(hub: HubServer, tmp_path: Path) -> None:
    """Safetensors, words and settings of the revision; the second time nothing, also when the Hub is gone."""
    done = call(hub, tmp_path, "-c", FETCH, "owner/name@v1")
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip())
    require_model(folder)
    assert sorted(hub.asked) == sorted(file.name for file in folder.iterdir())
    assert {"model.safetensors", "tokenizer.json", "divopd.json"} <= set(hub.asked)
    assert not {"pytorch_model.bin", "modeling_own.py", "consolidated.safetensors"} & set(hub.asked)
    assert not any("onnx" in name for name in hub.asked)
    hub.stop()
    again = call(hub, tmp_path, "-c", FETCH, "owner/name@v1")
    assert again.stdout == done.stdout, again.stderr
    assert call(hub, tmp_path, "-c", FIND, f"owner/name@{hub.commit}").stdout == "True\n"


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("owner/name@v2", "check name and revision"),
        ("owner/other@v1", "check name and revision"),
        ("owner/name@v1", "has no safetensors files at that revision"),
    ],
)
def test_what_the_hub_does_not_give_is_one_line(hub: HubServer, tmp_path: Path, model: str, words: str) -> None:
    """Before a run's folder is made: an unknown name or revision, weights in other formats alone."""
    (hub.folder / "model.safetensors").unlink()
    arguments = ("--set", f"student.model={model}", "--out", "run")
    done = call(hub, tmp_path, "-m", "divopd", "train", ROOM / "train.yaml", *arguments)
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]  # a progress bar of the client may come before it
    assert last.startswith(f"divopd: {model}: ")
    assert words in last
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_model_that_is_still_to_come_is_no_problem_of_a_plan(models: Path, tmp_path: Path) -> None:
    """The dry run asks nobody and says that the run will download it; a shape that is known is planned with."""
    teacher = {"model": str(models / "teacher"), "by_task": {"pick_*": "owner/other@v1"}}
    for student, known in (("owner/name@v1", False), ("Qwen/Qwen3-4B@1cfa9a7", True)):
        config = Config.model_validate(
            {
                "student": {"model": student},
                "teacher": teacher,
                "prompts": {"answer": "terse", "max_prompt_tokens": 300},
                "explorer": {"rollouts_in_flight": 1, "max_response_tokens": 8},
            }
        )
        plan = make_plan(config, out=tmp_path)
        told = [line for line in plan.lines if TO_COME in line]
        assert len(told) == 2
        assert told[0].startswith(f"student     {student}: ")
        assert ("4.0 billion parameters" in told[0]) == known
        assert any(line.startswith("memory") for line in plan.lines) == known
        assert [problem for problem in plan.problems if not problem.startswith(("memory: ", "disk: "))] == []


@pytest.mark.slow
def test_a_student_of_the_hub_trains(hub: HubServer, models: Path, tmp_path: Path) -> None:
    """The dry run downloads nothing and says so; the run downloads it first and follows the form it was taught."""
    small = ["learner.updates=1", "composer.batch_size=4", "evaluation.tasks=2", f"teacher.model={models / 'teacher'}"]
    (tmp_path / "mine.yaml").write_text(
        f"environment: {{name: '{ROOM / 'counting_room.py'}:CountingRoom', horizon: 3}}\n"
        "prompts: {max_prompt_tokens: 300}\nexplorer: {rollouts_in_flight: 2, max_response_tokens: 4}\n"
        "student: {model: owner/name@v1}\n"
    )
    command = ["-m", "divopd", "train", "mine.yaml", *(part for one in small for part in ("--set", one))]
    plan = call(hub, tmp_path, *command, "--dry-run")
    assert plan.returncode == 0, plan.stderr
    assert "owner/name@v1: not on this machine yet" in plan.stdout
    assert hub.asked == []
    done = call(hub, tmp_path, *command, "--out", "run")
    assert done.returncode == 0, done.stderr
    stored = (tmp_path / "run" / "config.yaml").read_text(encoding="utf-8")
    assert "model: owner/name@v1" in stored
    assert "answer: terse" in stored


def test_a_name_of_the_hub_says_its_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one it is a folder's name; a folder goes before the Hub."""
    monkeypatch.chdir(tmp_path)
    assert is_hub_name("Qwen/Qwen3-1.7B@70d244cc86ccca08cf5af4e1e306ecf908b1ad5e")
    assert not any(map(is_hub_name, ["Qwen/Qwen3-1.7B", "embedded:student", "a/b/c@main", "name@main", "../b@main"]))
    assert model_folder("owner/name@v1") == Path("owner/name@v1")
    (tmp_path / "owner" / "name@v1").mkdir(parents=True)
    assert not is_hub_name("owner/name@v1")
