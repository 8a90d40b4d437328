"""Evaluations on an explorer's engine: as good as on an engine of their own, and in nobody's way."""

from pathlib import Path

import pytest

from divopd.config import Config
from divopd.evaluation import exam_of
from divopd.explorer import Played
from divopd.models.transformers_policy import TransformersPolicy
from divopd.pipeline.access import Access, WeightsFolder
from divopd.pipeline.begin import begin_run
from divopd.pipeline.exploring import explore
from divopd.pipeline.models import load_student
from divopd.pipeline.rollouts import TrainingRollouts
from divopd.pipeline.vocabularies import Vocabularies
from divopd.records import EvaluationRecord
from divopd.run.checkpoints import publish_weights, read_weights
from divopd.run.folder import RunFolder
from divopd.store import Store
from divopd.turns import Rollout
from recorded_run import ROOMS, RecordedRun
from recording_rooms import RUN
from small_runs import config

UPDATES, EACH = 3, 3  # versions after the first, and rollouts of each


class Growing(WeightsFolder):
    """A learner that makes the next version when there are EACH rollouts more and the last version is evaluated."""

    def __init__(self, run: RunFolder, store: Store) -> None:
        super().__init__(run)
        self.store, self.offered, self.evaluated = store, list[int](), list[list[int]]()

    def versions(self) -> list[int]:
        known, offered = sorted(self.store.evaluations()), len(self.store.unscored(1000))
        if len(self.offered) < UPDATES and offered >= EACH * (len(self.offered) + 1) and len(known) > len(self.offered):
            self.offered.append(offered)
            self.evaluated.append(known)
        return list(range(len(self.offered) + 1))


def publish_all(run: RunFolder, student: TransformersPolicy) -> None:
    """Versions 0 to UPDATES, each a little louder than the one before."""
    for version in range(UPDATES + 1):
        weights = {name: (1 + 0.1 * version) * value for name, value in student.weights().items()}
        publish_weights(run.weights, version, weights, keep=UPDATES + 1)


@pytest.mark.parametrize("versions", ["rollout", "turn"])
def test_exams_beside_training_rollouts_are_as_if_alone(
    models: Path, tmp_path: Path, versions: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every version is evaluated before the next one is there; what is said and recorded is as with engines apart."""
    settings = config(
        models,
        clock="live",
        environment={"name": f"{ROOMS}:Room", "horizon": 4, "workers": 0},
        learner={"updates": UPDATES},
        explorer={"versions": versions, "rollouts_in_flight": 4},
        evaluation={"every": 1, "tasks": 5, "share": 0.5},
    )
    run = RunFolder(tmp_path / "run")
    begin_run(settings, run.path)
    student = load_student(settings)
    publish_all(run, student)
    monkeypatch.setenv(RUN, str(run.path))
    with Store.open(run.path) as store:
        weights = Growing(run, store)
        explore(Access(settings, store, weights, is_over=lambda: False))
        records, offered = store.evaluations(), store.unscored(1000)
    assert weights.evaluated == [list(range(version + 1)) for version in range(UPDATES)]
    monkeypatch.setenv(RUN, str(tmp_path / "apart"))
    for version in range(UPDATES + 1):
        student.fill_weights(read_weights(run.weights_of(version)), source="a test")
        assert records[version] == examined_apart(settings, student, version=version)
    here, there = (RecordedRun(folder, 0).asked("test") for folder in (run.path, tmp_path / "apart"))
    assert [(one.task, one.actions) for one in here] == [(one.task, one.actions) for one in there]
    assert len({str(one.actions) for one in here}) == 5 * (UPDATES + 1)
    if versions == "rollout":
        for rollout in offered[:: len(offered) // 4]:
            student.fill_weights(read_weights(run.weights_of(rollout.version)), source="a test")
            assert said_in(rollout) == said_alone(settings, student, rollout)


def examined_apart(settings: Config, student: TransformersPolicy, *, version: int) -> EvaluationRecord:
    exam = exam_of(settings, Vocabularies(settings).student_codec())
    return exam.record(exam.play(student), version=version)


def said_in(rollout: Rollout) -> list[list[int]]:
    return [list(turn.response_ids) for turn in rollout.turns]


def said_alone(settings: Config, student: TransformersPolicy, rollout: Rollout) -> list[list[int]]:
    """The same rollout, played by itself."""
    rollouts = TrainingRollouts(settings, Vocabularies(settings).student_codec())
    start = rollouts.start(int(rollout.id[1:]), version=rollout.version)
    playing = rollouts.play_each([start], version=rollout.version, student=student, teachers=None)
    [played] = list[Played](playing)
    return [turn.response.ids for turn in played.turns]
