"""What a run leaves on disk: for its owner only, no more than was asked for, and nothing where there is no room."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from divopd.errors import InputError
from divopd.pipeline.begin import begin_run
from divopd.pipeline.kept_weights import superseded, surplus
from divopd.pipeline.processes import KEPT_LOG_BYTES, MAX_LOG_BYTES, cap_log
from divopd.plan import machine
from divopd.plan.dry_run import check_disk
from divopd.run.lock import RunLock
from small_runs import config, train_small


def test_a_run_is_its_owners_alone(models: Path, tmp_path: Path) -> None:
    """The folder and all that is in it, whatever the umask of the user is; afterwards the umask is as before."""
    before = os.umask(0)
    try:
        train_small(tmp_path / "deep" / "run", config(models, learner={"updates": 2}, evaluation={"tasks": 1}))
        assert os.umask(0) == 0
    finally:
        os.umask(before)
    run = tmp_path / "deep" / "run"
    found = [run, *run.rglob("*")]
    assert len(found) > 8
    assert {path: oct(stat.S_IMODE(path.stat().st_mode)) for path in found if path.stat().st_mode & 0o077} == {}


def test_the_umask_comes_back_with_the_last_run(tmp_path: Path) -> None:
    """Two runs of one process, let go in the order in which they were taken."""
    before = os.umask(0o022)
    try:
        (tmp_path / "a").mkdir()
        first, second = RunLock(tmp_path), RunLock(tmp_path / "a")
        first.__enter__()
        second.__enter__()
        first.__exit__()
        assert os.umask(0o077) == 0o077
        second.__exit__()
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)


@pytest.mark.parametrize(
    ("keep", "evaluated", "gone"),
    [
        (2, [0, 2, 4, 6], [0, 2]),
        (1, [0, 2, 4, 6], [0, 2, 4]),
        (1, [0, 2], [0]),  # 4 and 6 are still to be evaluated
        (9, [0, 2, 4, 6], []),
    ],
)
def test_weights_of_old_evaluated_versions_go(keep: int, evaluated: list[int], gone: list[int], tmp_path: Path) -> None:
    """The newest stay, and those that an evaluation, an explorer or an audit still needs."""
    plan = {
        "evaluation": {"every": 2},
        "audits": {"keep_last": 0},
        "weights": {"keep": keep},
        "learner": {"updates": 9},
    }
    settings = config(tmp_path, **plan)
    known = [0, 2, 4, 6, 7]
    assert surplus(settings, known, evaluated, version=7, for_explorers=0) == gone
    assert superseded(settings, known, version=8, for_explorers=0) == [7]
    assert surplus(settings, known, evaluated, version=7, for_explorers=5) == []
    audited = config(tmp_path, **plan | {"audits": {"keep_last": 5}})
    assert surplus(audited, known, evaluated, version=7, for_explorers=0) == [one for one in gone if one < 2]


def test_a_log_is_cut_while_a_role_writes_on(tmp_path: Path) -> None:
    """Its end is kept beside it, and what comes next is at the beginning of the file, not behind a hole."""
    log = tmp_path / "explorer-0.log"
    script = """
import sys

for line in sys.stdin:
    print(line, end="", flush=True)
    print(".", end="", file=sys.stderr, flush=True)
"""
    with (
        log.open("ab") as file,
        subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=file, stderr=subprocess.PIPE, text=True
        ) as role,
    ):
        assert role.stdin is not None
        assert role.stderr is not None
        role.stdin.write("x" * MAX_LOG_BYTES + "the end\n")
        role.stdin.flush()
        role.stderr.read(1)
        cap_log(log)
        role.stdin.write("after\n")
        role.stdin.flush()
        role.stderr.read(1)
    assert log.read_text() == "after\n"
    old = (tmp_path / "explorer-0.log.old").read_text()
    assert len(old) == KEPT_LOG_BYTES
    assert old.endswith("the end\n")
    cap_log(log)
    cap_log(tmp_path / "none.log")
    assert log.read_text() == "after\n"


def test_a_run_that_does_not_fit_is_not_begun(models: Path, tmp_path: Path) -> None:
    """Checkpoints and weights alone are more than is free: one line, and no folder."""
    settings = config(models, learner={"updates": 10**9}, evaluation={"every": 1})
    with pytest.raises(InputError, match=r"disk: the run writes about .*set weights.keep"):
        check_disk(settings, tmp_path / "run")
    check_disk(settings.model_copy(update={"weights": settings.weights.model_copy(update={"keep": 2})}), tmp_path)
    assert machine.free_disk(tmp_path) > 0


def test_train_asks_for_room_before_it_makes_anything(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command and by the library, without --dry-run."""
    from divopd import api
    from divopd.cli import main

    settings = config(models, learner={"updates": 10**9}, evaluation={"every": 1})
    (tmp_path / "large.yaml").write_text(settings.to_yaml(), encoding="utf-8")
    assert main(["train", str(tmp_path / "large.yaml"), "--out", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.startswith("divopd: disk: ")
    with pytest.raises(InputError, match="disk:"):
        api.train(settings, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    begin_run(settings, tmp_path / "run")  # so that it would be noticed
