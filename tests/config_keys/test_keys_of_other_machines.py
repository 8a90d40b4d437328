"""Keys that need a GPU, a cluster, vLLM, a compiler or several processes: the dry run says what they change."""

import pytest

from key_runs import planning

LIVE = "clock=live"
ON_RAY = (LIVE, "cluster=ray")
ACTORS = "tests/pipeline/test_on_ray.py::test_killed_actors_lose_nothing_and_train_nothing_twice"
EXAMS = "tests/wiring/test_evaluating.py::test_the_explorers_engine_examines_as_an_engine_of_its_own"
RANKS = "tests/pipeline/test_ranks.py::test_two_ranks_train_to_the_end_though_one_is_killed"
HUNG = "tests/pipeline/test_ranks.py::test_a_rank_that_hangs_is_named_and_the_run_goes_on"
NODES = "tests/pipeline/test_networks.py::test_ranks_on_two_networks_train_as_one"
TEACHERS = "tests/pipeline/test_live.py::test_two_teachers_share_the_work_and_explorers_load_none"
COMPILED = "tests/models/test_compiled_layers.py::test_compiled_layers_give_the_plain_gradient"
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


@planning("weights.way", "folder", *ON_RAY, needs="Ray", run_by=ACTORS)
def test_versions_for_explorers_are_files_or_lie_in_the_object_store(plan_before: str, plan_after: str) -> None:
    """Files of the newest three come to those that are evaluated."""
    before, after = (_parts(_line(plan, "disk"))["weights"] for plan in (plan_before, plan_after))
    assert after > before


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
    for purpose in ("student", "gradient", "AdamW"):
        assert after[purpose] == pytest.approx(before[purpose] / 2, rel=0.02)
    assert "learner 0 × 2" in _line(plan_after, "cluster")


@planning("learner.nodes", "2", *ON_RAY, "learner.ranks=4", needs="several machines", run_by=NODES)
def test_the_ranks_of_each_machine_hold_all_weights(plan_before: str, plan_after: str) -> None:
    """Two on each of two machines share them between two, four on one between four."""
    before, after = (_memory(plan, "learner") for plan in (plan_before, plan_after))
    for purpose in ("student", "gradient", "AdamW"):
        assert after[purpose] == pytest.approx(before[purpose] * 2, rel=0.05)
    assert _line(plan_before, "ranks").startswith("4 on one machine, which meet at 127.0.0.1, a free port;")
    assert _line(plan_after, "ranks").startswith("4 on 2 machines, which meet at 127.0.0.1, a free port;")


@planning("learner.address", "10.0.0.1", LIVE, "learner.ranks=2", needs="that address", run_by=NODES)
def test_ranks_meet_at_the_address_that_is_said(plan_before: str, plan_after: str) -> None:
    """On loopback where none is."""
    assert "which meet at 127.0.0.1, a free port;" in _line(plan_before, "ranks")
    assert "which meet at 10.0.0.1, a free port;" in _line(plan_after, "ranks")


@planning("learner.port", "29500", LIVE, "learner.ranks=2", needs="that port", run_by=NODES)
def test_ranks_meet_at_the_port_that_is_said(plan_before: str, plan_after: str) -> None:
    """At a free one where none is."""
    assert "which meet at 127.0.0.1, a free port;" in _line(plan_before, "ranks")
    assert "which meet at 127.0.0.1, port 29500;" in _line(plan_after, "ranks")


@planning("learner.hung_after_s", "20", LIVE, "learner.ranks=2", needs="a process for each", run_by=HUNG)
def test_a_rank_may_be_silent_for_so_long(plan_before: str, plan_after: str) -> None:
    """Then it is started again."""
    assert "one that is not heard for 300 s is ended" in _line(plan_before, "ranks")
    assert "one that is not heard for 20 s is ended" in _line(plan_after, "ranks")


@planning("learner.compile", "true", needs="a C++ compiler, and a minute", run_by=COMPILED)
def test_the_plan_says_that_layers_are_compiled(plan_before: str, plan_after: str) -> None:
    """Usually they are not."""
    assert "compiled" not in plan_before
    assert _line(plan_after, "updates").endswith(", layers compiled by torch: the first updates take longer")


@planning("student.device", "cuda:7", "student.engine=transformers", needs="a GPU")
def test_the_student_is_planned_on_its_device(plan_before: str, plan_after: str) -> None:
    """Its weights, its optimizer and its caches; the teacher stays where it was."""
    assert _line(plan_before, "student").endswith("in float32 on cpu")
    assert _line(plan_after, "student").endswith("in float32 on cuda:7")
    assert _line(plan_after, "teacher").endswith("in float32 on cpu")
    [there] = [line for line in plan_after.splitlines() if line.startswith("memory") and " on cuda:7 (" in line]
    assert "AdamW" in there
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


GPUS = (*ON_RAY, "student.device=cuda", "student.engine=vllm", "teacher.device=cuda", "teacher.engine=vllm")
NAMED = (*GPUS, "machine.name=box", "machine.gpus=8", "machine.gpu_memory_gb=80")
SPEED = (*NAMED, "machine.peak_tflops=1000", "machine.bandwidth_gb_s=1000")


@planning("machine.name", "crate", *GPUS, needs="a cluster with GPUs")
def test_the_plan_is_for_the_machine_that_is_named(plan_before: str, plan_after: str) -> None:
    assert "on machine" not in plan_before
    assert "on machine crate" in _line(plan_after, "fits")


@planning("machine.nodes", "2", *NAMED, "explorer.processes=9", needs="two machines")
def test_every_machine_brings_its_gpus(plan_before: str, plan_after: str) -> None:
    """Eleven do not fit on one of eight, and do on two."""
    assert "the run wants 11 GPUs" in plan_before
    assert "and machine box has 8" in plan_before
    assert "on machine box" in _line(plan_after, "fits")


@planning("machine.gpus", "2", *NAMED, needs="a cluster with GPUs")
def test_more_gpus_than_there_are_are_refused(plan_before: str, plan_after: str) -> None:
    assert "on machine box" in _line(plan_before, "fits")
    assert "the run wants 3 GPUs (learner 1, teacher 1, explorer 1), and machine box has 2" in plan_after


@planning("machine.gpu_memory_gb", "3", *NAMED, needs="a cluster with GPUs")
def test_a_role_that_is_too_large_for_its_gpu_is_refused(plan_before: str, plan_after: str) -> None:
    assert "of 80 GB for each learner" in plan_before
    for role in ("learner", "teacher", "explorer"):
        assert f"memory: each {role} needs about 6.0 GB, and its GPUs on machine box have 3.0 GB" in plan_after


@planning("machine.memory_gb", "0.001", "machine.name=box", needs="a smaller machine")
def test_main_memory_counts_where_there_is_no_gpu(plan_before: str, plan_after: str) -> None:
    assert "must be put right" not in plan_before
    assert "on cpu, and machine box has 1.0 MB" in plan_after


@planning("machine.peak_tflops", "2000", *SPEED, needs="a GPU")
def test_the_learner_is_as_fast_as_its_products(plan_before: str, plan_after: str) -> None:
    assert "1,000 TFLOP/s and 1,000 GB/s a GPU" in plan_before
    assert "2,000 TFLOP/s and 1,000 GB/s a GPU" in plan_after


@planning("machine.bandwidth_gb_s", "2000", *SPEED, needs="a GPU")
def test_explorers_are_as_fast_as_their_memory(plan_before: str, plan_after: str) -> None:
    assert "1,000 TFLOP/s and 1,000 GB/s a GPU" in plan_before
    assert "1,000 TFLOP/s and 2,000 GB/s a GPU" in plan_after


@planning("machine.efficiency", "0.1", *SPEED, needs="a GPU")
def test_the_share_that_is_reached_is_said(plan_before: str, plan_after: str) -> None:
    assert "40% of both reached" in plan_before
    assert "10% of both reached" in plan_after


@planning("machine.source", "the seller", *SPEED, needs="a GPU")
def test_the_source_of_the_numbers_is_said(plan_before: str, plan_after: str) -> None:
    assert "(no source is named)" in plan_before
    assert "(the seller)" in plan_after


@planning("student.tensor_parallel", "2", *GPUS, needs="several GPUs")
def test_an_explorer_has_the_gpus_of_its_engine(plan_before: str, plan_after: str) -> None:
    assert "Ray: 3 GPUs (learner 1, teacher 1, explorer 1)" in plan_before
    assert "Ray: 4 GPUs (learner 1, teacher 1, explorer 2)" in plan_after


@planning("teacher.tensor_parallel", "4", *GPUS, needs="several GPUs")
def test_a_teacher_has_the_gpus_of_its_engine(plan_before: str, plan_after: str) -> None:
    assert "Ray: 3 GPUs (learner 1, teacher 1, explorer 1)" in plan_before
    assert "Ray: 6 GPUs (learner 1, teacher 4, explorer 1)" in plan_after


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
