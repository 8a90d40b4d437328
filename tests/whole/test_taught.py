"""What a model was taught lies in its folder: the form of its answers is remembered, and disagreement is said."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from divopd.bootstrap.embedded import RECIPES, SHIPPED  # noqa: E402
from divopd.cli import main  # noqa: E402
from divopd.config import Config, load_config  # noqa: E402
from divopd.config.files import shipped_configs  # noqa: E402
from divopd.errors import InputError  # noqa: E402
from divopd.models.model_files import model_folder  # noqa: E402
from divopd.models.taught import Taught, differences, read_taught, write_taught  # noqa: E402
from divopd.plan.dry_run import check_start, local_models, taught_otherwise  # noqa: E402

pytestmark = pytest.mark.usefixtures("threads_as_before")
HUNT = f"{Path(__file__).parents[1] / 'coin_hunt.py'}:CoinHunt"
BRIEF = ["--updates", "1", "--rollouts", "1", "--tasks", "1"]


@pytest.fixture(scope="module")
def terse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that `divopd sft` has made with its defaults."""
    folder = tmp_path_factory.mktemp("sft") / "model"
    assert main(["sft", HUNT, "--out", str(folder), *BRIEF]) == 0
    return folder


def evaluated(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[dict[str, Any], str]:
    """The figures of `divopd evaluate`, and what it says besides."""
    capsys.readouterr()
    assert main(["evaluate", *map(str, arguments), "--tasks", "2", "--json"]) == 0
    told = capsys.readouterr()
    return json.loads(told.out), told.err


# ── sft and evaluate ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_sft_keeps_what_it_taught(terse: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Environment and form; a model made from it inherits the form, or it is told that it does not."""
    assert read_taught(terse) == Taught(HUNT, "terse", "unlisted")
    further, thinking = tmp_path / "further", tmp_path / "thinking"
    capsys.readouterr()
    assert main(["sft", HUNT, "--out", str(further), "--from", str(terse), *BRIEF]) == 0
    assert "was taught" not in capsys.readouterr().err
    assert main(["sft", HUNT, "--out", str(thinking), "--from", str(terse), "--answer", "think", *BRIEF]) == 0
    assert f"divopd: {terse} was taught prompts.answer terse, here it is think\n" in capsys.readouterr().err
    assert read_taught(further) == Taught(HUNT, "terse", "unlisted")
    assert read_taught(thinking) == Taught(HUNT, "think", "unlisted")


def test_evaluate_plays_a_model_as_it_was_taught(terse: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a word about environment or answers it is evaluated as with all of them, and nothing is said."""
    whole, _ = evaluated(capsys, terse, "--environment", HUNT, "--answer", "terse", "--actions", "unlisted")
    for options in ((), ("--environment", HUNT)):
        figures, said = evaluated(capsys, terse, *options)
        assert figures == whole
        assert said == ""


# ── a configuration ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def config(terse: Path, tmp_path: Path) -> Path:
    """A configuration that says nothing about the form of answers."""
    path = tmp_path / "mine.yaml"
    path.write_text(
        f"environment: {{name: '{HUNT}', horizon: 3}}\nstudent: {{model: {terse}}}\nteacher: {{model: {terse}}}\n"
        "explorer: {max_response_tokens: 4, rollouts_in_flight: 2}\nlearner: {updates: 1}\n"
        "composer: {batch_size: 2}\nevaluation: {tasks: 2}\nprompts: {max_prompt_tokens: 2048}\n",
        encoding="utf-8",
    )
    return path


def test_a_configuration_takes_the_students_form(config: Path, terse: Path, tmp_path: Path) -> None:
    """What it does not say is what the student was taught, and is stored with the run; what it says stands."""
    silent = load_config(config)
    assert (silent.prompts.answer, silent.prompts.actions, silent.prompts.system) == ("terse", "unlisted", "")
    assert [note for note in check_start(silent) if "was taught" in note] == []
    (tmp_path / "stored.yaml").write_text(silent.to_yaml(), encoding="utf-8")
    assert load_config(tmp_path / "stored.yaml") == silent
    said = load_config(config, ["prompts.answer=think", "prompts.actions=listed"])
    assert (said.prompts.answer, said.prompts.actions) == ("think", "listed")
    untaught = shutil.copytree(terse, tmp_path / "untaught", ignore=shutil.ignore_patterns("divopd.json"))
    other = load_config(config, [f"student.model={untaught}"])
    assert (other.prompts.answer, other.prompts.actions) == ("think", "listed")


@pytest.mark.slow
def test_a_disagreement_is_one_line_for_each_model(
    config: Path, terse: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the dry run, by train and by evaluate; all three go on."""
    wrong = ["--set", "prompts.answer=think"]
    words = f"{terse} was taught prompts.answer terse, here it is think"
    assert main(["train", str(config), *wrong, "--dry-run"]) == 0
    noted = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note") and "was taught" in line]
    assert [line.split(maxsplit=1)[1] for line in noted] == [f"student.model {words}", f"teacher.model {words}"]
    assert main(["train", str(config), *wrong, "--out", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if "was taught" in line] == [
        f"divopd: student.model {words}",
        f"divopd: teacher.model {words}",
    ]
    assert evaluated(capsys, terse, "--config", config, *wrong)[1] == f"divopd: model {words}\n"
    listed = f"divopd: model {terse} was taught prompts.actions unlisted, here it is listed\n"
    assert evaluated(capsys, terse, "--environment", HUNT, "--actions", "listed")[1] == listed


def test_evaluate_takes_the_form_of_the_model_that_it_evaluates(
    config: Path, terse: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not that of the student whose place it takes, where the configuration does not say it."""
    other = shutil.copytree(terse, tmp_path / "other")
    write_taught(other, Taught(HUNT, "think", "listed"))
    assert evaluated(capsys, other, "--config", config)[1] == ""
    assert "here it is terse" in evaluated(capsys, other, "--config", config, "--set", "prompts.answer=terse")[1]


def test_what_disagrees_is_named() -> None:
    """Answer, actions and environment; a user's file counts by its name, wherever it lies."""
    taught = Taught("here/rooms.py:Room", "terse", "unlisted")
    assert differences(taught, Taught("/somewhere/else/rooms.py:Room", "terse", "unlisted")) == ""
    assert differences(taught, Taught("here/rooms.py:Hall", "terse", "unlisted")) == (
        "environment here/rooms.py:Room, here it is here/rooms.py:Hall"
    )
    assert differences(taught, Taught("here/rooms.py:Room", "think", "listed")) == (
        "prompts.answer terse, here it is think; prompts.actions unlisted, here it is listed"
    )


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"environment": 3, "answer": "terse", "actions": "listed"}',
                                  '{"environment": "x", "answer": "verbose", "actions": "listed"}'])  # fmt: skip
def test_a_damaged_note_is_one_line(config: Path, terse: Path, tmp_path: Path, text: str) -> None:
    """It names the file and what to do; a configuration that names the model cannot be resolved without it."""
    broken = shutil.copytree(terse, tmp_path / "broken")
    (broken / "divopd.json").write_text(text, encoding="utf-8")
    for ask in (lambda: read_taught(broken), lambda: load_config(config, [f"student.model={broken}"])):
        with pytest.raises(InputError, match=r"divopd\.json: .*; expected .*delete it") as caught:
            ask()
        assert "\n" not in str(caught.value)


# ── the embedded models ───────────────────────────────────────────────────────────────────────────────────────────


def test_embedded_models_know_what_they_were_taught() -> None:
    """As their recipes teach it; every shipped folder has it, and every shipped configuration agrees with it."""
    assert {f"{path.parent.name}/{path.name}" for path in SHIPPED.glob("*/*")} == set(RECIPES)
    for name, recipe in RECIPES.items():
        assert read_taught(model_folder(f"embedded:{name}")) == Taught(recipe.environment, "terse", "unlisted")
    for setting in ("default", "webshop-small", "scienceworld-short", "default-live"):
        config = load_config(shipped_configs() / setting / "divopd.yaml")
        assert taught_otherwise(config, local_models(config)) == []


def test_the_default_student_answers_as_it_was_taught_where_it_was_taught() -> None:
    """In another environment it only stands in until a model is named, and the form stays the usual one."""
    assert Config.model_validate({}).prompts.answer == "terse"
    assert Config.model_validate({"environment": {"name": "webshop-small"}}).prompts.answer == "think"
    named = {"environment": {"name": "webshop-small"}, "student": {"model": "embedded:student"}}
    assert Config.model_validate(named).prompts.answer == "terse"
