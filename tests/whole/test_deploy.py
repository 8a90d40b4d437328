"""The launch kit, as far as it can be tried without a cluster: it parses, its commands exist, requeueing works."""

import os
import re
import shlex
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from divopd.cli import main
from divopd.config.files import config_names, machine_names
from waiting import wait_for

DEPLOY = Path(__file__).parents[2] / "deploy"
STANDS_IN = {  # for what a cluster has: each writes down how it was called
    "ray": 'echo "ray $*" >> calls; [ "$1" = get-auth-token ] || exit 0; echo t',
    "srun": 'echo "srun $*" >> calls; exec sleep 60',
    "scontrol": 'echo "scontrol $*" >> calls',
    "divopd": 'echo "divopd $*" >> calls; mkdir -p run; touch run/config.yaml\n'
    'trap "echo USR1 >> calls" USR1; trap "echo TERM >> calls; exit 143" TERM\n'
    'echo ready >> calls; [ -e quick ] && exit ${CODE:-0}; while true; do sleep 0.05; done',
}  # fmt: skip


def commands(text: str) -> list[list[str]]:
    """Every `divopd train …` of a text, in words, up to what ends it in a shell or a comment."""
    joined = re.sub(r"\\\n#?", " ", text)
    return [shlex.split(found) for found in re.findall(r"divopd (train [\w./ -]+)", joined)]


@pytest.mark.parametrize("file", ["slurm.sbatch", "kuberay.yaml", "Dockerfile"])
def test_it_says_that_it_was_never_run_and_names_what_exists(file: str) -> None:
    """Settings, machines and options that the texts name are those of today."""
    text = (DEPLOY / file).read_text(encoding="utf-8")
    assert re.search(r"[Nn]ever (run|applied|built or run) (on|to) a cluster by us", text.replace("\n# ", " "))
    for name in re.findall(r"\b[a-z]+-[\d.]+b/[a-z-]+\b", text):
        assert name in config_names()
    for name in re.findall(r"\b(?:\dx)?8xh100\b", text):
        assert name in machine_names()
    for words in commands(text):
        assert {"--resume", "--out"} & set(words), words


def test_the_manifest_is_a_ray_job_with_gpus_and_a_folder_of_its_own() -> None:
    """It parses; the head has the run's folder, all nodes have GPUs and the token, the job resumes what has begun."""
    claim, job = yaml.safe_load_all((DEPLOY / "kuberay.yaml").read_text(encoding="utf-8"))
    assert (claim["kind"], job["apiVersion"], job["kind"]) == ("PersistentVolumeClaim", "ray.io/v1", "RayJob")
    assert "--resume /work/runs/first" in job["spec"]["entrypoint"]
    cluster = job["spec"]["rayClusterSpec"]
    [group] = cluster["workerGroupSpecs"]
    nodes: list[Any] = [part["template"]["spec"] for part in (cluster["headGroupSpec"], group)]
    for node in nodes:
        [container] = node["containers"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == 8
        assert {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN"} == {variable["name"] for variable in container["env"]}
        volumes = {volume["name"] for volume in node["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    assert "runs" in {volume["name"] for volume in nodes[0]["volumes"]}
    assert "runs" not in {volume["name"] for volume in nodes[1]["volumes"]}


def test_the_image_is_made_of_known_instructions() -> None:
    """One base image with a version, no root at the end, and signals reach divopd."""
    text = re.sub(r"\\\n", " ", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"))
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    assert {word for word, _ in lines} == {"FROM", "ENV", "RUN", "COPY", "USER", "WORKDIR", "ENTRYPOINT", "CMD"}
    said: dict[str, str] = dict(lines)  # type: ignore[arg-type]
    assert re.fullmatch(r"[\w/]+:[\w.-]+", said["FROM"])
    assert not said["FROM"].endswith(":latest")
    assert said["USER"] != "root"
    assert said["ENTRYPOINT"] == '["tini", "--", "divopd"]'


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with stand-ins for what a cluster has."""
    (tmp_path / "bin").mkdir()
    for name, body in STANDS_IN.items():
        (tmp_path / "bin" / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def job(place: Path, *, nodes: int = 1, **more: str) -> "subprocess.Popen[str]":
    if shutil.which("bash") is None:
        pytest.skip("for want of bash")
    slurm = {"SLURM_JOB_ID": "42", "SLURM_JOB_NUM_NODES": str(nodes), "HOME": str(place)}
    environment = os.environ | slurm | more | {"PATH": f"{place / 'bin'}:{os.environ['PATH']}"}
    script = ["bash", str(DEPLOY / "slurm.sbatch"), "alfworld-1.7b/divopd", "8xh100", "run", "--set", "seed=1"]
    return subprocess.Popen(script, cwd=place, env=environment, text=True)


def calls(place: Path) -> list[str]:
    file = place / "calls"
    return file.read_text().splitlines() if file.exists() else []


def test_a_job_whose_time_is_over_goes_back_into_the_queue_and_resumes(place: Path) -> None:
    """SIGUSR1: a checkpoint, an end by SIGTERM, `scontrol requeue`; the next time the run is resumed."""
    running = job(place)
    wait_for(lambda: "ready" in calls(place), while_=running)
    running.send_signal(signal.SIGUSR1)
    assert running.wait(timeout=60) == 0
    heard = calls(place)
    assert "divopd train alfworld-1.7b/divopd --machine 8xh100 --out run --grace 480 --set seed=1" in heard
    assert heard.index("USR1") < heard.index("TERM") < heard.index("scontrol requeue 42")
    (place / "quick").touch()
    assert job(place).wait(timeout=60) == 0
    assert "divopd train --resume run --grace 480" in calls(place)


def test_the_job_ends_as_the_run_ends_on_all_its_nodes(place: Path) -> None:
    """An error stays an error, nothing is requeued, and the other nodes join Ray and are let go."""
    (place / "quick").touch()
    assert job(place, nodes=2, CODE="3").wait(timeout=60) == 3
    heard = calls(place)
    assert any(line.startswith("srun --nodes=1 --ntasks=1 --exclude=") for line in heard)
    assert not any(line.startswith("scontrol") for line in heard)
    assert heard[-1] == "ray stop"


def test_the_options_of_the_scripts_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    told = capsys.readouterr().out
    for option in ("--machine", "--resume", "--grace", "--out", "--set"):
        assert option in told
