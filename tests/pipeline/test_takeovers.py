"""Whether a teacher can take over from a student: `divopd evaluate --after` finds out, `divopd train` looks it up."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="for want of the extra train")
pytest.importorskip("transformers", reason="for want of the extra train")

from divopd.cli import main
from divopd.config import Config, load_config
from divopd.config.files import shipped_configs
from divopd.takeovers import Takeover, find_takeover, keep_takeover, takeover_note
from small_runs import config

GOOD = Takeover("a", "b", "alfworld-small", after_turns=10, rollouts=131, teacher_percent=66.4, student_percent=6.9)


def known(settings: Config, found: Takeover) -> Config:
    """The configuration, after something was found out about its models."""
    named = replace(found, teacher=settings.teacher.model, student=settings.student.model)
    assert keep_takeover(named, settings.environment.settings) is not None
    return settings


def note(settings: Config) -> str:
    return takeover_note(settings, how="--config mine.yaml") or ""


def test_a_teacher_that_nobody_has_tried_is_told_with_the_command(models: Path) -> None:
    """And is quiet once it was found to be better than the student."""
    settings = config(models)
    said = note(settings)
    assert said.endswith(f"divopd evaluate {models / 'teacher'} --after {models / 'student'} --config mine.yaml")
    assert "\n" not in said
    assert note(known(settings, GOOD)) == ""


@pytest.mark.parametrize(("teacher", "student", "poor"), [(7.0, 6.9, False), (6.9, 6.9, True), (0.0, 6.9, True)])
def test_poor_is_not_above_the_student_itself(models: Path, teacher: float, student: float, poor: bool) -> None:
    said = note(known(config(models), replace(GOOD, teacher_percent=teacher, student_percent=student)))
    assert ("cannot take over" in said) == poor
    assert bool(said) == poor


def test_a_student_that_leaves_nothing_open_condemns_nobody(models: Path) -> None:
    nothing = replace(GOOD, rollouts=0, teacher_percent=0.0, student_percent=0.0)
    assert note(known(config(models), nothing)) == ""


def test_what_was_found_counts_for_these_models_and_this_environment(models: Path, tmp_path: Path) -> None:
    """Wherever the models lie, whatever the method; another teacher, student, environment or setting is unknown."""
    known(config(models), GOOD)
    moved = tmp_path / "moved"
    shutil.copytree(models, moved)
    assert find_takeover(config(moved, method="vanilla", seed=7)) is not None
    student, teacher = {"model": str(models / "student")}, {"model": str(models / "teacher")}
    for change in (
        {"teacher": student},
        {"student": teacher},
        {"environment": {"name": "alfworld-large"}},
        {"environment": {"settings": {"games": "small"}}},
    ):
        assert find_takeover(config(models, **change)) is None


def test_a_served_teacher_is_left_out(models: Path) -> None:
    """`divopd evaluate` cannot play with it, so there is nothing to ask for."""
    assert note(config(models, teacher={"url": "http://localhost:1/v1"})) == ""
    assert note(config(models, teacher={"model": "http://localhost:1/v1"})) == ""


@pytest.mark.parametrize("setting", ["default", "webshop-small", "scienceworld-short"])
def test_the_embedded_models_come_with_what_was_found(setting: str) -> None:
    """With the weights that are shipped now; each teacher is far better than its student."""
    settings = load_config(shipped_configs() / setting / "divopd.yaml")
    found = find_takeover(settings)
    assert found is not None
    assert (found.teacher, found.student) == (settings.teacher.model, settings.student.model)
    assert found.teacher_percent > 1.5 * found.student_percent
    assert note(settings) == ""


def test_evaluate_finds_it_out_and_train_looks_it_up(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The note names a command that silences it or says more; a part of the tasks is not kept."""
    file, teacher, student = tmp_path / "mine.yaml", models / "teacher", models / "student"
    file.write_text(config(models).to_yaml(), encoding="utf-8")
    plan = ["train", str(file), "--set", "evaluation.tasks=2", "--dry-run"]
    assert main(plan) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "nobody has looked" in line)
    command = line.partition(": divopd ")[2].split()
    assert command[-2:] == ["--set", "evaluation.tasks=2"]
    assert main([*command, "--after-turns", "2", "--tasks", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kept"] is None
    assert find_takeover(config(models)) is None

    assert main([*command, "--after-turns", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    found = find_takeover(config(models))
    assert found == Takeover(
        str(teacher), str(student), "alfworld-small", 2, told["tasks"], told["success_rate"], told["student_percent"]
    )
    assert Path(told["kept"]).is_file()
    assert main(plan) == 0  # random models never succeed, and a teacher that never does is a poor one
    assert "cannot take over" in capsys.readouterr().out
