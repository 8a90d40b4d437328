"""Rollouts that break off, in whole runs: each costs itself and is journalled with its reason; too many end the run."""

import io
import signal
import subprocess
import sys
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="for want of the extra train")
pytest.importorskip("transformers", reason="for want of the extra train")

from divopd.cli import main  # noqa: E402
from divopd.config import Config  # noqa: E402
from divopd.environments import Observation  # noqa: E402
from divopd.errors import EnvironmentFailure  # noqa: E402
from divopd.explorer import Played, Start  # noqa: E402
from divopd.pipeline.begin import begin_run  # noqa: E402
from divopd.pipeline.broken import BROKE, BrokenRollouts, sentence_of  # noqa: E402
from divopd.records import UpdateRecord  # noqa: E402
from divopd.store import Store  # noqa: E402
from doubles.listener import Listener  # noqa: E402
from hostile_room import MixedRoom  # noqa: E402
from small_runs import config, outcome, train_small  # noqa: E402
from waiting import wait_for  # noqa: E402

TESTS = Path(__file__).parents[1]
ROOMS = TESTS / "hostile_room.py"
BOTH_CLOCKS = pytest.mark.parametrize("clock", ["simulated", pytest.param("live", marks=pytest.mark.slow)])


def room(models: Path, name: str, **changes: Any) -> Config:
    environment = {"name": f"{ROOMS}:{name}"} | changes.pop("environment", {})
    return config(models, environment=environment, **changes)


def broken(folder: Path) -> list[dict[str, Any]]:
    with Store.open_read_only(folder) as store:
        return [event for _, kind, event in store.events() if kind == BROKE]


@BOTH_CLOCKS
def test_a_run_survives_whatever_its_environment_does(models: Path, tmp_path: Path, clock: str) -> None:
    """Hangs, exits, crashes and floods cost their rollouts; the run ends well, and every reason is in the journal.

    In an evaluation the task that breaks off has failed. No turn of a broken rollout is stored, and none is left out.
    """
    changes: dict[str, Any] = {"clock": clock, "composer": {"batch_size": 4}}
    changes |= {"environment": {"timeout_s": 4}, "learner": {"updates": 8}}
    told = Listener()
    train_small(tmp_path / "run", room(models, "MixedRoom", **changes), observer=told)
    events = broken(tmp_path / "run")
    assert {event["task"] for event in events} <= set(MixedRoom.HARMFUL)
    reasons = {event["task"]: event["reason"] for event in events}
    assert len(reasons) >= 3
    for task, words in {
        "hang": "step did not return within 4 s",
        "leave": "MixedRoom.step called sys.exit(0)",
        "vanish": "exit code 5",
        "at once divide": "MixedRoom.reset raised ZeroDivisionError",
        "bytes": "text is b'You are here.'",
        "at once flood": "50,000,000 characters",
    }.items():
        assert words in reasons.get(task, words)
    with Store.open_read_only(tmp_path / "run") as store:
        assert store.updates == 8
        assert store.account().adds_up
        assert {turn.task for turn in store.turns()} & set(MixedRoom.HARMFUL) == set()
        assert {round(record.success_rate, 1) for record in store.evaluations().values()} == {66.7}
    assert len({event["rollout"] for event in events}) == len(events)
    assert any("a rollout broke off (r" in sentence for sentence in told.sentences)


@BOTH_CLOCKS
def test_a_run_in_which_all_break_off_ends_with_a_sentence(models: Path, tmp_path: Path, clock: str) -> None:
    """`sys.exit(0)` in every step: the exit code says that it went wrong, and one line says why and what to do."""
    begin_run(room(models, "LeavingRoom", clock=clock), tmp_path / "run")
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        code = main(["train", "--resume", str(tmp_path / "run")])
    assert code == 2
    last = said.getvalue().strip().splitlines()[-1]
    assert "4 of the last 4 rollouts broke off, the last one of task train/" in last
    assert "LeavingRoom.step called sys.exit(0); see that `divopd play" in last
    assert len(broken(tmp_path / "run")) >= 4


class Interrupted(Exception):
    """The tests' own end of a run, at once and without a checkpoint."""


def test_a_resume_does_not_play_a_broken_rollout_again(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its environment would not break off a second time: the batches would be others than those in the journal."""
    settings = room(models, "OnceRoom", learner={"updates": 6, "checkpoint_every": 4}, composer={"batch_size": 4})
    for name in ("whole", "stopped"):
        (tmp_path / f"{name}-notes").mkdir()
    monkeypatch.setenv("HOSTILE_NOTES", str(tmp_path / "whole-notes"))
    train_small(tmp_path / "whole", settings)
    monkeypatch.setenv("HOSTILE_NOTES", str(tmp_path / "stopped-notes"))

    def stop(record: UpdateRecord) -> None:
        if record.update == 2:
            raise Interrupted

    with pytest.raises(Interrupted):
        train_small(tmp_path / "stopped", settings, observer=Listener(stop))
    before = broken(tmp_path / "stopped")
    assert {event["task"] for event in before} == {"train/1", "train/4"}
    train_small(tmp_path / "stopped", settings)
    assert broken(tmp_path / "stopped") == before == broken(tmp_path / "whole")
    assert outcome(tmp_path / "stopped") == outcome(tmp_path / "whole")


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_workers_change_no_batch(models: Path, tmp_path: Path, workers: int) -> None:
    """On the virtual clock: the ledger of a run with its environments in worker processes is that of one without."""
    hunt = {"name": f"{TESTS / 'coin_hunt.py'}:CoinHunt", "horizon": 4}
    for name, number in (("here", 0), ("there", workers)):
        settings = config(models, method="divopd-r", environment=hunt | {"workers": number}, learner={"updates": 3})
        train_small(tmp_path / name, settings)
    assert outcome(tmp_path / "here") == outcome(tmp_path / "there")


@pytest.mark.slow
def test_a_wish_to_stop_is_heard_while_an_environment_hangs(models: Path, tmp_path: Path) -> None:
    """SIGTERM ends a run whose environment does not answer: it is saved, and no process is left."""
    run = tmp_path / "run"
    begin_run(config(models, environment={"name": f"{TESTS / 'fragile_room.py'}:StuckRoom", "timeout_s": 3600}), run)
    command = [sys.executable, "-m", "divopd", "train", "--resume", str(run), "--grace", "900"]
    with subprocess.Popen(command, cwd=run, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        wait_for(lambda: (run / "stuck").exists(), while_=process)
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        assert "ends within 900 s" in process.stderr.read()
        assert process.wait() == 143


# ── the rule ──────────────────────────────────────────────────────────────────────────────────────────────────────


def ended(*failures: str | None) -> list[Played]:
    return [Played(Start(n, f"task-{n}", 3), Observation(""), (), failure) for n, failure in enumerate(failures)]


def count_all(settings: Config, rollouts: list[Played]) -> None:
    rule = BrokenRollouts(settings)
    for played in rollouts:
        rule.count(played)


def counted(settings: Config, rollouts: list[Played]) -> int:
    """How many of them a run bears."""
    rule = BrokenRollouts(settings)
    for number, played in enumerate(rollouts):
        try:
            rule.count(played)
        except EnvironmentFailure:
            return number
    return len(rollouts)


def test_how_many_rollouts_may_break_off(models: Path) -> None:
    """Every other one; never more than half of the last 50, nor all of the first ones; fewer if the config says so."""
    usual = config(models, explorer={"rollouts_in_flight": 6})
    assert counted(usual, ended(*["fell in", None] * 100)) == 200
    assert counted(usual, ended(*[None] * 60, *["fell in"] * 50)) == 60 + 25
    assert counted(usual, ended(None, *["fell in"] * 50)) == 1 + 25
    assert counted(usual, ended(*["fell in"] * 50)) == 6 - 1
    with pytest.raises(
        EnvironmentFailure, match="6 of the last 6 rollouts broke off, the last one of task task-5: fell"
    ):
        count_all(usual, ended(*["fell in"] * 6))
    strict = config(models, environment={"max_broken": 2})
    assert counted(strict, ended(None, "a", "b", None, "c")) == 4
    assert counted(strict, ended(*["a", "b", *[None] * 48] * 5)) == 250


def test_ever_fewer_of_them_are_told() -> None:
    """Each count that is a power of two, so that a line is told of half of a thousand in ten."""
    event = {"rollout": "r000007", "task": "t", "reason": "it fell"}
    told = Counter(sentence_of(event, count=count) is not None for count in range(1, 1001))
    assert told[True] == 10
    assert sentence_of(event, count=1) == "a rollout broke off (r000007, task t): it fell"
    assert "4 rollouts broke off so far, the last one (r000007" in (sentence_of(event, count=4) or "")
