"""What a cluster asks of a configuration. Nothing here needs Ray; test_on_ray.py does."""

import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from divopd.cli import main
from divopd.config import Config, load_config
from divopd.errors import InputError
from divopd.models.model_files import read_model_facts
from divopd.plan.dry_run import make_plan
from divopd.plan.forecast import memory_by_actor
from small_runs import config

WITHOUT_RAY = "ray is not installed; run pip install -e '.[ray]' in the clone of divopd"


def test_gpus_follow_the_devices(models: Path) -> None:
    """One for every actor whose model is on cuda, unless the config says otherwise."""
    changes = {
        "student": {"device": "cuda", "engine": "transformers"},
        "gpus": {"evaluator": 0.5},
        "explorer": {"processes": 3},
    }
    apart = {"share": None}  # evaluations have an engine of their own
    settings = config(models, clock="live", cluster="ray", learner={"ranks": 2}, evaluation=apart, **changes)
    assert settings.gpu_plan == "5.5 GPUs (learner 1 × 2, teacher 0, evaluator 0.5, explorer 1 × 3)"
    again = {name: value for name, value in yaml.safe_load(settings.to_yaml()).items() if name != "versions"}
    assert Config.model_validate(again) == settings


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("cluster=ray", "cluster is ray, but the simulated clock runs in one process; set clock: live"),
        ("learner.ranks=2", "learner.ranks is 2, but the simulated clock runs in one process; set clock: live"),
        ("learner.ranks=0", "ranks is 0; expected more than 0"),
        ("teacher.count=2", "teacher.count is 2, but the simulated clock runs in one process; set clock: live"),
        ("gpus.teacher=1.5", "got 1.5; expected a share of one GPU, or a whole number of them"),
        ("clock=live cluster=ray teacher.device=cuda:1", "teacher.device is cuda:1; expected cuda: each actor or rank"),
        (
            "clock=live learner.ranks=2 student.engine=transformers student.device=cuda:0",
            "student.device is cuda:0; expected cuda: each actor",
        ),
        ("clock=live learner.ranks=2 learner.nodes=2", "learner.nodes is 2; expected 1 without cluster: ray"),
        (
            "clock=live learner.ranks=3 learner.nodes=2",
            "ranks is 3; expected as many on each of the 2 machines (nodes)",
        ),
        ("learner.address=first.machine", "address is 'first.machine'; expected an IPv4 address such as 10.0.0.1"),
        ("learner.port=70000", "port is 70000; expected 0 for a free one, or a number below 65536"),
        ("gpus.student=1", "unknown key 'gpus.student'"),
    ],
)
def test_what_does_not_fit_is_refused(override: str, message: str) -> None:
    """One line that says what was got and what to do."""
    default = Path(__file__).parents[2] / "configs" / "default" / "divopd.yaml"
    with pytest.raises(InputError) as refused:
        load_config(default, override.split())
    assert message in str(refused.value)


def test_a_dry_run_says_what_the_cluster_must_have(models: Path, tmp_path: Path) -> None:
    """Before anything is started: GPUs by role, and where the run's folder will be."""
    plan = make_plan(config(models, clock="live", cluster="ray", gpus={"explorer": 2}), out=tmp_path / "run")
    [line] = [line for line in plan.lines if line.startswith("cluster")]
    assert "Ray: 2 GPUs (learner 0, teacher 0, explorer 2)" in line
    needs = [line for line in plan.lines if line.startswith("memory")]
    assert [need.split("for each ")[1].split()[0] for need in needs] == ["learner", "teacher", "explorer"]
    assert plan.problems == ([] if find_spec("ray") else [WITHOUT_RAY])
    assert not (tmp_path / "run").exists()


def test_more_ranks_need_less_memory_each(models: Path) -> None:
    """Weights, gradient and AdamW are shared by the ranks; activations are each rank's own, or recomputed."""
    facts = replace(read_model_facts(models / "student"), layers=24)
    one, two = (
        memory_by_actor(config(models, clock="live", cluster="ray", learner={"ranks": n}), facts, [facts], longest=99)
        for n in (1, 2)
    )
    for purpose in ("student", "gradient", "AdamW"):
        assert two["learner"][purpose] == one["learner"][purpose] // 2
    assert two["learner"]["activations"] == one["learner"]["activations"]
    thrifty = config(models, clock="live", cluster="ray", learner={"activations": "recompute"})
    less = memory_by_actor(thrifty, facts, [facts], longest=99)["learner"]["activations"]
    assert 0 < less < one["learner"]["activations"] / 4
    assert two["teacher"] == one["teacher"] == {"teacher": 4 * facts.parameters}


def test_without_ray_the_error_names_the_extra(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the run's folder is made."""
    monkeypatch.setitem(sys.modules, "ray", None)
    (tmp_path / "config.yaml").write_text(config(models, clock="live", cluster="ray").to_yaml(), encoding="utf-8")
    assert main(["train", str(tmp_path / "config.yaml"), "--out", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err == f"divopd: {WITHOUT_RAY}\n"
    assert not (tmp_path / "run").exists()
