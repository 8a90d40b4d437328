"""The dry run: what it says, what it refuses, and that it loads no weight."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="for want of the extra train")
pytest.importorskip("transformers", reason="for want of the extra train")

from divopd.cli import main
from divopd.config import Config, load_config
from divopd.errors import InputError, MissingExtraError
from divopd.models.model_files import read_model_facts
from divopd.models.tiny import TinySize, build_model, build_tokenizer, save_model
from divopd.plan.dry_run import Plan, check_start, make_plan
from divopd.plan.forecast import CharacterCodec, Sample, forecast, memory_by_device, sample_rollouts
from divopd.plan.machine import in_bytes
from divopd.store import Store

CONFIGS = Path(__file__).parents[2] / "configs"
SMALL = TinySize(hidden=16, layers=2, heads=2, key_value_heads=1, feed_forward=32, context=2048)
WORDS = ["go to fridge 1 You see nothing open close take from the a look examine desk"] * 2


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of a few thousand parameters."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = build_tokenizer(WORDS)
    save_model(folder, build_model(tokenizer, seed=0, size=SMALL), tokenizer)
    return folder


def config_for(student: Path | str, teacher: Path | str, /, **sections: Any) -> Config:
    given = {
        "student": {"model": str(student)},
        "teacher": {"model": str(teacher)},
        "prompts": {"answer": "terse", "actions": "unlisted", "max_prompt_tokens": 1024},
        "explorer": {"max_response_tokens": 24},
    }
    return Config.model_validate(given | sections)


def only_problem(plan: Plan) -> str:
    assert len(plan.problems) == 1, plan.problems
    return plan.problems[0]


def test_a_run_that_can_start_has_a_plan_without_problems(model: Path, tmp_path: Path) -> None:
    """The plan says what will run, on how many tasks, tokens, virtual seconds and bytes; nothing is written."""
    plan = make_plan(config_for(model, model), out=tmp_path / "run")
    plan.refuse_problems()
    titles = [line.split()[0] for line in plan.lines]
    models = ["student", "teacher", "note"]  # nobody has looked yet whether this teacher can take over
    assert titles == ["run", "tasks", *models, "updates", "prompts", "tokens", "queue", "time", "memory", "disk"]
    assert not (tmp_path / "run").exists()


def test_the_plan_says_what_is_kept_for_audits(model: Path, tmp_path: Path) -> None:
    """The weights before the last eight updates and those of the next; as many as there are in a short run; or none."""
    bytes_each = 4 * read_model_facts(model).parameters
    for keep_last, updates, versions in ((8, 60, 9), (8, 5, 5), (2, 60, 3)):
        changes = {"audits": {"keep_last": keep_last}, "learner": {"updates": updates}}
        [disk] = [line for line in make_plan(config_for(model, model, **changes), out=tmp_path).lines if "disk" in line]
        assert f"weights for audits {in_bytes(versions * bytes_each)}" in disk
    plan = make_plan(config_for(model, model, audits={"keep_last": 0}), out=tmp_path)
    assert "for audits" not in "\n".join(plan.lines)


def test_no_weight_is_read(model: Path, tmp_path: Path) -> None:
    """A model whose tensors are a hole in the file behind the header plans like a whole one."""
    hollow = shutil.copytree(model, tmp_path / "hollow")
    whole = (hollow / "model.safetensors").read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    (hollow / "model.safetensors").write_bytes(whole[:header])
    os.truncate(hollow / "model.safetensors", len(whole))
    assert make_plan(config_for(hollow, model), out=tmp_path).problems == []
    assert read_model_facts(hollow) == read_model_facts(model)


def test_parameters_are_counted_exactly(model: Path) -> None:
    """The figure from the file headers is the model's own (its tied head is stored once)."""
    tokenizer = build_tokenizer(WORDS)
    own = sum(p.numel() for p in build_model(tokenizer, seed=0, size=SMALL).parameters())
    facts = read_model_facts(model)
    assert facts.parameters == own
    assert facts.context_length == SMALL.context
    assert facts.cache_bytes(10, width_bytes=4) == 10 * 2 * 2 * 1 * (16 // 2) * 4


def test_everything_that_is_missing_is_listed(tmp_path: Path) -> None:
    """All problems come at once, one line each, in one InputError."""
    plan = make_plan(config_for("nowhere", "neither"), out=tmp_path)
    with pytest.raises(InputError, match="2 things must be put right") as caught:
        plan.refuse_problems()
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert "student.model: nowhere: no model there" in lines[1]
    assert "teacher.model: neither: no model there" in lines[2]
    assert any(line.startswith("tokens") for line in plan.lines), "the estimate does not need the models"


def test_a_plan_for_another_machine_says_what_it_needs(model: Path, tmp_path: Path) -> None:
    """Without its GPU a run is planned for elsewhere; a model that nobody knows is a problem all the same."""
    there = {"device": "cuda:63", "engine": "transformers"}
    plan = make_plan(config_for(model, model, student={"model": str(model)} | there), out=tmp_path)
    plan.refuse_problems()
    assert any(line.startswith("needs") and "cuda:63" in line for line in plan.lines)
    unknown = make_plan(config_for(model, model, student={"model": "nowhere"} | there), out=tmp_path)
    with pytest.raises(InputError, match=r"student\.model: nowhere: no model there"):
        unknown.refuse_problems()


SETTINGS = ("alfworld-1.7b", "alfworld-4b", "webshop-3b", "webshop-7b", "scienceworld-1.5b", "scienceworld-3b")
METHODS = ("vanilla", "tcod-f2b", "turnopd", "divopd-focus", "divopd-base", "divopd", "divopd-r", "divopd-adaptive")


def check_the_papers(setting: str, method: str, out: Path) -> None:
    plan = make_plan(load_config(CONFIGS / setting / f"{method}.yaml"), out=out)
    if not plan.elsewhere:
        pytest.skip("is about machines without a GPU")
    plan.refuse_problems()
    for title, what in (("memory", "activations"), ("disk", "checkpoints"), ("student", "billion"), ("needs", "cuda")):
        assert any(line.startswith(title) and what in line for line in plan.lines), (title, plan.lines)


@pytest.mark.parametrize("setting", [one for one in SETTINGS if not one.startswith("scienceworld")])  # they start a JVM
def test_the_papers_settings_are_planned_without_a_gpu(setting: str, tmp_path: Path) -> None:
    """With neither GPU nor weights here, the dry run says what hardware, memory and disk the run needs."""
    check_the_papers(setting, "divopd", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_every_file_of_the_papers_settings_is_planned(setting: str, method: str, tmp_path: Path) -> None:
    check_the_papers(setting, method, tmp_path)


def test_another_vocabulary_is_refused(model: Path, tmp_path: Path) -> None:
    """The message says which tokens differ."""
    tokenizer = build_tokenizer([*WORDS, "a zebra a zebra"])
    save_model(tmp_path / "other", build_model(tokenizer, seed=0, size=SMALL), tokenizer)
    problem = only_problem(make_plan(config_for(model, tmp_path / "other"), out=tmp_path))
    assert problem.startswith("teacher.model: ")
    assert "different vocabularies (276 and 277 tokens" in problem
    teacher = {"model": str(model), "by_task": {"pick_*": str(tmp_path / "other")}}
    problem = only_problem(make_plan(config_for(model, model, teacher=teacher), out=tmp_path))
    assert problem.startswith("teacher.by_task pick_*: student and teacher have different vocabularies")


def test_prompts_that_do_not_fit_are_refused(model: Path, tmp_path: Path) -> None:
    """Prompt and response together must fit into the context of both models."""
    prompts = {"answer": "terse", "actions": "unlisted", "max_prompt_tokens": 2040}
    problems = make_plan(config_for(model, model, prompts=prompts), out=tmp_path).problems
    assert len(problems) == 2
    assert all("2048" in problem and "max_prompt_tokens" in problem for problem in problems)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"environment": {"name": "alfworld-small", "train_split": "trian"}}, "did you mean 'train'"),
        ({"environment": {"name": "alfworld-small", "settings": {"games": "smalll"}}}, "smalll"),
        ({"environment": {"name": "alfworld-small", "settings": {"gamez": "small"}}}, "did you mean 'games'"),
    ],
)
def test_tasks_that_are_not_there_are_refused(
    model: Path, tmp_path: Path, sections: dict[str, Any], words: str
) -> None:
    """A split, or a setting of the environment."""
    assert words in only_problem(make_plan(config_for(model, model, **sections), out=tmp_path))


def test_a_missing_environment_names_the_command(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the official games the plan says what gets them."""
    monkeypatch.delenv("DIVOPD_DATA", raising=False)
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    problem = only_problem(make_plan(config_for(model, model, environment={"name": "alfworld"}), out=tmp_path))
    assert "official games" in problem
    assert "alfworld-download" in problem


def test_too_little_memory_is_a_problem(model: Path, tmp_path: Path) -> None:
    """A cache for a million rollouts fits nowhere."""
    config = config_for(model, model, explorer={"rollouts_in_flight": 10**9, "max_response_tokens": 24})
    assert any(problem.startswith("memory: ") for problem in make_plan(config, out=tmp_path).problems)


def test_other_teachers_are_looked_for(model: Path, tmp_path: Path) -> None:
    """A folder for some tasks must be there; a server is asked only when the run starts."""
    by_task = {"pick_*": str(model), "look_*": "nowhere", "heat_*": "http://127.0.0.1:9/v1"}
    teacher = {"model": str(model), "by_task": by_task}
    assert "teacher.by_task look_*" in only_problem(make_plan(config_for(model, model, teacher=teacher), out=tmp_path))
    served = {"model": "served", "url": "http://127.0.0.1:9/v1"}
    assert make_plan(config_for(model, model, teacher=served), out=tmp_path).problems == []
    nowhere = {"model": "served", "url": "127.0.0.1:9"}
    problem = only_problem(make_plan(config_for(model, model, teacher=nowhere), out=tmp_path))
    assert problem.startswith("teacher.url: '127.0.0.1:9' is no address of a server")


def test_every_teacher_needs_memory(model: Path) -> None:
    """Each folder once in every teacher process; explorers hold none, also where students are helped."""
    facts = read_model_facts(model)
    one = memory_by_device(config_for(model, model), facts, [facts], longest=9)["cpu"]["teacher"]
    assert one == 4 * facts.parameters
    for count in (1, 3):
        teacher = {"model": str(model), "count": count}
        helped = config_for(model, model, clock="live", method="divopd-r", teacher=teacher)
        assert memory_by_device(helped, facts, [facts, facts], longest=9)["cpu"]["teacher"] == count * 2 * one
    assert "teacher" not in memory_by_device(config_for(model, model), facts, [], longest=9)["cpu"]


def test_generation_on_a_cpu_keeps_the_weights_twice(model: Path) -> None:
    """A copy for each explorer and for the evaluation, in oneDNN's order; of float32 only."""
    facts = read_model_facts(model)
    live = config_for(model, model, clock="live", explorer={"processes": 2, "rollouts_in_flight": 1})
    device = memory_by_device(live, facts, [], longest=9)["cpu"]
    assert device["weights in oneDNN's order"] == device["its copies"]
    adapted = {"model": str(model), "dtype": "bfloat16", "lora": {}}
    other = memory_by_device(config_for(model, model, student=adapted), facts, [], longest=9)["cpu"]
    assert "weights in oneDNN's order" not in other


def test_a_damaged_model_folder_is_refused(model: Path, tmp_path: Path) -> None:
    """Garbage where a header or a configuration should be is one line, however large it claims to be."""
    broken = shutil.copytree(model, tmp_path / "broken")
    (broken / "model.safetensors").write_bytes((2**60).to_bytes(8, "little") + b"{}")
    with pytest.raises(InputError, match="is no safetensors file"):
        read_model_facts(broken)
    shutil.copy(model / "model.safetensors", broken)
    (broken / "config.json").write_text(json.dumps({"model_type": "bert"}), encoding="utf-8")
    with pytest.raises(InputError, match="not the configuration of a decoder"):
        read_model_facts(broken)


SAMPLE = Sample(turns=10, response_tokens=5, row_tokens=100, whole_tokens=200, longest_prompt=195, truncated_share=0.0)
COSTS = {
    "rollout_s": 1.0, "environment_step_s": 0.1, "read_token_s": 0.005, "scored_token_s": 0.005,
    "generated_token_s": 0.02, "trained_token_s": 0.001, "update_s": 0.6,
}  # fmt: skip


def costed(**explorer: Any) -> Config:
    return Config.model_validate(
        {"costs": COSTS, "composer": {"batch_size": 64}, "learner": {"updates": 10}, "explorer": explorer}
    )


def test_the_forecast_follows_the_costs() -> None:
    """A rollout takes 1 + 10·(0.1 + 5·0.02) + 200·0.01 = 5 s; an update 0.6 + 6400·0.001 = 7 s."""
    busy = forecast(costed(rollouts_in_flight=32), SAMPLE)
    assert busy.load == pytest.approx(32 / 5 * 10 * 7 / 64)
    assert busy.seconds == pytest.approx(70)
    assert busy.rollouts == pytest.approx(70 * 32 / 5)
    assert busy.trained_tokens == pytest.approx(10 * 64 * 100)
    assert busy.scored_tokens == pytest.approx(busy.load * busy.trained_tokens)


def test_a_learner_that_waits_takes_longer() -> None:
    """With one rollout in flight 2 turns arrive a second: the learner waits 32 s for 64."""
    slow = forecast(costed(rollouts_in_flight=1), SAMPLE)
    assert slow.load < 1
    assert slow.seconds == pytest.approx(320)
    assert slow.turns == pytest.approx(640)


def test_admission_control_holds_the_load_at_one() -> None:
    """With a backlog limit no more is made than is trained."""
    assert forecast(costed(rollouts_in_flight=32, max_backlog=64), SAMPLE).turns == pytest.approx(640)


def test_the_sample_sees_what_does_not_fit() -> None:
    """A random player's prompts grow to the limit and beyond: the share that is cut is told."""
    config = load_config(CONFIGS / "default" / "divopd.yaml", ["prompts.max_prompt_tokens=300"])
    from divopd.environments import tasks

    sample = sample_rollouts(config, CharacterCodec(), tasks("alfworld-small", "train")[:2])
    assert 300 - 75 < sample.longest_prompt <= 300
    assert 0 < sample.truncated_share < 1
    assert 0 < sample.turns <= config.environment.horizon


# ── `train --dry-run` and `train` ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("place", ["mine.yaml", "./mine.yaml", "../deep/mine.yaml"])
def test_a_run_is_named_after_the_folder_of_its_config(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the path that was given names no folder."""
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "mine.yaml").write_text(f"extends: {CONFIGS / 'default' / 'divopd.yaml'}\n")
    monkeypatch.chdir(tmp_path / "deep")
    assert main(["train", place, "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith(f"into {Path('runs', 'deep-divopd-seed0')}")


ROOM = CONFIGS.parent / "examples" / "counting_room"


def room(model: Path, *changes: str) -> list[str]:
    """The example of the repository with a random model, one update long."""
    settings = [f"environment.name={ROOM / 'counting_room.py'}:CountingRoom", f"student.model={model}"]
    settings += [
        f"teacher.model={model}",
        "learner.updates=1",
        "composer.batch_size=4",
        "environment.workers=0",
        *changes,
    ]
    return ["train", str(ROOM / "train.yaml"), *(part for one in settings for part in ("--set", one))]


def test_fewer_tasks_than_asked_for_are_all_evaluated(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The example has 30 test tasks where 128 are usual: the dry run and the run both go on, and both say so."""
    said = "evaluation.tasks is 128, but the split test of"
    assert main([*room(model), "--dry-run"]) == 0
    plan = capsys.readouterr().out
    assert "evaluation on 30 of test" in plan
    assert said in plan
    assert main([*room(model), "--out", str(tmp_path / "run")]) == 0
    assert [line for line in capsys.readouterr().err.splitlines() if said in line] != []
    with Store.open_read_only(tmp_path / "run") as store:
        assert [record.tasks for record in store.evaluations().values()] == [30, 30]
    assert main([*room(model, "evaluation.tasks=30"), "--dry-run"]) == 0
    assert "but the split test" not in capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], out: Path, arguments: list[str]) -> tuple[str, str]:
    """What the dry run and the run say when both refuse to begin; neither has made the run's folder."""
    told = []
    for options in (["--dry-run"], []):
        assert main([*arguments, "--out", str(out), *options]) == 2
        told.append(capsys.readouterr().err)
    assert not out.exists()
    return told[0], told[1]


def test_a_logger_that_is_not_installed_is_refused(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the dry run as by the run, in the same words, with the extra that brings it."""
    for package in ("wandb", "mlflow"):
        monkeypatch.setitem(sys.modules, package, None)  # as if it were not there
    plan, run = refused(capsys, tmp_path / "run", room(model, "loggers=[wandb, mlflow]"))
    assert str(MissingExtraError("the logger wandb", "wandb")) in plan
    assert str(MissingExtraError("the logger mlflow", "mlflow")) in plan
    assert str(MissingExtraError("the logger wandb", "wandb")) in run


@pytest.mark.parametrize("key", ["student.model", "teacher.model", "teacher.by_task.pick_*"])
def test_a_model_that_is_not_there_is_refused(
    model: Path, tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the run's folder is made: the same command works once the model is there."""
    monkeypatch.chdir(tmp_path)
    for told in refused(capsys, tmp_path / "run", room(model, f"{key}=Qwen/Qwen3-1.7B")):
        assert "Qwen/Qwen3-1.7B: no model there" in told
        assert "hf download Qwen/Qwen3-1.7B" in told


@pytest.mark.parametrize("empty", ["train", "test"])
def test_a_split_without_tasks_is_refused(
    model: Path, tmp_path: Path, empty: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "half.py").write_text(
        "from divopd.environments import Observation\n"
        "class Half:\n"
        "    @staticmethod\n"
        f"    def tasks(split): return [] if split == {empty!r} else ['one']\n"
        "    def reset(self, task): return Observation('Go.', ['go'])\n"
        "    def step(self, action): return Observation('Over.', done=True)\n"
    )
    arguments = room(model, f"environment.name={tmp_path / 'half.py'}:Half")
    for told in refused(capsys, tmp_path / "run", arguments):
        assert f"the split {empty} of {tmp_path / 'half.py'}:Half has no tasks" in told


def test_a_gpu_that_is_not_here_is_refused(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The dry run plans for another machine; the run tells it in a line and makes nothing, nor does an evaluation."""
    arguments = [*room(model, "teacher.device=cuda:63"), "--out", str(tmp_path / "run")]
    assert main([*arguments, "--dry-run"]) == 0
    assert "so this is a plan for another machine" in capsys.readouterr().out
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert told.startswith("divopd: teacher.device: device cuda:63: torch sees ")
    assert told.count("\n") == 1
    assert not (tmp_path / "run").exists()
    settings = [
        *("--set", "student.device=cuda:63", "--set", "student.engine=transformers"),
        "--set",
        f"environment.name={ROOM / 'counting_room.py'}:CountingRoom",
    ]
    assert main(["evaluate", str(model), "--config", str(ROOM / "train.yaml"), *settings]) == 2
    assert "device cuda:63: torch sees " in capsys.readouterr().err


# ── every file in configs/ and examples/ ──────────────────────────────────────────────────────────────────────────

FILES = sorted([*CONFIGS.glob("*/*.yaml"), *CONFIGS.parent.glob("examples/**/*.yaml")])
SHIPPED = [file for file in FILES if file.stem != "setting" and file.parent.name != "machines"]
QUICK = [file for file in SHIPPED if file.stem in ("divopd", "train") and not file.parent.name.startswith("science")]


def name_of(file: Path) -> str:
    return f"{file.parent.name}/{file.stem}"


def check_agreement(file: Path, out: Path) -> bool:
    """What the dry run sees and what the run asks before it begins are the same; whether the dry run may exit with 0.

    A plan for this machine has no problem where the run begins, and names what the run refuses. A plan for another
    machine has none, and says what is missing here, where the run refuses.
    """
    config = load_config(file)
    plan = make_plan(config, out=out)
    refused = _refusal(config)
    if plan.elsewhere:
        assert plan.problems == []
        assert refused.startswith(("student.device: ", "teacher.device: ")) or config.cluster
        assert any(line.startswith("needs") and "cuda" in line for line in plan.lines)
    else:
        assert bool(refused) == bool(plan.problems), (refused, plan.problems)
        assert refused.partition(":")[0] in "\n".join(plan.problems)
    return plan.problems == []


def _refusal(config: Config) -> str:
    """The line with which `divopd train` refuses to begin; empty if it begins."""
    try:
        check_start(config)
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("file", QUICK, ids=name_of)
def test_run_and_dry_run_agree(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file of every setting but ScienceWorld's, which start a JVM, and every example."""
    monkeypatch.chdir(CONFIGS.parent)
    check_agreement(file, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("file", SHIPPED, ids=name_of)
def test_run_and_dry_run_agree_on_every_file(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also as a user sees it: only the examples, whose models their README makes first, have problems here."""
    monkeypatch.chdir(CONFIGS.parent)
    assert check_agreement(file, tmp_path / "run") == ("examples" not in file.parts)
    code = main(["train", str(file), "--dry-run", "--out", str(tmp_path / "run")])
    assert code == (2 if "examples" in file.parts else 0)
    import torch

    if not torch.cuda.is_available():
        elsewhere = "so this is a plan for another machine" in capsys.readouterr().out
        assert elsewhere == file.parent.name.endswith("b")  # the paper's settings: alfworld-4b and the like
