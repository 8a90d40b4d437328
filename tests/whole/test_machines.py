"""Machines as configuration: whose word counts, what fits where, and what the engines are then asked for."""

import sys
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="for want of the extra train")
pytest.importorskip("transformers", reason="for want of the extra train")

from divopd.cli import main
from divopd.config import Config, load_config
from divopd.config.files import machine_names
from divopd.errors import InputError
from divopd.models.model_files import read_model_facts
from divopd.models.published import PUBLISHED
from divopd.pipeline.models import load_actor, load_teacher
from divopd.pipeline.preflight import stages
from divopd.plan.fit import memory_share, misfits
from divopd.plan.forecast import Sample, engine_parts, largest_sample, memory_by_actor, memory_by_device
from divopd.plan.roofline import roofline, words

CONFIGS = Path(__file__).parents[2] / "configs"
SETTINGS = ("alfworld-1.7b", "alfworld-4b", "webshop-3b", "webshop-7b", "scienceworld-1.5b", "scienceworld-3b")
MACHINES = ("8xh100", "2x8xh100", "4x8xh100")


def paper(setting: str, *overrides: str, machine: str | None = None) -> Config:
    return load_config(CONFIGS / setting / "divopd.yaml", overrides, machine=machine)


def facts_of(config: Config) -> tuple[Any, Any]:
    return PUBLISHED[Path(config.student.model).name], PUBLISHED[Path(config.teacher.model).name]


def problems(config: Config) -> list[str]:
    student, teacher = facts_of(config)
    longest = config.prompts.max_prompt_tokens
    return misfits(
        config, *(by(config, student, [teacher], longest=longest) for by in (memory_by_actor, memory_by_device))
    )


# ── whose word counts ─────────────────────────────────────────────────────────────────────────────────────────────


def test_the_machine_lies_over_the_setting_and_below_overrides(tmp_path: Path) -> None:
    """Setting, machine, --set: a later one counts, and what nobody says later stays."""
    (tmp_path / "mine.yaml").write_text("learner: {ranks: 3, updates: 7}\nclock: live\n")
    (tmp_path / "box.yaml").write_text(
        "learner: {ranks: 5}\nexplorer: {processes: 6}\nmachine: {name: box, gpus: 12}\n"
    )
    config = load_config(tmp_path / "mine.yaml", ["explorer.processes=2"], machine=str(tmp_path / "box.yaml"))
    assert (config.learner.ranks, config.learner.updates, config.explorer.processes) == (5, 7, 2)
    assert config.machine.name == "box"


def test_a_file_may_name_its_machine(tmp_path: Path) -> None:
    """Its own words count more than that machine's; where another machine is asked for, this one is left out."""
    (tmp_path / "mine.yaml").write_text("machine: 8xh100\nlearner: {ranks: 4}\n")
    assert load_config(tmp_path / "mine.yaml").learner.ranks == 4
    assert load_config(tmp_path / "mine.yaml").teacher.count == 2
    other = load_config(tmp_path / "mine.yaml", machine="laptop")
    assert (other.machine.name, other.learner.ranks, other.clock) == ("laptop", 1, "simulated")


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_papers_settings_mean_eight_gpus(setting: str) -> None:
    """Without --machine they are those of 8xh100, to the last value; they say nothing that a machine says."""
    assert paper(setting) == paper(setting, machine="8xh100")
    assert paper(setting) != paper(setting, machine="2x8xh100")


def test_a_machine_that_nobody_knows_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """With the nearest one; one's own is a file; and a run that has begun keeps its machine."""
    assert machine_names() == ["2x8xh100", "4x8xh100", "8xh100", "laptop"]
    with pytest.raises(InputError, match=r"'8xh10'.*did you mean '8xh100'"):
        paper("webshop-3b", machine="8xh10")
    assert main(["train", "--resume", str(tmp_path), "--machine", "laptop"]) == 2
    assert "--machine cannot change a run that has begun" in capsys.readouterr().err
    assert main(["config", "--machine", "laptop"]) == 2
    assert main(["evaluate", "embedded:student", "--machine", "laptop"]) == 2


def test_a_student_on_cuda_names_its_engine() -> None:
    """Nobody generates with transformers on a GPU by accident; whoever says so may, and a stored run says so."""
    with pytest.raises(InputError, match=r"student.device is cuda and no student.engine is named; expected vllm"):
        load_config("default/divopd", ["student.device=cuda"])
    asked = load_config("default/divopd", ["student.device=cuda", "student.engine=transformers"])
    assert Config.model_validate({k: v for k, v in asked.resolved().items() if k != "versions"}) == asked
    assert load_config("default/divopd", ["teacher.device=cuda"]).teacher.engine == "transformers"  # it scores


# ── what fits ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("setting", "machine"), list(product(SETTINGS, MACHINES)))
def test_every_setting_of_the_paper_fits_on_every_machine_with_gpus(setting: str, machine: str) -> None:
    """Every role in the memory of its GPUs, and no more GPUs than there are; all of them are used."""
    config = paper(setting, machine=machine)
    assert problems(config) == []
    assert config.all_gpus == 8 * config.machine.nodes


def test_ranks_on_two_machines_have_the_memory_of_those_of_one() -> None:
    """Eight on each of two machines: each of them holds as much as one of eight on one machine."""
    wide = ["learner.nodes=2", "learner.ranks=16", "learner.address=10.0.0.1", "explorer.processes=8"]
    spread = paper("webshop-7b", *wide, machine="4x8xh100")
    assert problems(spread) == []
    facts = PUBLISHED["Qwen2.5-7B-Instruct"]
    one = paper("webshop-7b", machine="4x8xh100")
    needs = [memory_by_actor(config, facts, [facts], longest=9000)["learner"] for config in (spread, one)]
    assert needs[0] == needs[1]


@pytest.mark.parametrize("setting", SETTINGS)
def test_no_setting_of_the_paper_fits_on_a_laptop(setting: str) -> None:
    [sentence] = problems(paper(setting, machine="laptop"))
    assert sentence.startswith("memory: the run needs about ")
    assert "and machine laptop has 16 GB; name a machine with more (--machine)" in sentence


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["explorer.processes=5"], "GPUs: the run wants 9 GPUs (learner 1 × 2, teacher 1 × 2, explorer 1 × 5), and "
         "machine 8xh100 has 8"),
        (["learner.ranks=9", "machine.nodes=9"], "GPUs: the ranks of the learner are on one machine and want 9"),
        (["learner.nodes=2"], "machines: the ranks of the learner are to be on 2 (learner.nodes), and machine 8xh100"),
        (["learner.nodes=2", "machine.nodes=2"], "address: the ranks of the learner are on 2 machines, each "
         "of which has 127.0.0.1 for itself; set learner.address"),
        (["machine.gpu_memory_gb=20"], "memory: each teacher needs about 24 GB, and its GPUs on machine 8xh100 have"),
        (["gpus.teacher=0.25"], "memory: each teacher needs about 24 GB, and its GPUs on machine 8xh100 have 20 GB"),
        (["learner.activations=keep"], "memory: each learner needs about "),
        (["explorer.rollouts_in_flight=99"], "memory: each explorer needs about "),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told(overrides: list[str], sentence: str) -> None:
    """Too many GPUs, ranks that would be on two machines, and every role that is too large for its GPUs."""
    found = problems(paper("webshop-7b", *overrides))
    assert any(one.startswith(sentence) for one in found), found


def test_the_dry_run_says_yes_or_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 0 where it fits, with the speed and what it rests on; else 2 and one sentence."""
    command = ["train", str(CONFIGS / "webshop-7b" / "divopd.yaml"), "--out", str(tmp_path / "run"), "--dry-run"]
    assert main([*command, "--machine", "2x8xh100"]) == 0
    plan = capsys.readouterr().out
    assert "fits        on machine 2x8xh100" in plan
    assert "of 80 GB for each teacher" in plan
    assert "the bottleneck is the learner" in plan
    assert "989 TFLOP/s and 3,350 GB/s a GPU (NVIDIA's data sheet of the H100 SXM" in plan
    assert main([*command, "--machine", "laptop"]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert told.startswith("divopd: 1 thing must be put right before this can run: memory: the run needs about ")
    assert main([*command, "--machine", "8xh100", "--set", "explorer.processes=9"]) == 2
    assert "the run wants 13 GPUs" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "machine"), list(product(SETTINGS, (None, *MACHINES, "laptop"))))
def test_every_setting_is_planned_on_every_machine(setting: str, machine: str | None, tmp_path: Path) -> None:
    """By the command itself: GPUs are enough, a laptop is not."""
    command = ["train", str(CONFIGS / setting / "divopd.yaml"), "--out", str(tmp_path / "run"), "--dry-run"]
    assert main([*command, *(["--machine", machine] if machine else [])]) == (2 if machine == "laptop" else 0)


def test_training_refuses_what_the_dry_run_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is made; and a small setting fits on a laptop."""
    (tmp_path / "tiny.yaml").write_text("machine: {name: tiny, gpus: 0, memory_gb: 0.001}\n")
    out = ["--out", str(tmp_path / "run")]
    assert main(["train", "default/divopd", *out, "--machine", str(tmp_path / "tiny.yaml")]) == 2
    assert "and machine tiny has 1.0 MB" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert main(["train", "default/divopd", *out, "--machine", "laptop", "--dry-run"]) == 0


# ── how fast ──────────────────────────────────────────────────────────────────────────────────────────────────────

SAMPLE = Sample(
    turns=10, response_tokens=100, row_tokens=1000, whole_tokens=2000, longest_prompt=900, truncated_share=0
)


def test_the_roofline_follows_the_machine() -> None:
    """Twice the peak halves the learner's seconds, bandwidth helps explorers alone, a role's GPUs divide its time."""
    config = paper("webshop-7b")
    student, teacher = facts_of(config)

    def seconds(*overrides: str) -> dict[str, float]:
        found = roofline(paper("webshop-7b", *overrides), student, teacher, SAMPLE)
        assert found is not None
        return found.seconds

    usual, faster = seconds(), seconds("machine.peak_tflops=1978")
    assert faster["learner"] == pytest.approx(usual["learner"] / 2)
    assert faster["teachers"] == pytest.approx(usual["teachers"] / 2)
    wider = seconds("machine.bandwidth_gb_s=6700")
    assert wider["explorers"] < usual["explorers"]
    assert (wider["learner"], wider["teachers"]) == (usual["learner"], usual["teachers"])
    assert seconds("teacher.count=4")["teachers"] == pytest.approx(usual["teachers"] / 2)
    assert seconds("machine.efficiency=0.2")["learner"] == pytest.approx(usual["learner"] * 2)
    # 64 rows of 1,000 tokens: 8 products a weight and token, on two GPUs that reach 40 % of 989 TFLOP/s
    weights = 8 * 64 * 1000 * (student.parameters - student.embeddings)
    assert usual["learner"] == pytest.approx(weights / (2 * 0.4 * 989e12), rel=0.08)
    assert roofline(load_config("default/divopd"), student, teacher, SAMPLE) is None


def test_the_bottleneck_is_who_takes_longest() -> None:
    """And the words name it, the numbers and their source."""
    config = paper("webshop-7b", "explorer.processes=1", "explorer.rollouts_in_flight=1")
    student, teacher = facts_of(config)
    found = roofline(config, student, teacher, largest_sample(config))
    assert found is not None
    assert found.bottleneck == "explorers"
    assert found.update_s == max(found.seconds.values())
    speed, source = words(found, config)
    assert "the bottleneck is the explorers" in speed
    assert "NVIDIA's data sheet" in source
    assert "40% of both reached" in source


# ── what engines are asked for ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in that notes what it is started with."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "doubles" / "engines"))
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    module = import_module("vllm")
    yield module
    sys.modules.pop("vllm", None)


def test_vllm_asks_for_what_a_role_needs_and_no_more(vllm: Any) -> None:
    """The share of the GPU is the plan's, the cache is divided over the GPUs of an engine, the teacher has its own."""
    on_gpus = ["clock=live", "student.engine=vllm", "teacher.engine=vllm", "machine.gpu_memory_gb=1"]
    config = load_config("default/divopd", [*on_gpus, "student.tensor_parallel=2", "explorer.rollouts_in_flight=99"])
    facts = read_model_facts(Path(load_actor(config)._engine and vllm.STARTED[-1]["model"]))  # type: ignore[attr-defined]
    started = vllm.STARTED[-1]
    parts = engine_parts("student", [facts], config, width_bytes=4)
    assert started["gpu_memory_utilization"] == memory_share(config, "explorer", parts) > 0.05
    assert started["tensor_parallel_size"] == 2
    assert 0 <= 2 * started["kv_cache_memory_bytes"] - parts["caches"] < 2
    load_teacher(config, "teacher")
    assert vllm.STARTED[-1]["tensor_parallel_size"] == 1
    assert 0.05 < vllm.STARTED[-1]["gpu_memory_utilization"] < 0.9


def test_vllm_is_asked_for_the_scores_that_are_needed(vllm: Any) -> None:
    """From the first wanted token on, of the sequence's own tokens; a longer row that goes on is read once."""
    teacher = load_teacher(load_config("default/divopd", ["clock=live", "teacher.engine=vllm"]), "teacher")
    ids = list(range(10, 30))
    vllm.ASKED.clear()
    scores = teacher.score([ids[:8], ids], [[(6, 8)], [(15, 18), (19, 20)]])
    [wish] = vllm.ASKED
    assert wish.prompt_logprob_start == 5
    assert wish.prompt_logprob_token_ids[:, 0].tolist() == ids[6:]
    assert not hasattr(wish, "prompt_logprobs")
    assert [[part.tolist() for part in each] for each in scores] == [[[-1.0] * 2], [[-1.0] * 3, [-1.0]]]


def test_the_preflight_loads_one_engine_at_a_time() -> None:
    """vLLM's engines in a process each, models of torch and servers one after the other in one."""
    live = ["clock=live", "teacher.by_task={a*: embedded:student, b*: embedded:teacher, c*: 'http://127.0.0.1:9/v1'}"]
    assert stages(load_config("default/divopd", live)) == [["student", "teacher", "teacher of a*", "teacher of c*"]]
    both = stages(load_config("default/divopd", [*live, "student.engine=vllm", "teacher.engine=vllm"]))
    assert both == [["teacher of c*"], ["student"], ["teacher"], ["teacher of a*"]]
    one = stages(load_config("default/divopd", ["clock=live", "teacher.engine=vllm"]))
    assert one == [["student"], ["teacher"]]
