"""The simulated clock: the same config gives the same ledger, killed or not, with every method."""

import json
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from divopd import METHODS
from divopd.composers import Composer
from divopd.config import Config
from divopd.errors import InputError
from divopd.learner import Learner
from divopd.learner.torch_learner import TorchLearner
from divopd.pipeline.begin import begin_run
from divopd.pipeline.models import load_student
from divopd.pipeline.preflight import load_models
from divopd.pipeline.simulated import SimulatedWorld
from divopd.pipeline.slots import Slot, slot_from_json, slot_to_json
from divopd.pipeline.training import train
from divopd.pipeline.wishes import Stopped, Wishes
from divopd.pipeline.world import Waited
from divopd.records import (
    GAP_LIMIT,
    EvaluationRecord,
    Observers,
    UpdateRecord,
    decode_evaluation,
    decode_update,
)
from divopd.run.folder import RunFolder
from divopd.run.loggers import Loggers
from divopd.store import Store
from divopd.turns import Rollout, TeacherTurn, group_into_rollouts
from doubles.listener import Listener
from small_runs import config, outcome, train_small
from strategies import turn

SLOW = {"rollout_s": 4.0, "update_s": 0.7, "jitter": 0.3}  # a rollout takes longer than several updates


def test_the_same_config_gives_the_same_ledger(models: Path, tmp_path: Path) -> None:
    """Twice the same run: the same batches, to the bit; another seed gives others."""
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train_small(tmp_path / name, config(models, seed=seed))
    assert outcome(tmp_path / "a") == outcome(tmp_path / "b")
    assert outcome(tmp_path / "a")[0] != outcome(tmp_path / "c")[0]


def test_a_run_in_which_nothing_can_be_trained_ends(models: Path, tmp_path: Path) -> None:
    """Every prompt is cut, so every turn is invalid: after the limit the run says so instead of going on for ever."""
    settings = config(models, prompts={"max_prompt_tokens": 12}, learner={"max_wait_s": 3})
    with pytest.raises(
        InputError, match=r"none of the \d+ turns that arrived while .* raise prompts.max_prompt_tokens"
    ):
        train_small(tmp_path / "run", settings)


class CrowdedWorld(SimulatedWorld):
    """A rollout of many turns that cannot be trained arrived before anybody waited."""

    def wait(self, composer: Composer, *, update: int) -> Waited:
        if not self.rollouts_put:
            cut = turn("before", 0)
            self.store.put(Rollout("before", tuple(replace(cut, turn=n, prompt_truncated=True) for n in range(900))))
            self.rollouts_put, self.turns_put = 1, 900
        return super().wait(composer, update=update)


def test_what_arrived_before_a_wait_does_not_end_it(models: Path, tmp_path: Path) -> None:
    """Only what arrives while the learner waits tells that it waits in vain."""
    settings, run = config(models, prompts={"max_prompt_tokens": 12}, learner={"max_wait_s": 3}), tmp_path / "run"
    with pytest.raises(InputError, match="none of the") as told:
        train_in(CrowdedWorld, settings, run, Listener())
    with Store.open_read_only(run) as store:
        assert f"none of the {store.account().put - 900} turns that arrived" in str(told.value)


def train_in(kind: type[SimulatedWorld], settings: Config, folder: Path, listener: Listener) -> None:
    """Train in a world of this kind."""
    run = RunFolder(folder)
    begin_run(settings, run.path)
    loaded = load_models(settings)
    with Store.open(run.path) as store:
        world = kind(
            settings,
            store,
            run,
            student=loaded.student,
            actor=load_student(settings),
            teachers=loaded.teachers,
            observer=listener,
        )
        learner = TorchLearner(loaded.student, settings.learner)
        train(settings, learner=learner, ledger=store, world=world, run=run, observer=listener, wishes=Wishes())


class NotingWorld(SimulatedWorld):
    """Notes when versions were published, and of every turn when it began and with which version."""

    published: ClassVar[list[tuple[float, int]]] = []
    begun: ClassVar[list[tuple[float, int]]] = []

    def publish(self, version: int, learner: Learner) -> None:
        super().publish(version, learner)
        self.published.append((self.elapsed_s, version))

    def _play_turns(self, numbers: list[int]) -> None:
        self.begun.extend((self.slots[number].ends_at, self.acting_version) for number in numbers)
        super()._play_turns(numbers)


def test_a_turn_is_generated_with_the_weights_of_its_moment(models: Path, tmp_path: Path) -> None:
    """Those that were published last before it began in virtual time; in the very moment, either."""
    settings = config(models, explorer={"versions": "turn"}, costs=SLOW)
    train_in(NotingWorld, settings, tmp_path / "run", Listener())
    for moment, version in NotingWorld.begun:
        before = max((one for at, one in NotingWorld.published if at < moment), default=0)
        there = max(one for at, one in NotingWorld.published if at <= moment)
        assert version in (before, there)
    assert len({version for _, version in NotingWorld.begun}) > 3


class SpoilingWorld(SimulatedWorld):
    """Its explorers double all weights that they are given after the first."""

    def publish(self, version: int, learner: Learner) -> None:
        super().publish(version, learner)
        if version:
            with torch.no_grad():
                for parameter in self.actor.model.parameters():
                    parameter.mul_(2.0)


def test_an_explorer_with_other_weights_is_noticed(models: Path, tmp_path: Path) -> None:
    """The learner finds the explorer's log probabilities again, to rounding; a warning if its weights are others."""
    listener = Listener()
    train_in(SpoilingWorld, config(models), tmp_path / "run", listener)
    with Store.open_read_only(tmp_path / "run") as store:
        assert list(store.update_records().values()) == listener.updates
    first, *later = listener.updates
    assert first.learner is not None
    fresh = first.learner.logprob_gap
    assert fresh is not None
    assert fresh.version == 0 < fresh.tokens
    assert fresh.mean <= fresh.largest < 1e-5
    assert first.warning is None
    warned = next(record for record in later if record.warning)
    assert warned.learner is not None
    assert warned.learner.logprob_gap is not None
    gap = warned.learner.logprob_gap
    assert gap.mean > GAP_LIMIT
    assert f"differ from those at generation by {gap.mean:.3g} nats" in (warned.warning or "")


class Interrupted(Exception):
    """The tests' own end of a run, at once and without a checkpoint."""


def train_some(folder: Path, settings: Config, *, last: int, asked: bool) -> None:
    """One life of a run: it ends with the record of update `last`, asked to stop or broken off."""
    wishes = Wishes()

    def stop(record: UpdateRecord) -> None:
        if record.update == last and not asked:
            raise Interrupted
        wishes.to_stop = record.update == last

    with pytest.raises(Stopped if asked else Interrupted):
        train_small(folder, settings, observer=Listener(stop), wishes=wishes)


HELD_BACK = {"max_backlog": 10}  # hardly more than a batch
BY_TURN = {"versions": "turn", "sync_interval": 2}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, marks=pytest.mark.slow),  # what the others have, too
        pytest.param({"explorer": HELD_BACK}, marks=pytest.mark.slow),
        {"explorer": {"sync_interval": 2}, "audits": {"keep_last": 2}},
        pytest.param({"explorer": HELD_BACK, "learner": {"max_wait_s": 0.2}}, marks=pytest.mark.slow),
        pytest.param({"method": "divopd-r", "recovery": {"patience": 1, "takeover": 2}}, marks=pytest.mark.slow),
        {"explorer": BY_TURN, "costs": SLOW, "method": "divopd-r", "recovery": {"patience": 1, "takeover": 2}},
    ],
    ids=["plain", "admission control", "seldom sync", "short batches", "recovery", "versions by turn"],
)
def test_a_resumed_run_makes_the_same_batches(models: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    """Asked to stop between checkpoints, and broken off, also before the last one: it ends as if nothing had happened.

    Its records say the same, but for the seconds and the memory that the machine took.
    """
    settings = config(models, **changes)
    train_small(tmp_path / "whole", settings)
    for last, asked in ((0, True), (2, True), (3, False), (4, True), (5, False)):
        train_some(tmp_path / "stopped", settings, last=last, asked=asked)
    train_small(tmp_path / "stopped", settings)
    assert outcome(tmp_path / "whole") == outcome(tmp_path / "stopped")
    assert records(tmp_path / "whole") == records(tmp_path / "stopped")
    weights = kept_weights(tmp_path / "whole")
    assert weights == kept_weights(tmp_path / "stopped")
    assert list(weights) == ([0, 3, 4, 5, 6] if "audits" in changes else [0, 1, 2, 3, 4, 5, 6])
    kept = taught(tmp_path / "whole")
    assert kept == taught(tmp_path / "stopped")
    assert any(kept.values()) == (settings.method == "divopd-r")
    assert any(len(one) > 1 for one in versions(tmp_path / "whole")) == (settings.explorer.versions == "turn")


def versions(folder: Path) -> list[set[int]]:
    """The versions of the turns of each rollout."""
    found: dict[str, set[int]] = {}
    with Store.open_read_only(folder) as store:
        for stored in store.stored_turns():
            found.setdefault(stored.rollout, set()).add(stored.version)
    return list(found.values())


def taught(folder: Path) -> dict[str, tuple[TeacherTurn, ...]]:
    """The turns of the teacher that a run has kept, by rollout."""
    with Store.open_read_only(folder) as store:
        return {name: store.teacher_turns(name) for name in sorted({turn.rollout for turn in store.stored_turns()})}


def test_a_checkpoint_of_before_has_no_turns_of_the_teacher() -> None:
    """A rollout in flight that says nothing of them had none to keep."""
    [rollout] = group_into_rollouts([turn("r000001", 0)])
    helped = Slot(1.5, replace(rollout, teacher_turns=(TeacherTurn(1, (3, 4), "go", "seen"),)), 7)
    written = json.loads(json.dumps(slot_to_json(helped)))
    assert slot_from_json(written) == helped
    assert slot_from_json(written[:3]) == replace(helped, rollout=rollout)


def kept_weights(folder: Path) -> dict[int, bytes]:
    """The weights of every version that is in a run's folder."""
    run = RunFolder(folder)
    return {version: (run.weights_of(version) / "weights.safetensors").read_bytes() for version in run.versions()}


def test_admission_control_holds_explorers_back_but_not_the_learner(models: Path, tmp_path: Path) -> None:
    """Fewer rollouts are played, and yet no batch is short and no wait as long as the limit."""
    played = {}
    for name, changes in (("free", {}), ("held back", HELD_BACK)):
        slow = {"method": "vanilla", "composer": {"max_staleness": 9}, "costs": {"update_s": 5.0}}
        train_small(tmp_path / name, config(models, explorer=changes, **slow))
        found = records(tmp_path / name)
        assert {record.batch.rows for record in found} == {8}
        assert max(record.waited_s for record in found) < 10
        played[name] = found[-1].queue.rollouts_put
    assert played["held back"] < played["free"]


@pytest.mark.parametrize("kind", ["update", "evaluation"])
def test_what_a_life_could_not_tell_the_next_one_tells(models: Path, tmp_path: Path, kind: str) -> None:
    """Broken off between a record in the store and its line in metrics.jsonl: at last each line is there, once."""
    settings, run = config(models), RunFolder(tmp_path / "run")
    begin_run(settings, run.path)

    class Breaking(Listener):
        def updated(self, record: UpdateRecord) -> None:
            if kind == "update" and record.update == 1:
                raise Interrupted

        def evaluated(self, record: EvaluationRecord) -> None:
            if kind == "evaluation" and record.version == 3:
                raise Interrupted

    for first, end in ((Breaking(), pytest.raises(Interrupted)), (Listener(), nullcontext())):
        with Loggers(run.path, (), {}) as loggers, end:
            train_small(run.path, settings, observer=Observers(first, loggers))
    lines = [json.loads(line) for line in run.metrics.read_text(encoding="utf-8").splitlines()]
    with Store.open_read_only(run.path) as store:
        updates, evaluations = list(store.update_records().values()), list(store.evaluations().values())
    assert [decode_update(line) for line in lines if line["kind"] == "update"] == updates
    assert [decode_evaluation(line) for line in lines if line["kind"] == "evaluation"] == evaluations
    assert [record.update for record in updates] == list(range(6))
    assert [record.version for record in evaluations] == [0, 3, 6]


def records(folder: Path) -> list[UpdateRecord]:
    """What was recorded, and is the same whenever a run was stopped."""
    with Store.open_read_only(folder) as store:
        found = [(record, record.learner) for record in store.update_records().values()]
    return [
        replace(record, learner=replace(figures, seconds={}, processor_s=None, memory_bytes=None))
        for record, figures in found
        if figures
    ]


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_to_the_end(models: Path, tmp_path: Path, method: str) -> None:
    """Three updates, evaluations at 0, 2 and 3, and an account that adds up."""
    changes = {"learner": {"updates": 3}, "evaluation": {"every": 2}, "recovery": {"patience": 1, "takeover": 2}}
    train_small(tmp_path / "run", config(models, method=method, **changes))
    _, account, rates = outcome(tmp_path / "run")
    assert sorted(rates) == [0, 2, 3]
    assert account[1] >= 3  # trained


CHILD = """
import sys
from pathlib import Path
from divopd.config import load_config
from divopd.pipeline.begin import go_on
from divopd.records import Observers
folder = Path(sys.argv[1])
go_on(load_config(folder / "config.yaml"), folder, observer=Observers())
"""


@pytest.mark.crash
@pytest.mark.slow
def test_a_run_killed_ten_times_ends_with_the_same_ledger(models: Path, tmp_path: Path) -> None:
    """SIGKILL at ten moments, then to the end: the ledger of a run that was never killed."""
    settings = config(models, learner={"updates": 12, "checkpoint_every": 3})
    train_small(tmp_path / "whole", settings)
    begin_run(settings, tmp_path / "killed")
    command = [sys.executable, "-c", CHILD, str(tmp_path / "killed")]
    for kill in range(10):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(4 + 0.37 * kill)
        process.send_signal(signal.SIGKILL)
        process.wait()
    subprocess.run(command, check=True, capture_output=True)
    assert outcome(tmp_path / "whole")[:2] == outcome(tmp_path / "killed")[:2]
