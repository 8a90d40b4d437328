"""divopd from Python: the same runs as the commands make, as typed records; the notebook runs from its first cell."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="for want of the extra train")
pytest.importorskip("transformers", reason="for want of the extra train")

from divopd import api  # noqa: E402
from divopd.cli import main  # noqa: E402
from divopd.config import Config, load_config  # noqa: E402
from divopd.errors import InputError, UnknownNameError  # noqa: E402
from divopd.models.model_files import model_folder  # noqa: E402
from divopd.models.transformers_policy import TransformersPolicy  # noqa: E402
from divopd.models.weights import gathered_weights  # noqa: E402
from divopd.pipeline.begin import begin_run  # noqa: E402
from divopd.records import EvaluationRecord, UpdateRecord  # noqa: E402
from divopd.run.checkpoints import publish_weights  # noqa: E402
from divopd.synth import PRESETS, synthesize  # noqa: E402
from divopd.turns import write_turns  # noqa: E402
from small_runs import config, outcome  # noqa: E402

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_steps.ipynb"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


class Listener:
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.updates: list[int] = []
        self.versions: list[int] = []
        self.sentences: list[str] = []

    def updated(self, record: UpdateRecord) -> None:
        self.updates.append(record.update)

    def evaluated(self, record: EvaluationRecord) -> None:
        self.versions.append(record.version)

    def told(self, sentence: str) -> None:
        self.sentences.append(sentence)


def test_importing_it_is_light() -> None:
    """Neither torch nor pydantic is loaded before a function needs them."""
    code = "import sys; from divopd import api; print({'torch', 'pydantic', 'transformers', 'rich'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_train_makes_the_run_of_the_command(models: Path, tmp_path: Path) -> None:
    """The same ledger, evaluations and metrics file, and every record is returned, and heard of, once."""
    settings, hears = config(models), Listener()
    trained = api.train(settings, out="mine", observer=hears)
    (tmp_path / "same.yaml").write_text(settings.to_yaml(), encoding="utf-8")
    assert main(["train", "same.yaml", "--out", "theirs"]) == 0
    assert outcome(trained.run) == outcome(tmp_path / "theirs")
    assert [record.update for record in trained.updates] == hears.updates == list(range(6))
    assert [record.version for record in trained.evaluations] == hears.versions == [0, 3, 6]
    assert [sentence for sentence in hears.sentences if "nobody has looked whether" in sentence]
    lines = [(tmp_path / name / "metrics.jsonl").read_text().count("\n") for name in ("mine", "theirs")]
    assert lines[0] == lines[1] == 9
    assert (trained.run / "run.json").is_file()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_loggers_get_rollouts_to_look_at(models: Path) -> None:
    """As from the command: a table at every evaluation that has rollouts before it."""
    pytest.importorskip("tensorboard", reason="for want of the extra tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trained = api.train(config(models, loggers=["tensorboard"]), out="mine")
    events = EventAccumulator(str(trained.run / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Tensors("rollouts/text_summary")] == [3, 6]


def test_a_run_is_resumed_and_evaluated(models: Path) -> None:
    """A run that has ended is read; its newest weights, or a version's, get the record that the run has of them."""
    trained = api.train(config(models, learner={"updates": 4}), out="mine")
    assert api.resume("mine") == trained
    assert api.evaluate("mine") == trained.evaluations[-1]
    assert api.evaluate("mine", version=3) == trained.evaluations[1]
    assert api.evaluate("mine", tasks=1).tasks == 1
    with pytest.raises(InputError, match="no weights of version 99"):
        api.evaluate("mine", version=99)
    with pytest.raises(InputError, match="leave config and overrides out"):
        api.evaluate("mine", config="default/divopd")


def test_a_version_is_evaluated_with_its_own_weights() -> None:
    """A run whose version 7 has the weights of the teacher succeeds as the teacher does, not as its student."""
    settings = load_config("default/divopd", ["evaluation.tasks=8"])
    begin_run(settings, Path("mine"))
    teacher = TransformersPolicy.load(model_folder("embedded:teacher"))
    publish_weights(Path("mine/weights"), 7, gathered_weights(teacher.model))
    played = api.evaluate("mine")
    assert played.version == 7
    assert played.success_rate == api.evaluate("embedded:teacher", config=settings_file(settings)).success_rate > 50


def settings_file(settings: Config) -> Path:
    Path("settings.yaml").write_text(settings.to_yaml(), encoding="utf-8")
    return Path("settings.yaml")


def test_a_model_is_evaluated_as_a_configuration_says(models: Path) -> None:
    """In the place of its student; the callers' threads are as they were."""
    settings_file(config(models))
    torch.set_num_threads(2)
    record = api.evaluate(
        models / "teacher", config="settings.yaml", overrides=["evaluation.tasks=2", "environment.horizon=2"]
    )
    assert (record.tasks, record.version) == (2, 0)
    assert record.turns <= 2
    assert torch.get_num_threads() == 2
    with pytest.raises(InputError, match="say how to evaluate it with config="):
        api.evaluate(models / "teacher")


def test_the_folder_of_a_run_has_a_name_of_its_own(models: Path) -> None:
    """One that is there is never touched."""
    settings = config(models, learner={"updates": 1}, evaluation={"every": 1, "tasks": 1})
    assert api.train(settings).run == Path("runs/alfworld-small-divopd-seed0")
    with pytest.raises(InputError, match="is a run already"):
        api.train(settings)
    with pytest.raises(InputError, match="change the Config itself"):
        api.train(settings, overrides=["seed=1"])


def test_replay_takes_turns_files_and_runs(tmp_path: Path) -> None:
    """The same batches whatever they come in, and those of the command."""
    turns = list(synthesize(PRESETS["webshop"], updates=5, seed=0))
    write_turns(tmp_path / "turns.jsonl", turns)
    by_turns = api.replay(turns, ["vanilla", "divopd"], batch_size=16, cap=2)
    assert list(by_turns) == ["vanilla", "divopd"]
    assert [len(result.decisions) for result in by_turns.values()] == [5, 5]
    by_file = api.replay("turns.jsonl", ["divopd"], batch_size=16, cap=2)
    assert by_file["divopd"] == by_turns["divopd"]
    assert api.replay(turns, ["divopd"], batch_size=16, cap=3)["divopd"] != by_turns["divopd"]
    assert len(api.replay(turns, ["divopd"], updates=2)["divopd"].decisions) == 2
    with pytest.raises(UnknownNameError, match="did you mean 'divopd'"):
        api.replay(turns, ["divop"])


@pytest.mark.slow
def test_the_notebook_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """All cells in their order, in an empty folder; every one of them prints what it found."""
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    names: dict[str, Any] = {}
    for cell in cells:
        if cell["cell_type"] != "code":
            continue
        assert cell["outputs"] == []
        exec(compile("".join(cell["source"]), NOTEBOOK.name, "exec"), names)
        assert capsys.readouterr().out.strip()
    assert len(names["trained"].updates) == 3
    assert names["again"] == names["trained"].evaluations[-1]
    never = {name: result.utilization.never_selected for name, result in names["replayed"].items()}
    assert never["divopd"] < never["vanilla"]
