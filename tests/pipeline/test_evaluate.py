"""`divopd evaluate`: a run's version is evaluated as the run did it, a model as it is said."""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="for want of the extra train")
pytest.importorskip("transformers", reason="for want of the extra train")

from divopd.cli import evaluate  # noqa: E402
from divopd.config import Config, load_config  # noqa: E402
from divopd.environments import Observation, kind_of  # noqa: E402
from divopd.errors import InputError  # noqa: E402
from divopd.evaluation import Evaluation, exam_of  # noqa: E402
from divopd.explorer import Played, PlayedTurn, Start  # noqa: E402
from divopd.models.policy import Response  # noqa: E402
from divopd.models.tiny import TinySize, build_model, build_tokenizer, save_model  # noqa: E402
from divopd.models.weights import gathered_weights  # noqa: E402
from divopd.pipeline.models import load_student  # noqa: E402
from divopd.prompts import Codec, Prompt  # noqa: E402
from divopd.records import Answers, encode_evaluation  # noqa: E402
from divopd.run.checkpoints import publish_weights  # noqa: E402

pytestmark = pytest.mark.usefixtures("threads_as_before")
DRAW = f"{Path(__file__).parents[1] / 'lucky_draw.py'}:LuckyDraw"
SMALL = TinySize(hidden=16, layers=1, heads=2, key_value_heads=1, feed_forward=32, context=512)
TOKENIZER = build_tokenizer(["Draw for one. You win. Nothing."])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_model(folder, build_model(TOKENIZER, seed=0, size=SMALL), TOKENIZER)
    return folder


def config_of(model: Path) -> Config:
    return Config.model_validate(
        {
            "environment": {"name": DRAW, "workers": 0},
            "prompts": {"answer": "terse"},
            "student": {"model": str(model)},
            "explorer": {"max_response_tokens": 4},
            "evaluation": {"tasks": 16, "temperature": 1.0},
        }
    )


@pytest.fixture(scope="module")
def run(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with versions 0, 2 and 10, each with other weights."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "config.yaml").write_text(config_of(model).to_yaml(), encoding="utf-8")
    for version in (0, 2, 10):
        model_of_version = build_model(TOKENIZER, seed=version, size=SMALL)
        publish_weights(folder / "weights", version, gathered_weights(model_of_version))
    return folder


def call(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    evaluate.add_arguments(parser)
    return evaluate.run(parser.parse_args([str(argument) for argument in arguments]))


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[dict[str, Any]]:
    assert call(*arguments, "--json") == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_version_gives_the_figures_of_its_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the run's own evaluation says of these weights; the latest version by number unless one is named."""
    config = load_config(run / "config.yaml")
    for arguments, version in (((), 10), (("--version", 2), 2)):
        policy = load_student(config)
        policy.model.load_state_dict(build_model(TOKENIZER, seed=version, size=SMALL).state_dict())
        exam = exam_of(config, Codec(policy.tokenizer))
        expected = encode_evaluation(exam.record(exam.play(policy), version=version))
        (figures,) = told(capsys, run, *arguments)
        assert figures == {"what": str(run), "environment": DRAW, **expected}
        assert list(figures) == [
            "what",
            "version",
            "environment",
            "success_rate",
            "tasks",
            "turns",
            "by_kind",
            "answers",
        ]
        assert set(figures["by_kind"]) == {"one", "two"}
        assert figures["tasks"] == 16


def test_versions_differ(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Other weights play otherwise, so that the equality above means something."""
    figures = [told(capsys, run, "--version", version)[0] for version in (0, 2, 10)]
    assert len({(one["success_rate"], one["turns"]) for one in figures}) > 1
    assert any(0 < one["success_rate"] < 100 for one in figures)


def test_a_model_is_evaluated_as_its_configuration_says(
    run: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model folder with a run's configuration is that run's version 0 if the weights are; --tasks takes the first."""
    own, other = told(capsys, run, "--version", 0)[0], told(capsys, model, "--config", run / "config.yaml")[0]
    assert {**own, "what": "", "version": None} == {**other, "what": ""}
    short = told(capsys, model, "--environment", DRAW, "--answer", "terse", "--tasks", 3)[0]
    assert (short["tasks"], short["environment"]) == (3, DRAW)


def test_a_model_takes_over_from_another(run: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only tasks that were open after the first model's turns count; one that ends in a turn leaves none."""
    taken = told(capsys, model, "--config", run / "config.yaml", "--after", model, "--after-turns", 1)[0]
    alone = told(capsys, model, "--config", run / "config.yaml")[0]
    assert taken["tasks"] < alone["tasks"]
    assert taken["turns"] > 1 or taken["tasks"] == 0


def test_a_model_that_takes_over_from_itself_changes_nothing(
    run: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both rates are of the same open rollouts, with the same draws; those that were over by then are in neither."""
    alone = told(capsys, model, "--config", run / "config.yaml")[0]
    taken = told(capsys, model, "--config", run / "config.yaml", "--after", model, "--after-turns", 1)[0]
    assert 0 < taken["tasks"] < alone["tasks"]
    assert taken["student_percent"] == taken["success_rate"] != alone["success_rate"]


def test_the_table_shows_kinds(run: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(model, "--config", run / "config.yaml", "--set", "evaluation.tasks=4") == 0
    out = capsys.readouterr().out
    assert "success rate" in out
    assert "by kind of task" in out


def test_wrong_arguments_are_refused_in_a_sentence(run: Path, model: Path, tmp_path: Path) -> None:
    config = run / "config.yaml"
    wrong: list[tuple[tuple[object, ...], str]] = [
        ((tmp_path,), "expected a run"),
        ((model,), "say how to evaluate it"),
        ((model, "--environment", "alfwrld"), "unknown environment"),
        ((model, "--config", config, "--environment", DRAW), "either"),
        ((model, "--environment", DRAW, "--set", "seed=1"), "give --config too"),
        ((model, "--environment", DRAW, "--version", "1"), "is of a run"),
        ((run, "--version", "7"), "it has 0, 2, 10"),
        ((run, "--config", config), "leave --config"),
        ((run, "--tasks", "0"), "expected 1 or more"),
        ((run, "--after", tmp_path), "expected a run"),
        ((run, "--after", model, "--after-turns", "0"), "expected 1 or more"),
    ]
    for arguments, sentence in wrong:
        with pytest.raises(InputError, match=sentence):
            call(*arguments)
    (tmp_path / "config.yaml").write_text("method: divopd\n")
    with pytest.raises(InputError, match="no weights in it yet"):
        call(tmp_path)


def test_answers_are_counted_by_kind(model: Path) -> None:
    """Turns, tokens, the longest, those cut at the limit, without an action, and not understood; words of the tasks."""
    policy = load_student(config_of(model))
    exam = exam_of(config_of(model), Codec(policy.tokenizer))
    stop, said = exam.acting.codec.stop, Observation("Nothing.")

    def turn(*ids: int, action: str | None = "one", valid: bool = True, actor: Any = "student") -> PlayedTurn:
        seen = replace(said, valid=valid)
        return PlayedTurn(actor, Prompt([1], truncated=False), Response(list(ids), np.zeros(len(ids))), action, seen)

    first = [turn(5, stop), turn(5, 6, 7, 8, action=None), turn(5, 6, 7, stop), turn(9, 9, 9, 9, actor="teacher")]
    second = [turn(5, 6, stop, valid=False), turn(5, 6, 7, 8), turn(action=None)]
    tasks = [next(t for t in exam.tasks if kind_of(DRAW, t) == kind) for kind in ("one", "two")]
    played = Evaluation(
        tuple(
            Played(Start(n, task, 30), said, tuple(turns))
            for n, (task, turns) in enumerate(zip(tasks, (first, second), strict=True))
        )
    )
    assert exam.record(played, version=3).answers == {
        "one": Answers(turns=3, tokens=10, longest=4, cut=1, without_action=1, invalid_actions=0),
        "two": Answers(turns=3, tokens=7, longest=4, cut=1, without_action=1, invalid_actions=1),
    }
    heard: list[tuple[int, int]] = []
    assert exam.words() == []
    exam.play(policy, progress=lambda done, of: heard.append((done, of)))
    assert heard == [(done, 16) for done in range(17)]
    assert exam.words() == ["draw", "for", "one", "two"]
