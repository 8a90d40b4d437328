"""Keys that need a GPU, a cluster, vLLM or several processes: the dry run says what they change."""

import pytest

from key_runs import planning

LIVE = "clock=live"
ON_RAY = (LIVE, "cluster=ray")
ACTORS = "tests/pipeline/test_on_ray.py::test_killed_actors_lose_nothing_and_train_nothing_twice"
EXAMS = "tests/wiring/test_evaluating.py::test_the_explorers_engine_examines_as_an_engine_of_its_own"
RANKS = "tests/pipeline/test_ranks.py::test_two_ranks_train_to_the_end_though_one_is_killed"
TEACHERS = "tests/pipeline/test_live.py::test_two_teachers_share_the_work_and_explorers_load_none"
VLLM = "tests/models/test_vllm_policy.py::test_a_live_run_trains_with_vllm"


@planning(
    "clock",
    "live",
    needs="a process for each role",
    run_by="tests/pipeline/test_live.py::test_every_method_trains_to_the_end",
)
def test_the_plan_names_the_clock(plan_before: str, plan_after: str) -> None:
    """And says of which time it speaks."""
    assert "simulated clock" in _line(plan_before, "run")
    assert "on the virtual clock" in _line(plan_before, "time")
    assert "live clock" in _line(plan_after, "run")
    assert "live, this machine decides" in _line(plan_after, "time")


@planning("cluster", "ray", LIVE, needs="Ray", run_by=ACTORS)
def test_the_plan_says_what_the_cluster_must_have(plan_before: str, plan_after: str) -> None:
    """GPUs, and the memory of each actor instead of this machine's."""
    assert "cluster" not in plan_before
    assert _line(plan_after, "cluster").startswith("Ray: 0 GPUs (learner 0, teacher 0, explorer 0)")
    assert "for each explorer" in plan_after
    assert "for each explorer" not in plan_before


@planning("explorer.processes", "3", LIVE, needs="a process for each", run_by=ACTORS)
def test_every_explorer_has_a_copy_of_the_student(plan_before: str, plan_after: str) -> None:
    """Evaluations are played with it, too."""
    assert _bytes(plan_after, "its copies") == pytest.approx(_bytes(plan_before, "its copies") * 3, rel=0.02)


@planning("evaluation.share", "null", *ON_RAY, needs="a process for each role", run_by=EXAMS)
def test_evaluations_take_places_of_explorers_or_an_engine_of_their_own(plan_before: str, plan_after: str) -> None:
    """Their own is an actor more, with a copy of the student."""
    assert _line(plan_before, "cluster").startswith("Ray: 0 GPUs (learner 0, teacher 0, explorer 0)")
    assert _line(plan_after, "cluster").startswith("Ray: 0 GPUs (learner 0, teacher 0, evaluator 0, explorer 0)")
    assert "for each evaluator" not in plan_before
    assert _memory(plan_after, "evaluator")["student"] == _memory(plan_before, "explorer")["student"]


@planning("teacher.count", "2", *ON_RAY, needs="a process for each", run_by=TEACHERS)
def test_every_teacher_has_a_copy_of_the_models(plan_before: str, plan_after: str) -> None:
    """And a place of its own on a cluster."""
    assert "teacher 0," in _line(plan_before, "cluster")
    assert "teacher 0 × 2," in _line(plan_after, "cluster")


@planning("learner.ranks", "2", *ON_RAY, needs="a process for each", run_by=RANKS)
def test_ranks_share_the_weights(plan_before: str, plan_after: str) -> None:
    """Each of two holds half of the student and of its optimizer."""
    before, after = (_memory(plan, "learner") for plan in (plan_before, plan_after))
    for purpose in ("student", "gradient and AdamW"):
        assert after[purpose] == pytest.approx(before[purpose] / 2, rel=0.02)
    assert "learner 0 × 2" in _line(plan_after, "cluster")


@planning("student.device", "cuda:7", needs="a GPU")
def test_the_student_is_planned_on_its_device(plan_before: str, plan_after: str) -> None:
    """Its weights, its optimizer and its caches; the teacher stays where it was."""
    assert _line(plan_before, "student").endswith("in float32 on cpu")
    assert _line(plan_after, "student").endswith("in float32 on cuda:7")
    assert _line(plan_after, "teacher").endswith("in float32 on cpu")
    [there] = [line for line in plan_after.splitlines() if line.startswith("memory") and " on cuda:7 (" in line]
    assert "gradient and AdamW" in there
    assert "teacher" not in there


@planning("teacher.device", "cuda:7", needs="a GPU")
def test_the_teacher_is_planned_on_its_device(plan_before: str, plan_after: str) -> None:
    """The student stays where it was."""
    assert _line(plan_before, "teacher").endswith("in float32 on cpu")
    assert _line(plan_after, "teacher").endswith("in float32 on cuda:7")
    assert _line(plan_after, "student").endswith("in float32 on cpu")
    [there] = [line for line in plan_after.splitlines() if line.startswith("memory") and " on cuda:7 (" in line]
    assert "teacher" in there
    assert "student" not in there


@planning("student.engine", "vllm", *ON_RAY, "learner.compute=bfloat16", needs="vLLM", run_by=VLLM)
def test_the_plan_says_that_vllm_acts(plan_before: str, plan_after: str) -> None:
    """It acts in the precision of the learner's products: two bytes a weight in the place of four."""
    assert "vLLM" not in plan_before
    assert _line(plan_after, "student").endswith("in float32 on cpu, acting in vLLM")
    before, after = (_memory(plan, "explorer")["student"] for plan in (plan_before, plan_after))
    assert after == pytest.approx(before / 2, rel=0.02)


@planning("teacher.engine", "vllm", LIVE, needs="vLLM", run_by=VLLM)
def test_the_plan_says_that_vllm_scores(plan_before: str, plan_after: str) -> None:
    """The student acts as before."""
    assert "vLLM" not in plan_before
    assert _line(plan_after, "teacher").endswith("in float32 on cpu, scoring in vLLM")
    assert "vLLM" not in _line(plan_after, "student")


@planning("gpus.learner", "2", *ON_RAY, needs="a cluster with GPUs")
def test_the_plan_counts_the_learners_gpus(plan_before: str, plan_after: str) -> None:
    """Each role has its own share."""
    assert "Ray: 0 GPUs (learner 0, teacher 0, explorer 0)" in plan_before
    assert "Ray: 2 GPUs (learner 2, teacher 0, explorer 0)" in plan_after


@planning("gpus.teacher", "0.5", *ON_RAY, needs="a cluster with GPUs")
def test_the_plan_counts_the_teachers_gpus(plan_before: str, plan_after: str) -> None:
    """A share of one is allowed."""
    assert "Ray: 0 GPUs (learner 0, teacher 0, explorer 0)" in plan_before
    assert "Ray: 0.5 GPUs (learner 0, teacher 0.5, explorer 0)" in plan_after


@planning("gpus.evaluator", "1", *ON_RAY, "evaluation.share=null", needs="a cluster with GPUs")
def test_the_plan_counts_the_evaluators_gpus(plan_before: str, plan_after: str) -> None:
    """It has them although nothing is trained there."""
    assert "Ray: 0 GPUs (learner 0, teacher 0, evaluator 0, explorer 0)" in plan_before
    assert "Ray: 1 GPUs (learner 0, teacher 0, evaluator 1, explorer 0)" in plan_after


@planning("gpus.explorer", "3", *ON_RAY, "explorer.processes=2", needs="a cluster with GPUs")
def test_the_plan_counts_the_gpus_of_every_explorer(plan_before: str, plan_after: str) -> None:
    """Two explorers with three each are six."""
    assert "Ray: 0 GPUs (learner 0, teacher 0, explorer 0 × 2)" in plan_before
    assert "Ray: 6 GPUs (learner 0, teacher 0, explorer 3 × 2)" in plan_after


def _line(plan: str, title: str) -> str:
    """The text of the line that begins with a title."""
    [line] = [line for line in plan.splitlines() if line.partition(" ")[0] == title]
    return line.removeprefix(title).strip()


def _memory(plan: str, role: str) -> dict[str, float]:
    """Kilobytes of each actor of a role, by purpose."""
    [line] = [line for line in plan.splitlines() if line.startswith("memory") and f"for each {role}" in line]
    return _parts(line)


def _bytes(plan: str, purpose: str) -> float:
    return _parts(_line(plan, "memory"))[purpose]


def _parts(line: str) -> dict[str, float]:
    inside = line.partition("(")[2].partition(")")[0]
    sizes = {"kB": 1.0, "MB": 1e3}
    found = [part.rsplit(" ", 2) for part in inside.split(", ")]
    return {purpose: float(amount) * sizes[unit] for purpose, amount, unit in found}
