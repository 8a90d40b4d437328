"""`divopd config`: the words about every key, the resolved file, and who said each value."""

import json
from pathlib import Path

import pytest
import yaml

from divopd.cli import main
from divopd.config import Config, load_config
from divopd.config.files import config_names, shipped_configs
from divopd.config.reference import BY_ENVIRONMENT, config_keys
from schema_keys import keys_of

HIDDEN = {"composer.method", "composer.seed", "composer.total_updates"}  # they stand elsewhere in a file


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["config", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def origins(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, str]:
    lines = map(json.loads, said(capsys, *arguments, "--json").splitlines())
    return {line["key"]: line["from"] for line in lines}


def test_every_key_has_a_type_and_a_meaning() -> None:
    """The same keys as the schema has, each with words below its field in the source."""
    keys = config_keys()
    assert {key.name for key in keys} == set(keys_of(Config)) - HIDDEN
    assert [key.name for key in keys if not key.meaning.endswith(".")] == []
    assert [key.name for key in keys if "class" in key.kind or "typing" in key.kind] == []


def test_the_defaults_are_those_of_a_run() -> None:
    """A configuration that says nothing has what is listed, but for what the environment and its student decide."""
    resolved = Config.model_validate({}).resolved()
    for key in config_keys():
        if key.default == BY_ENVIRONMENT or key.name.startswith(("student.lora.", "prompts.answer")):
            continue
        value = resolved
        for part in key.name.split("."):
            value = value[part]
        assert value == key.default, key.name


def test_types_are_told_in_words() -> None:
    kinds = {key.name: key.kind for key in config_keys()}
    assert kinds["learner.activations"] == "keep | recompute"
    assert kinds["evaluation.target"] == "whole number ≥ 5, ≤ 100, a multiple of 5 or null"
    assert kinds["learner.betas"] == "[number, number]"
    assert kinds["prompts.template"] == "mapping"
    assert kinds["student.lora"] == "null or a mapping"


def test_the_schema_is_printed_whole_or_in_part(capsys: pytest.CaptureFixture[str]) -> None:
    everything = said(capsys)
    assert all(f"  {key.name}  ({key.kind}; default: " in everything for key in config_keys())
    assert "How many updates the run makes." in everything
    section = said(capsys, "explorer")
    assert "explorer.temperature" in section
    assert "learner" not in section
    [key] = map(json.loads, said(capsys, "learner.lr", "--json").splitlines())
    assert key == {"name": "learner.lr", "kind": "number", "default": 1e-6, "meaning": "The learning rate of AdamW."}


def test_each_value_has_its_origin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of the chain, the last of them that says it, an override, the environment's table, or the default."""
    (tmp_path / "base.yaml").write_text("learner: {lr: 1.0e-3, updates: 7}\nenvironment: {name: webshop-small}\n")
    mine = tmp_path / "mine.yaml"
    mine.write_text("extends: base.yaml\nlearner: {lr: 2.0e-3}\nteacher: {by_task: {'a*': here}}\n")
    found = origins(capsys, mine, "--set", "composer.cap=2")
    assert found["learner.lr"] == str(mine)
    assert found["learner.updates"] == str(tmp_path / "base.yaml")
    assert found["teacher.by_task.a*"] == str(mine)
    assert found["composer.cap"] == "--set composer.cap=2"
    assert found["environment.horizon"] == found["evaluation.tasks"] == "environment webshop-small"
    assert found["prompts.system"] == "environment webshop-small"
    assert found["learner.beta"] == found["prompts.history"] == "default"


def test_the_students_own_form_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What it was taught decides the form of answers, unless a file says another."""
    mine = tmp_path / "mine.yaml"
    mine.write_text("student: {model: 'embedded:student'}\nprompts: {actions: listed}\n")
    found = origins(capsys, mine)
    assert found["prompts.answer"] == "the student's divopd.json"
    assert found["prompts.actions"] == str(mine)


@pytest.mark.parametrize("name", ["default/divopd", "alfworld-4b/divopd-r", "scienceworld-3b/turnopd"])
def test_the_resolved_file_is_the_same_configuration(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is printed can be trained: read back, it is equal, long texts and small numbers included."""
    changes = ["--set", "learner.lr=3e-7", "--set", "teacher.by_task={'pick_*': 'a: b'}"]
    file = tmp_path / "resolved.yaml"
    file.write_text(said(capsys, name, *changes), encoding="utf-8")
    assert isinstance(yaml.safe_load(file.read_text(encoding="utf-8"))["learner"]["lr"], float)
    assert load_config(file) == load_config(name, changes[1::2])


def test_configurations_are_known_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    """All that come with divopd and can be trained; a file of that name goes first."""
    names = said(capsys, "--names").split()
    assert names == config_names()
    assert "default/divopd" in names
    assert "default/setting" not in names
    for name in names:
        assert load_config(name) == load_config(shipped_configs() / f"{name}.yaml")


def test_a_file_of_the_user_goes_before_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "default").mkdir()
    (tmp_path / "default" / "divopd").write_text("seed: 7\n")
    monkeypatch.chdir(tmp_path)
    assert load_config("default/divopd").seed == 7


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["default/divpd"], "did you mean 'default/divopd'?"),
        (["learner.shedule"], "unknown key 'learner.shedule'; did you mean 'learner.schedule'?"),
        (["nowhere.yaml"], "nowhere.yaml cannot be read"),
        (["default/divopd", "--set", "learner.lrr=1"], "did you mean 'learner.lr'?"),
        (["--set", "learner.lr=1"], "name one, such as default/divopd"),
        (["--names", "default/divopd"], "leave FILE and --set out"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", *arguments]) == 2
    told = capsys.readouterr()
    assert words in told.err
    assert told.err.count("\n") == 1
    assert told.out == ""
