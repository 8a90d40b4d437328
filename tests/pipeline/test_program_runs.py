"""Runs of agent programs: the same rows as an environment gives, evaluations, curricula, recovery, resumes."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import door_agent
import key_agent
import meeting_agent
from divopd.cli import main
from divopd.config import Config, load_config
from divopd.errors import AlignmentError
from divopd.models.tiny import build_model, build_tokenizer
from divopd.models.tiny import save_model as save_tiny
from divopd.pipeline.vocabularies import Vocabularies
from divopd.records import UpdateRecord
from divopd.report.fates import counted
from divopd.report.page.health import health
from divopd.store import Store, count_incomplete, program_figures, read_attempts
from divopd.store.views import StoreViews
from doubles.listener import Listener
from recorded_run import RecordedRun, train
from small_runs import SIZE, train_small
from word_model import load_model, logprobs, save_model

AGENT = door_agent.__file__


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_model(folder / "student", seed=0, sharp=0.6)
    save_model(folder / "teacher", seed=1)
    for split in door_agent.TASKS:
        lines = [json.dumps({"id": task}) for task in door_agent.Doors.tasks(split)]
        (folder / f"{split}.jsonl").write_text("\n".join(lines))
    return folder


def settings(models: Path, **changes: Any) -> dict[str, Any]:
    data: dict[str, Any] = {
        "method": "divopd",
        "seed": 4,
        "environment": {"horizon": 4},
        "prompts": {"answer": "terse", "system": "", "max_prompt_tokens": 200},
        "student": {"model": str(models / "student")},
        "teacher": {"model": str(models / "teacher")},
        "composer": {"batch_size": 6, "cap": 2},
        "learner": {"updates": 3, "lr": 1e-2, "checkpoint_every": 1},
        "explorer": {"rollouts_in_flight": 2, "max_response_tokens": 4},
        "evaluation": {"every": 1, "tasks": 2},
    }
    for name, value in changes.items():
        data[name] = {**data.get(name, {}), **value} if isinstance(value, dict) else value
    return data


def program(models: Path, *command: str, **more: Any) -> dict[str, Any]:
    files = {split: str(models / f"{split}.jsonl") for split in door_agent.TASKS}
    return {"command": list(command) or [sys.executable, AGENT], "tasks": files, "tools": "none", **more}


@pytest.fixture(scope="module")
def run(models: Path, tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    """A run of the game as a program."""
    made = train(tmp_path_factory.mktemp("program") / "run", settings(models, environment=program(models)))
    assert made.code == 0
    return made


def test_a_program_gives_the_rows_of_the_same_environment(models: Path, run: RecordedRun, tmp_path: Path) -> None:
    """For the same seed every row is the same, its scores included, and so are batches and evaluations."""
    environment = {"name": f"{AGENT}:Doors", "workers": 0}
    other = train(tmp_path / "class", settings(models, environment=environment))
    assert other.code == 0
    assert len(run.turns()) > 12
    assert run.turns() == other.turns()
    assert run.batches() == other.batches()
    assert run.metrics("evaluation") == other.metrics("evaluation")


def test_every_row_is_worth_to_a_fresh_pass_what_was_recorded(models: Path, run: RecordedRun) -> None:
    """At the weights of its version; the record of its call has the same ids and values, and every call is one."""
    versions = {row.version for row in run.turns()}
    assert len(versions) > 1
    policies = {version: load_model(models / "student", run.weights(version)) for version in versions}
    with Store.open_read_only(run.folder) as store:
        for name, rows in run.rollouts().items():
            [attempt] = read_attempts(store, int(name[1:]))
            assert attempt.is_complete
            assert list(attempt.calls) == [row.turn for row in rows]
            for row, record in zip(rows, attempt.calls.values(), strict=True):
                assert record is not None
                assert (record["prompt_ids"], record["completion_ids"]) == (row.prompt_ids, row.response_ids)
                assert record["first_version"] == record["last_version"] == row.version
                assert record["logprobs"] == row.student_logprobs
                with torch.no_grad():
                    fresh = logprobs(policies[row.version], row.prompt_ids, row.response_ids)
                np.testing.assert_allclose(record["logprobs"], fresh.numpy(), atol=1e-5)
        assert count_incomplete(store) == 0


def test_the_run_sums_up_what_its_programs_asked_for(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every other program asks for what is refused: the terminal, the report, `why` and the store say the same."""
    agent = Path(key_agent.__file__)
    made = train(
        tmp_path / "run",
        settings(models, environment=program(models, sys.executable, str(agent), "turn"), learner={"updates": 1}),
    )
    assert made.code == 0
    said = capsys.readouterr().out
    with Store.open_read_only(made.folder) as store:
        figures = program_figures(store)
        numbers = store.record_numbers("attempt_end")
    assert figures is not None
    assert figures.attempts == len(numbers)
    assert figures.calls == figures.refused > 0  # tools are refused, and then it asks without them
    line = (
        f"{figures.attempts} programs ended, 0 of them broke off; {figures.calls} calls answered, 0 not heard; "
        f"{figures.refused} calls refused"
    )
    assert line in " ".join(said.split())
    assert line in (made.folder / "report.html").read_text(encoding="utf-8")
    assert main(["why", str(made.folder), next(iter(made.rollouts()))]) == 0
    assert "a call was refused: tools are offered, but environment.tools is none" in capsys.readouterr().out


def test_why_tells_what_each_call_was_and_what_became_of_it(
    run: RecordedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    """Agent, tokens, how it was parsed and delivered, beside the fate of its turn."""
    name, rows = next(iter(run.rollouts().items()))
    capsys.readouterr()
    assert main(["why", str(run.folder), name, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [call["turn"] for call in told["calls"]] == [row.turn for row in rows]
    assert {call["agent"] for call in told["calls"]} == {"main"}
    assert main(["why", str(run.folder), name]) == 0
    said = capsys.readouterr().out
    assert f"call 0 of agent main: {len(rows[0].prompt_ids)} tokens read, {len(rows[0].response_ids)} written" in said
    assert "delivered" in said
    assert "the program: it ended with exit code 0" in said or "the rollout was cut at its most calls" in said
    assert "of agent main: " in (run.folder / "report.html").read_text(encoding="utf-8")
    assert main(["explain", str(run.folder), "0"]) == 0
    assert name in capsys.readouterr().out


def test_a_program_that_dies_now_and_then_costs_its_rollouts(models: Path, tmp_path: Path) -> None:
    """Training goes on with the others; the journal says why each broke off."""
    script = f"case $(cat $TASK_FILE) in *train-3*) echo bad day; exit 9;; esac; exec {sys.executable} {AGENT}"
    made = train(
        tmp_path / "run", settings(models, environment=program(models, "sh", "-c", script), learner={"updates": 2})
    )
    assert made.code == 0
    assert "train-3" not in {row.task for row in made.turns()}
    with Store.open_read_only(made.folder) as store:
        broke = [event for _, kind, event in store.events() if kind == "rollout_broke"]
        attempts = [read_attempts(store, event["number"])[0].ended for event in broke]
    assert {event["task"] for event in broke} == {"train-3"}
    assert "exit code 9; its last words: bad day" in broke[0]["reason"]
    assert all(ended is not None and ended["output"] == "bad day\n" for ended in attempts)
    with StoreViews.open(made.folder) as views:
        [row] = [one for one in health(views)["happened"] if one["what"] == "broke off"]
    assert row["why"].startswith(
        f"{counted(len(broke), 'rollout')}, the last one {broke[-1]['rollout']} of task train-3: "
    )


def test_programs_of_the_virtual_clock_run_side_by_side_and_repeat(models: Path, tmp_path: Path) -> None:
    """In training and in evaluations; whichever of them is faster, rows, batches and records stay the same."""
    runs: list[RecordedRun] = []
    for number in range(2):
        (meeting := tmp_path / f"meeting{number}").mkdir()
        command = (sys.executable, meeting_agent.__file__, str(meeting))
        changes = {"environment": program(models, *command), "learner": {"updates": 1}}
        made = train(tmp_path / f"run{number}", settings(models, **changes))
        assert made.code == 0
        runs.append(made)
    first, second = runs
    assert first.turns() == second.turns()
    assert first.batches() == second.batches()
    assert first.metrics("evaluation") == second.metrics("evaluation")
    attempts: list[list[Any]] = []
    for made in runs:
        with Store.open_read_only(made.folder) as store:
            assert not [event for _, kind, event in store.events() if kind == "rollout_broke"]
            attempts.append([read_attempts(store, int(name[1:])) for name in made.rollouts()])
    assert attempts[0] == attempts[1]


def test_a_curriculum_counts_calls(models: Path, tmp_path: Path) -> None:
    """TCOD's first rollouts have one turn: after the first call a program is cut."""
    config = settings(
        models, environment=program(models), method="tcod-f2b", curriculum={"growth": 50}, learner={"updates": 1}
    )
    made = train(tmp_path / "run", config)
    assert made.code == 0
    assert {row.turn for row in made.turns()} == {0}


def test_what_cannot_work_is_refused_at_the_start(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tools that the chat template does not show, prompts of the teacher's own, tasks that are not there."""
    for number, (part, more, sentence) in enumerate(
        (
            ({"tools": "template"}, {}, "chat template does not show the tools that are offered"),
            ({}, {"teacher": {"prompt": "own"}}, "teacher.prompt is own; expected shared"),
            ({"tasks": {"train": str(models / "train.jsonl")}}, {}, "no file for 'test'"),
            ({"name": "alfworld-small"}, {}, "expected command and no name"),
        )
    ):
        made = train(tmp_path / f"run{number}", settings(models, environment=program(models, **part), **more))
        assert made.code == 2
        assert sentence in capsys.readouterr().err
        assert not (tmp_path / f"run{number}").exists()


def test_a_teacher_that_does_not_know_the_ids_of_tools_is_refused(tmp_path: Path) -> None:
    """The student's tokenizer has a token for the tag of a call, the teacher's has not."""
    teacher, student = (build_tokenizer(["open the door"] * 2) for _ in range(2))
    student.add_tokens(["<tool_call>"])
    for role, tokenizer in {"teacher": teacher, "student": student}.items():
        save_tiny(tmp_path / role, build_model(tokenizer, seed=0, size=SIZE), tokenizer)
    (tmp_path / "tasks.jsonl").write_text('{"id": "a"}')
    tasks = {split: str(tmp_path / "tasks.jsonl") for split in ("train", "test")}
    for tools, refused in (("plain", True), ("none", False)):
        data = {"environment": {"command": ["true"], "tasks": tasks, "tools": tools}}
        data |= {role: {"model": str(tmp_path / role)} for role in ("teacher", "student")}
        vocabularies = Vocabularies(Config.model_validate(data))
        if refused:
            with pytest.raises(AlignmentError, match=r"<tool_call>"):
                vocabularies.check()
        else:
            assert "<tool_call>" in str(vocabularies.check())


def test_a_program_can_be_watched_with_a_model_or_a_runs_student(
    models: Path, run: RecordedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every message and every answer on the terminal, until it ends."""
    tasks = f"tasks={models / 'test.jsonl'}"
    for policy in (models / "student", run.folder):
        words = ["play", f"command {sys.executable} {AGENT}", "test-1", "--policy", str(policy), "--set", tasks]
        assert main([*words, "--set", "horizon=2"]) == 0
        said = capsys.readouterr().out
        assert "[user] test-1 turn 0\n1 > " in said
        assert "of 2 turns, reward" in said
    words = ["play", f"command {AGENT}:main", "test-1", "--policy", str(models / "student"), "--set", tasks]
    assert main([*words, "--set", "horizon=2"]) == 1  # the program's own main takes no task
    said = capsys.readouterr().out
    assert "the environment broke off: the program broke off: it ended with exit code 1" in said
    assert "TypeError: main() takes 0 positional arguments" in said
    assert main(["play", "command true", "--policy", str(models / "student")]) == 2
    assert main(["play", "command true"]) == 2
    assert "name one with --policy MODEL" in capsys.readouterr().err


def test_init_writes_the_lines_of_a_program(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read back, and name the files that hold the tasks."""
    monkeypatch.chdir(models)
    words = ["--student", str(models / "student"), "--teacher", str(models / "teacher"), "--out", str(tmp_path / "new")]
    assert main(["init", "--environment", f"command {sys.executable} {AGENT}", *words]) == 0
    part = load_config(tmp_path / "new" / "train.yaml").environment
    assert part.command == (sys.executable, AGENT)
    assert part.tasks == {"train": "train.jsonl", "test": "test.jsonl"}
    assert main(["init", "--environment", "command ", *words]) == 2


def test_words_of_an_evaluation_are_those_of_messages(run: RecordedRun) -> None:
    """Not those that say who speaks: no training prompt has them, and a warning would tell so."""
    with Store.open_read_only(run.folder) as store:
        [words] = [event["words"] for _, kind, event in store.events() if kind == "evaluation_words"]
    assert "turn" in words
    assert "user" not in words


def test_transcripts_and_evaluations_of_a_program(
    run: RecordedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`divopd evaluate` plays the same tasks as the run did, and writes what was said."""
    file = tmp_path / "said.jsonl"
    assert main(["evaluate", f"{run.folder}@1", "--transcripts", str(file), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["success_rate"] == run.metrics("evaluation")[1]["success_rate"]
    first = json.loads(file.read_text().splitlines()[0])
    assert first["first"] == "[user] test-0 turn 0"
    assert first["turns"][0]["answer"] == first["turns"][0]["action"]


class Interrupted(Exception):
    """The test's own end of a run, at once and without a checkpoint."""


def test_a_run_that_was_broken_off_goes_on_to_the_same_batches(models: Path, run: RecordedRun, tmp_path: Path) -> None:
    """What it plays again is another attempt, with another key; every row is what it was."""
    config = Config.model_validate(settings(models, environment=program(models)))

    def stop(record: UpdateRecord) -> None:
        if record.update == 1:
            raise Interrupted

    with pytest.raises(Interrupted):
        train_small(tmp_path / "run", config, observer=Listener(stop))
    train_small(tmp_path / "run", config)
    gone_on = RecordedRun(tmp_path / "run", 0)
    assert gone_on.batches() == run.batches()
    assert gone_on.turns() == run.turns()
    with Store.open_read_only(gone_on.folder) as store:
        attempts = {name: len(read_attempts(store, int(name[1:]))) for name in gone_on.rollouts()}
    assert set(attempts.values()) == {1, 2}


@pytest.mark.slow
def test_programs_train_on_the_live_clock_with_weights_that_change_between_calls(models: Path, tmp_path: Path) -> None:
    """Every row is worth to a fresh pass of its own version what was recorded, and its call has the same version."""
    explorer = {"rollouts_in_flight": 3, "versions": "turn"}
    made = train(tmp_path / "run", settings(models, environment=program(models), clock="live", explorer=explorer))
    assert made.code == 0
    with Store.open_read_only(made.folder) as store:
        for name, rows in made.rollouts().items():
            attempt = read_attempts(store, int(name[1:]))[-1]
            for row in rows:
                record = attempt.calls[row.turn]
                assert record is not None
                assert (record["completion_ids"], record["first_version"]) == (row.response_ids, row.version)
                policy = load_model(models / "student", made.weights(row.version))
                with torch.no_grad():
                    fresh = logprobs(policy, row.prompt_ids, row.response_ids)
                np.testing.assert_allclose(record["logprobs"], fresh.numpy(), atol=1e-4)
