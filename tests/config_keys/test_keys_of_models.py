"""Keys of the whole run and of its models: method, threads, loggers, student, teacher."""

import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from shutil import copy
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from divopd.models.model_files import load_tokenizer
from divopd.models.transformers_policy import TransformersPolicy
from divopd.turns import Turn
from key_runs import Lab, Run, changing, checks
from recording_teacher import RecordingTeacher, SglangTeacher

# ── the run ───────────────────────────────────────────────────────────────────────────────────────────────────────


@changing("method", "vanilla")
def test_another_method_composes_its_own_batches(before: Run, after: Run) -> None:
    """`vanilla` trains in arrival order, `divopd` first gives two turns to each rollout."""
    first, second = (turns[0].rollout for turns in before.begun[:2])
    assert [rollout for rollout, _ in before.first_batch] == [first, first, second, second, first, second]
    assert after.first_batch == [(turn.rollout, turn.turn) for turn in after.rows[:6]]


SHORT = ("learner.updates=1", "composer.batch_size=1", "environment.horizon=1", "evaluation.tasks=1")


@changing("threads", "2", *SHORT, "explorer.rollouts_in_flight=1")  # threads wait for one another on a busy machine
def test_models_compute_with_so_many_threads(before: Run, after: Run) -> None:
    """All of them: student, teacher and learner."""
    assert {one.threads for one in before.passes.all} == {1}
    assert {one.threads for one in after.passes.all} == {2}


@checks("loggers")
def test_a_logger_writes_into_the_runs_folder_or_is_asked_for(lab: Lab) -> None:
    """Where the tracker is not installed, the run says how to get it and does not begin."""
    run = lab.run("loggers=[tensorboard]")
    if find_spec("tensorboard") is None:
        assert run.code != 0
        assert "tensorboard" in run.said
        assert not run.folder.exists()
    else:
        assert run.code == 0, run.said
        assert list((run.folder / "tensorboard").glob("events*"))
    assert not (lab.run().folder / "tensorboard").exists()


# ── student ───────────────────────────────────────────────────────────────────────────────────────────────────────


@changing("student.model", "$models/teacher")
def test_another_student_is_trained(before: Run, after: Run) -> None:
    """A student that is the teacher's model agrees with it until it has learnt."""
    assert before.updates[0]["kl_per_token"] != pytest.approx(0, abs=1e-3)
    assert after.updates[0]["kl_per_token"] == pytest.approx(0, abs=1e-6)
    for name, value in load_file(Path(after.config["teacher"]["model"]) / "model.safetensors").items():
        assert torch.equal(after.tensors(0)[name], value)


@changing("student.dtype", "float64")
def test_the_students_weights_have_the_type(before: Run, after: Run) -> None:
    """Those that are published, and those that act: their log probabilities are no longer those of float32."""
    assert {value.dtype for value in before.tensors(1).values()} == {torch.float32}
    assert {value.dtype for value in after.tensors(1).values()} == {torch.float64}
    acting = [after.rows[0].student_logprobs, before.rows[0].student_logprobs]
    assert acting[0] == pytest.approx(acting[1], abs=1e-5)
    assert acting[0] != acting[1]


LORA = "student.lora={rank: 2, alpha: 4}"


@changing("student.lora", "{rank: 2, alpha: 4}")
def test_with_adapters_only_they_are_trained(before: Run, after: Run) -> None:
    """All other weights are those of the initial student."""
    assert not any("lora" in name for name in before.tensors(0))
    old, new = after.tensors(0), after.tensors(1)
    changed = {name for name in old if not torch.equal(old[name], new[name])}
    assert changed
    assert all("lora" in name for name in changed)


@changing("student.lora.rank", "3", LORA)
def test_adapters_have_the_rank(before: Run, after: Run) -> None:
    """Both of their matrices."""
    for run, rank in ((before, 2), (after, 3)):
        assert {value.shape[0] for name, value in run.tensors(0).items() if "lora_A" in name} == {rank}
        assert {value.shape[1] for name, value in run.tensors(0).items() if "lora_B" in name} == {rank}


@changing("seed", "1", LORA)
def test_another_seed_starts_other_adapters(before: Run, after: Run) -> None:
    """Of the two matrices of an adapter the first one starts at random; the rest of the student is the same."""
    old, new = before.tensors(0), after.tensors(0)
    assert {name for name in old if not torch.equal(old[name], new[name])} == {name for name in old if "lora_A" in name}


@changing("student.lora.alpha", "8", LORA)
def test_alpha_scales_what_adapters_add(before: Run, after: Run) -> None:
    """An adapter adds alpha/rank times its product, so the first gradient grows with it."""
    assert _gradient(after) == pytest.approx(2 * _gradient(before), rel=1e-4)


# ── teacher ───────────────────────────────────────────────────────────────────────────────────────────────────────


@changing("teacher.model", "$models/student")
def test_another_teacher_scores(before: Run, after: Run) -> None:
    """A teacher that is the student's model finds the student's log probabilities; the student acts as before."""
    first = [run.begun[0][0] for run in (before, after)]
    assert first[0].student_logprobs == first[1].student_logprobs != first[0].teacher_logprobs
    assert first[1].teacher_logprobs == pytest.approx(first[1].student_logprobs, abs=1e-5)


@changing("teacher.dtype", "bfloat16")
def test_the_teacher_scores_in_its_own_type(before: Run, after: Run) -> None:
    """Rounded as eight bits round; the student acts as before."""
    first = [run.begun[0][0] for run in (before, after)]
    assert first[0].student_logprobs == first[1].student_logprobs
    assert 1e-4 < _apart(first[0].teacher_logprobs, first[1].teacher_logprobs) < 0.25


@checks("teacher.url")
def test_a_teacher_behind_a_url_scores(lab: Lab) -> None:
    """Every score is the server's."""
    with RecordingTeacher([5, 6, 7, 8]) as teacher:
        run = lab.run(f"teacher.url={teacher.url}", "teacher.model=teacher")
    assert run.code == 0, run.said
    for turn in run.rows:
        whole = [*turn.prompt_ids, *turn.response_ids]
        assert turn.teacher_logprobs == pytest.approx(teacher.logprobs(whole)[len(turn.prompt_ids) :])


@checks("teacher.server")
def test_a_teacher_on_sglang_is_asked_in_its_own_way(lab: Lab) -> None:
    """By its own endpoint, which the other kind of server does not have; every score is the server's."""
    with SglangTeacher([5, 6, 7, 8]) as teacher:
        run = lab.run(f"teacher.url={teacher.url}", "teacher.model=teacher", "teacher.server=sglang")
    assert run.code == 0, run.said
    for turn in run.rows:
        whole = [*turn.prompt_ids, *turn.response_ids]
        assert turn.teacher_logprobs == pytest.approx(teacher.logprobs(whole)[len(turn.prompt_ids) :])


class SlowTeacher(RecordingTeacher):
    """Takes half a second for its first answer."""

    slow = True

    def answer(self, body: dict[str, Any]) -> dict[str, Any] | None:
        if self.slow:
            self.slow = False
            time.sleep(0.5)
        return super().answer(body)


@checks("teacher.timeout_s")
def test_a_teacher_may_be_silent_for_so_long(lab: Lab) -> None:
    """A run that allows less than its teacher takes cannot reach it; one that allows more begins."""
    codes = []
    for timeout_s in (0.1, 60):
        with SlowTeacher([5, 6, 7, 8]) as teacher:
            run = lab.run(f"teacher.url={teacher.url}", "teacher.model=teacher", f"teacher.timeout_s={timeout_s}")
            codes.append(run.code)
            assert ("timed out" in run.said) == (timeout_s == 0.1), run.said
    assert codes[0] != 0 == codes[1]


class AbsentTeacher(RecordingTeacher):
    """Hangs up on the first three seconds of scoring that come after the preflight."""

    began: float | None = None

    def answer(self, body: dict[str, Any]) -> dict[str, Any] | None:
        if len(body["prompt"]) > 20 and self.began is None:
            self.began = time.monotonic()
        return None if self.began and time.monotonic() - self.began < 3 else super().answer(body)


@checks("teacher.away_limit_s")
def test_a_teacher_is_waited_for_so_long(lab: Lab) -> None:
    """A run that waits for less than the teacher is away ends with a sentence; one that waits for longer goes on."""
    codes = []
    for limit_s in (0.5, 600):
        with (teacher := AbsentTeacher([5, 6, 7, 8])):
            run = lab.run(f"teacher.url={teacher.url}", "teacher.model=teacher", f"teacher.away_limit_s={limit_s}")
            assert teacher.began is not None
            codes.append(run.code)
            assert ("it was away for 0.5 s (teacher.away_limit_s)" in run.said) == (limit_s == 0.5), run.said
    assert codes[0] != 0 == codes[1]


@changing("teacher.by_task", "{'train-[135]': $models/student}")
def test_tasks_have_the_teachers_that_their_names_say(before: Run, after: Run) -> None:
    """Where the student's own model teaches, it agrees with the student; elsewhere the default teaches as before."""
    gaps = {turns[0].task: _gap(turns[0]) for turns in after.begun if turns[0].version == 0}
    assert {task[-1] in "135" for task in gaps} == {True, False}
    assert all((gap < 1e-5) == (task[-1] in "135") for task, gap in gaps.items())
    assert all(_gap(turns[0]) > 1e-3 for turns in before.begun)


@checks("teacher.prompt")
def test_the_teacher_reads_the_students_prompts_or_its_own(lab: Lab, models: Path, tmp_path: Path) -> None:
    """With another template, the first scores of the same student differ, and each is the one after its prompt."""
    tokenizer = load_tokenizer(models / "teacher")
    for file in (models / "teacher").iterdir():
        copy(file, tmp_path)
    tokenizer.chat_template = tokenizer.chat_template.replace("{{ '<|see|>' +", "{{ '<|see|><|see|>' +")
    tokenizer.save_pretrained(tmp_path)
    teacher = TransformersPolicy.load(tmp_path)
    for prompt, more in (("shared", []), ("own", [tokenizer.convert_tokens_to_ids("<|see|>")])):
        run = lab.run(f"teacher.model={tmp_path}", f"teacher.prompt={prompt}")
        assert run.code == 0, run.said
        for turns in run.begun:
            read = [*more, *turns[0].prompt_ids, *turns[0].response_ids]
            [[expected]] = teacher.score([read], [[(len(read) - len(turns[0].response_ids), len(read))]])
            assert _apart(turns[0].teacher_logprobs, expected.tolist()) < 1e-4


def _gap(turn: Turn) -> float:
    """How far student and teacher are apart, at most."""
    return _apart(turn.student_logprobs, turn.teacher_logprobs)


def _apart(some: Sequence[float] | None, others: Sequence[float] | None) -> float:
    assert some is not None
    assert others is not None
    return max(abs(a - b) for a, b in zip(some, others, strict=True))


def _gradient(run: Run) -> float:
    return run.updates[0]["learner"]["gradient_norm"]
