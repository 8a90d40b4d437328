"""The processes of the live clock. They meet only in the run's folder: its store and its published weights.

    python -m divopd.pipeline.roles RUN ROLE

Any of them may be killed at any moment: what it had acknowledged is in the store, and a new one goes on from there.
SIGTERM stops a role after the turn, the rollout or the update that it is at.
"""

import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from shutil import rmtree
from types import FrameType

import torch

from divopd.checkpoints import latest_checkpoint, load_checkpoint, load_weights, publish_weights, save_checkpoint
from divopd.config import Config, load_config
from divopd.curricula import Probe, is_probe
from divopd.durable_folder import numbered_folders, numbered_path
from divopd.errors import CheckpointError, TeacherAwayError
from divopd.explorer import Played, rows_of
from divopd.journal import JournaledBatch
from divopd.learner import Learner
from divopd.metrics import batch_figures
from divopd.models.transformers_policy import TransformersPolicy
from divopd.pipeline.evaluator import Evaluator
from divopd.pipeline.exploration import Exploration, probe_of
from divopd.pipeline.models import load_student, load_teacher
from divopd.prompts import Codec
from divopd.store import Store
from divopd.teacher import score_rollouts

POLL_S = 0.05
SCORED_AT_ONCE = 16  # rollouts
KEPT_VERSIONS = 3  # besides those that are evaluated: an explorer may still be reading one


class Stopped(Exception):
    """SIGTERM came; raised where a role can stop without losing anything."""


class Role:
    """What all roles have: the configuration, a connection to the store, and ears for SIGTERM."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config: Config = load_config(folder / "config.yaml")
        torch.set_num_threads(self.config.threads)
        self.store = Store.open(folder)
        self.stopping = False
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which tells us

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self.stopping = True

    def check(self) -> None:
        if self.stopping:
            raise Stopped

    def wait(self) -> None:
        self.check()
        time.sleep(POLL_S)

    @property
    def weights(self) -> Path:
        return self.folder / "weights"

    def newest_version(self) -> int | None:
        return max((int(folder.name) for folder in numbered_folders(self.weights)), default=None)


def explore(role: Role) -> None:
    """Play rollouts with the newest weights, as many at once as the config says; each is stored when it ends."""
    student, teacher = load_student(role.config), None
    if role.config.method == "divopd-r":
        teacher = load_teacher(role.config)
    exploration = Exploration(role.config, Codec(student.tokenizer))
    version = -1
    while True:
        version = _follow(role, student, version)
        bound = role.config.explorer.max_backlog
        while bound is not None and role.store.backlog() >= bound:
            role.wait()
        probes = [
            Probe(event["version"], event["success"], tuple(event["disagreements"]))
            for kind, event in role.store.events()
            if kind == "probe"
        ]
        numbers = role.store.reserve_rollouts(role.config.explorer.rollouts_in_flight)
        starts = [exploration.start(number, version=version, probes=probes) for number in numbers]

        def finished(played: Played, version: int = version) -> None:
            rows = rows_of(played, name=f"r{played.start.number:06d}", version=version)
            if rows is not None:
                generated = sum(len(turn.response.ids) for turn in played.turns)
                role.store.put_unscored(rows, generated_tokens=generated)

        exploration.play(
            starts, version=version, student=student, teacher=teacher, finished=finished, heartbeat=role.check
        )


def _follow(role: Role, student: TransformersPolicy, version: int) -> int:
    """Load the newest weights if they are newer; waits for the first ones."""
    while True:
        newest = role.newest_version()
        if newest is not None and newest <= version:
            return version
        try:
            if newest is not None:
                load_weights(numbered_path(role.weights, newest), student.model)
                return newest
        except CheckpointError:  # replaced by a newer version while it was read
            pass
        role.wait()


def teach(role: Role) -> None:
    """Score what explorers have stored, oldest first. While the teacher cannot be reached, rollouts wait."""
    teacher = load_teacher(role.config)
    while True:
        waiting = role.store.unscored(SCORED_AT_ONCE)
        if not waiting:
            role.wait()
            continue
        try:
            scored = score_rollouts(teacher, waiting)
        except TeacherAwayError as error:
            role.store.record_event("teacher_away", {"error": str(error)})
            time.sleep(1.0)
            role.check()
            continue
        for rollout in scored:
            role.check()
            role.store.put(rollout)
            if role.config.method == "turnopd" and is_probe(rollout.version):
                role.store.record_event("probe", asdict(probe_of(rollout)))


def evaluate(role: Role) -> None:
    """Evaluate every version that is due, as soon as it is published; ends after the last one."""
    student = load_student(role.config)
    evaluator = Evaluator(role.config, Codec(student.tokenizer))
    last = role.config.learner.updates
    while True:
        done = role.store.figures("evaluation")
        due = [v for v in _versions(role) if is_evaluated(role.config, v) and v not in done]
        if not due:
            if last in done:
                return
            role.wait()
            continue
        load_weights(numbered_path(role.weights, due[0]), student.model)
        figures = evaluator.evaluate(student)
        role.store.record_figures("evaluation", due[0], figures | _costs_at(role.store, due[0]))


def _versions(role: Role) -> list[int]:
    return [int(folder.name) for folder in numbered_folders(role.weights)]


def is_evaluated(config: Config, version: int) -> bool:
    """Whether a version is one of those that the config wants evaluated."""
    return version % config.evaluation.every == 0 or version == config.learner.updates


def _costs_at(store: Store, version: int) -> dict[str, object]:
    """What had been spent when a version was made: it belongs to its evaluation."""
    before = store.figures("update").get(version - 1, {})
    return {name: before[name] for name in ("spent", "wall_s", "learner_s") if name in before}


class LiveLearner:
    """Composes, trains and publishes. Updates past the newest checkpoint are served again from the journal."""

    def __init__(self, role: Role) -> None:
        self.role, self.config, self.store = role, role.config, role.store
        self.learner = Learner(load_student(role.config), role.config.learner)
        self.composer = role.config.make_composer()
        self.epoch = self.store.begin_learner()
        self.version = 0
        self.learner_s = self.waited_s = 0.0
        self.trained_tokens = self.computed_tokens = 0
        self.began = time.monotonic()
        newest = latest_checkpoint(role.folder / "checkpoints")
        if newest is not None:
            state = load_checkpoint(newest, model=self.learner.policy.model, optimizer=self.learner.optimizer).state
            self.version, self.trained_tokens = state["version"], state["trained_tokens"]
            self.computed_tokens, self.learner_s = state["computed_tokens"], state["learner_s"]
            self.began -= state["wall_s"]

    def run(self) -> None:
        self._publish()
        while self.version < self.config.learner.updates:
            try:
                self._update(self._next_batch())
            except Stopped:
                self._checkpoint()
                raise
        self._checkpoint()

    def _next_batch(self) -> JournaledBatch:
        self.waited_s = 0.0
        if self.version < self.store.updates:
            return self.store.batch(self.version)
        start = time.monotonic()
        while (rows := self._rows()) < self.config.composer.batch_size:
            if rows and time.monotonic() - start > self.config.learner.max_wait_s:
                break
            self.role.wait()
        self.waited_s = time.monotonic() - start
        return self.store.compose(self.composer, update=self.version, epoch=self.epoch)

    def _rows(self) -> int:
        pool = self.store.pool(self.composer, update=self.version)
        return sum(not self.composer.gated or candidate.reason is None for candidate in pool)

    def _update(self, batch: JournaledBatch) -> None:
        start = time.monotonic()
        figures = self.learner.update(batch.turns, batch.entry.weights)
        self.version += 1
        self.learner_s += time.monotonic() - start
        self.trained_tokens += figures.tokens
        self.computed_tokens += figures.computed_tokens
        if self.version % self.config.explorer.sync_interval == 0 or is_evaluated(self.config, self.version):
            self._publish()
        self._record(batch, asdict(figures))
        if self.version % self.config.learner.checkpoint_every == 0:
            self._checkpoint()
        self.role.check()

    def _publish(self) -> None:
        if not numbered_path(self.role.weights, self.version).exists():
            publish_weights(self.role.weights, self.version, self.learner.policy.model)
        for folder in numbered_folders(self.role.weights)[:-KEPT_VERSIONS]:
            if not is_evaluated(self.config, int(folder.name)):
                rmtree(folder)

    def _record(self, batch: JournaledBatch, learner: dict[str, object]) -> None:
        entry = batch.entry
        spent = self.store.spent()
        figures = {
            **asdict(batch_figures(batch.candidates, update=entry.update)),
            "learner": learner,
            "spent": {
                "generated_tokens": spent.generated_tokens,
                "scored_tokens": spent.scored_tokens,
                "trained_tokens": self.trained_tokens,
                "computed_tokens": self.computed_tokens,
            },
            "wall_s": time.monotonic() - self.began,
            "learner_s": self.learner_s,
            "waited_s": self.waited_s,
            "rollouts_put": spent.rollouts,
            "turns_put": spent.turns,
            "queued": self.store.backlog(),
            "stale": len(entry.stale),
            "aged_out": len(entry.aged_out),
            "invalid": len(entry.invalid),
        }
        self.store.record_figures("update", entry.update, figures)

    def _checkpoint(self) -> None:
        if self.version == 0:
            return
        state = {
            "version": self.version,
            "trained_tokens": self.trained_tokens,
            "computed_tokens": self.computed_tokens,
            "learner_s": self.learner_s,
            "wall_s": time.monotonic() - self.began,
        }
        model, optimizer = self.learner.policy.model, self.learner.optimizer
        folder = self.role.folder / "checkpoints"
        save_checkpoint(folder, update=self.version - 1, model=model, optimizer=optimizer, state=state)
        self.store.acknowledge(self.version - 1, epoch=self.epoch)


ROLES: dict[str, Callable[[Role], None]] = {
    "explorer": explore,
    "teacher": teach,
    "evaluator": evaluate,
    "learner": lambda role: LiveLearner(role).run(),
}


def main(run: str, name: str) -> int:
    role = Role(Path(run))
    try:
        ROLES[name](role)
    except Stopped:
        return 0
    finally:
        role.store.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
