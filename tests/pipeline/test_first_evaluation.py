"""Version 0 is played once: what is remembered is what playing would give, and only as long as nothing has changed."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="for want of the extra train")
pytest.importorskip("transformers", reason="for want of the extra train")

from divopd.config import Config
from divopd.environments import make_environment
from divopd.environments.pool import InlinePool
from divopd.evaluation import exam_of
from divopd.first_evaluation import evaluate_version, first_evaluation_file
from divopd.models.model_files import load_tokenizer
from divopd.models.policy import Policy, Response
from divopd.pipeline.models import load_student
from divopd.prompts import Codec
from divopd.records import EvaluationRecord
from doubles.listener import Listener
from small_runs import config, train_small

SHORT = {"updates": 1}


class Asked:
    """A policy that counts how often it responds."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.times, self.score = policy, 0, policy.score

    def respond(self, *prompts: object, **how: object) -> list[Response]:
        self.times += 1
        return self.policy.respond(*prompts, **how)  # pyright: ignore[reportArgumentType]


def evaluate(settings: Config, *, version: int = 0) -> tuple[EvaluationRecord, int, list[str]]:
    """The record, how often the policy was asked, and what was told."""
    student, told = Asked(load_student(settings)), []
    exam = exam_of(settings, Codec(student.policy.tokenizer))  # pyright: ignore[reportAttributeAccessIssue]
    record = evaluate_version(settings, exam, student, version=version, forbidden=(), recalled=told.append)
    return record, student.times, told


def file_of(settings: Config, *, forbidden: Sequence[int] = ()) -> Path | None:
    codec = Codec(load_tokenizer(Path(settings.student.model)))
    return first_evaluation_file(settings, exam_of(settings, codec), forbidden)


def test_version_0_is_played_once(models: Path) -> None:
    """The second time nobody is asked, the record is the same, and a sentence names the file."""
    played, times, told = evaluate(config(models))
    assert times > 0
    assert told == []
    assert played.turns > 1
    recalled, times, told = evaluate(config(models, method="vanilla"))
    assert (recalled, times) == (played, 0)
    assert len(told) == 1
    assert str(file_of(config(models))) in told[0]


def test_later_versions_are_always_played(models: Path) -> None:
    """They are neither recalled nor remembered."""
    for _ in range(2):
        record, times, _ = evaluate(config(models), version=3)
        assert times > 0
        assert record.version == 3
    assert evaluate(config(models))[1] > 0


def test_a_damaged_file_is_played_again(models: Path) -> None:
    """And written anew."""
    played = evaluate(config(models))[0]
    file = file_of(config(models))
    assert file is not None
    for damage in ("", '{"sha256": "", "kept": {}}', file.read_text()[:-9]):
        file.write_text(damage)
        again, times, _ = evaluate(config(models))
        assert (again, times > 0) == (played, True)
        assert evaluate(config(models))[1] == 0


def test_whatever_changes_the_evaluation_changes_the_file(models: Path, tmp_path: Path) -> None:
    """Weights, tokenizer, tasks, prompts and draws count; method, teacher and learner do not."""
    file = file_of(config(models))
    assert file is not None
    same = config(models, method="vanilla", teacher={"model": "elsewhere"}, learner={"lr": 1.0}, composer={"cap": 7})
    assert file_of(same) == file
    tuned, worded = tmp_path / "tuned", tmp_path / "worded"
    for folder in (tuned, worded):
        shutil.copytree(models / "student", folder)
    shutil.copy(models / "teacher" / "model.safetensors", tuned)
    template = worded / "chat_template.jinja"
    template.write_text(template.read_text() + "{# other #}")
    changes = (
        {"student": {"model": str(tuned)}},
        {"student": {"model": str(worded)}},
        {"student": {"dtype": "float64"}},
        {"seed": 1},
        {"threads": 2},
        {"evaluation": {"tasks": 4}},
        {"evaluation": {"temperature": 0.5}},
        {"evaluation": {"in_flight": 2}},
        {"explorer": {"max_response_tokens": 6}},
        {"environment": {"horizon": 6}},
        {"environment": {"evaluation_split": "train"}},
        {"prompts": {"max_prompt_tokens": 299}},
        {"environment": {"name": "alfworld-large"}},
    )
    files = [file_of(config(models, **change)) for change in changes]
    files += [file_of(config(models), forbidden=[5]), file_of(config(models), forbidden=[6])]
    assert None not in files
    assert len({file, *files}) == len(files) + 1


def test_what_depends_on_something_unknown_is_not_remembered(models: Path) -> None:
    """A user's own environment, one whose settings may name data, and adapters."""
    room = f"{Path(__file__).parents[1] / 'lucky_draw.py'}:LuckyDraw"
    for change in (
        {"environment": {"name": room}},
        {"environment": {"settings": {"games": "small"}}},
        {"student": {"lora": {}}},
    ):
        assert file_of(config(models, **change)) is None


def test_a_rollout_that_broke_off_is_not_remembered(models: Path, tmp_path: Path) -> None:
    """The next time the environment may live."""
    settings = config(models)
    file = file_of(settings)
    assert file is not None
    student = load_student(settings)
    exam = exam_of(settings, Codec(student.tokenizer))
    rooms = [Dying(), *(make_environment("alfworld-small") for _ in range(2))]
    exam._made.append(InlinePool(rooms))  # pyright: ignore[reportPrivateUsage, reportArgumentType]
    record = evaluate_version(settings, exam, student, version=0, forbidden=(), recalled=[].append)
    assert record.tasks == 3
    assert not file.exists()


class Dying:
    """An environment that dies at its reset."""

    def reset(self, task: str) -> object:
        from divopd.errors import EnvironmentFailure

        raise EnvironmentFailure(f"{task}: it died")

    def step(self, action: str) -> object:
        raise AssertionError(action)


@pytest.mark.parametrize("clock", ["simulated", pytest.param("live", marks=pytest.mark.slow)])
def test_runs_of_both_clocks_recall_it(models: Path, tmp_path: Path, clock: str) -> None:
    """The first run plays version 0, the second, of another method, does not, says so, and records the same."""
    heard = {name: Listener() for name in ("first", "second")}
    for (name, listener), method in zip(heard.items(), ("divopd", "vanilla"), strict=True):
        settings = config(models, clock="simulated" if name == "first" else clock, learner=SHORT, method=method)
        train_small(tmp_path / name, settings, observer=listener)
    assert [sum("not played again" in one for one in listener.sentences) for listener in heard.values()] == [0, 1]
    first, second = (next(one for one in heard[n].evaluations if one.version == 0) for n in heard)
    assert first == second
    assert {one.version for one in heard["second"].evaluations} == {0, 1}
