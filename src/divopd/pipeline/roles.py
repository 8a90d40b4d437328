"""The roles of the live clock. They meet only in the store and in the published weights.

    python -m divopd.pipeline.roles RUN ROLE

Here each is a process, and store and weights are in the run's folder; on_ray.py makes the same functions actors. Any
of them may be killed at any moment: what it had acknowledged is in the store, and a new one goes on from there. SIGTERM
stops a role after the turn, the rollout or the update that it is at.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from divopd.config import load_config
from divopd.curricula import Probe, is_probe
from divopd.errors import AlignmentError, CheckpointError, EnvironmentFailure, InputError, TeacherAwayError
from divopd.explorer import Start, rows_of
from divopd.models.transformers_policy import TransformersPolicy
from divopd.models.vllm_policy import VllmPolicy
from divopd.pipeline.evaluator import Evaluator
from divopd.pipeline.exploration import Exploration, probe_of
from divopd.pipeline.live import REFUSED, kind_of
from divopd.pipeline.live_learner import LiveLearner
from divopd.pipeline.models import check_models, load_actor, load_teachers
from divopd.pipeline.role import POLL_S, Interruptible, Role, WeightsFolder, is_evaluated
from divopd.pipeline.wishes import Stopped
from divopd.prompts import Codec
from divopd.store import Store
from divopd.teacher import AWAY_LIMIT_S, RETRY_S, score_rollouts
from divopd.turns import Rollout

SCORED_AT_ONCE = 16  # rollouts
HELD_AT_MOST = 256  # rollouts of absent teachers that are read over, to find those of others


def explore(role: Role) -> None:
    """Play rollouts with the newest weights, as many at once as the config says; each is stored when it ends.

    A rollout keeps the weights that it began with. So when newer ones are there, no rollout is begun until those in
    flight have ended; as long as there are none, the next one begins wherever one has ended.
    """
    student, teachers = load_actor(role.config), None
    if role.config.method == "divopd-r":
        teachers = load_teachers(role.config).waited_for(lambda error: role.check())
    exploration = Exploration(role.config, Codec(student.tokenizer))
    version = -1
    while True:
        version = _follow(role, student, version)
        while not _has_room(role):
            role.wait()
        starts = _starts(role, exploration, version)
        playing = exploration.play_each(
            starts, version=version, student=student, teachers=teachers, heartbeat=role.check
        )
        for played in playing:
            rows = rows_of(played, name=f"r{played.start.number:06d}", version=version)
            if rows is not None:
                generated = sum(len(turn.response.ids) for turn in played.turns)
                role.store.put_unscored(rows, generated_tokens=generated)


def _starts(role: Role, exploration: Exploration, version: int) -> Iterator[Start]:
    """What to play with these weights: an end comes with newer ones, or when too many turns wait."""
    probes = [
        Probe(event["version"], event["success"], tuple(event["disagreements"]))
        for kind, event in role.store.events()
        if kind == "probe"
    ]
    while role.newest_version() == version and _has_room(role):
        [number] = role.store.reserve_rollouts(1)
        yield exploration.start(number, version=version, probes=probes)


def _has_room(role: Role) -> bool:
    """Admission control: off, or fewer turns wait than it allows."""
    bound = role.config.explorer.max_backlog
    return bound is None or role.store.backlog() < bound


def _follow(role: Role, student: TransformersPolicy | VllmPolicy, version: int) -> int:
    """Load the newest weights if they are newer; waits for the first ones."""
    while True:
        newest = role.newest_version()
        if newest is not None and newest <= version:
            return version
        try:
            if newest is not None:
                role.weights.load(newest, student)
                return newest
        except CheckpointError:  # replaced by a newer version while it was read
            pass
        role.wait()


def teach(role: Role) -> None:
    """Score what explorers have stored, newest first. While a teacher cannot be reached, its rollouts wait."""
    teachers = load_teachers(role.config)
    held, away_since = 0, None
    while True:
        waiting = role.store.unscored(SCORED_AT_ONCE + min(held, HELD_AT_MOST))
        held, away = 0, None
        for teacher, share in teachers.shares(waiting):
            try:
                _queue(role, score_rollouts(teacher, share))
            except TeacherAwayError as error:
                held, away = held + len(share), error
        if away is None:
            away_since = None
        elif away_since is None:
            away_since = time.monotonic()
            role.store.record_event("teacher_away", {"error": str(away)})
        elif time.monotonic() - away_since > AWAY_LIMIT_S:
            raise away
        if held == len(waiting):
            role.wait(RETRY_S if away else POLL_S)


def _queue(role: Role, scored: list[Rollout]) -> None:
    for rollout in scored:
        role.check()
        role.store.put(rollout)
        if role.config.method == "turnopd" and is_probe(rollout.version):
            role.store.record_event("probe", asdict(probe_of(rollout)))


def evaluate(role: Role) -> None:
    """Evaluate every version that is due, as soon as it is published; ends after the last one."""
    os.nice(15)  # where cores are few, learner and explorers come first
    student = load_actor(role.config)
    evaluator = Evaluator(role.config, Codec(student.tokenizer))
    last = role.config.learner.updates
    while True:
        done = role.store.figures("evaluation")
        due = [v for v in role.weights.versions() if is_evaluated(role.config, v) and v not in done]
        if not due:
            if last in done:
                return
            role.wait()
            continue
        role.weights.load(due[0], student)
        figures = evaluator.evaluate(Interruptible(student, role.check))
        role.store.record_figures("evaluation", due[0], figures | _costs_at(role.store, due[0]))


def _costs_at(store: Store, version: int) -> dict[str, object]:
    """What had been spent when a version was made: it belongs to its evaluation."""
    before = store.figures("update").get(version - 1, {})
    return {name: before[name] for name in ("spent", "wall_s", "learner_s") if name in before}


ROLES: dict[str, Callable[[Role], object]] = {
    "preflight": lambda role: check_models(role.config, load_actor(role.config), load_teachers(role.config)),
    "explorer": explore,
    "teacher": teach,
    "evaluator": evaluate,
    "learner": lambda role: LiveLearner(role).run(),
}


def perform(role: Role, kind: str) -> str | None:
    """Do a role to its end. The answer is why it cannot go on: if it were started again, it would end the same."""
    try:
        ROLES[kind](role)
    except Stopped:
        pass
    except (InputError, AlignmentError, EnvironmentFailure, TeacherAwayError) as error:
        return str(error)
    return None


class Ears:
    """Hear SIGTERM, and notice when the process that started the roles is gone: nobody else would end them."""

    def __init__(self) -> None:
        self.told, self.parent = False, os.getppid()
        signal.signal(signal.SIGTERM, self._hear)
        for number in (signal.SIGINT, signal.SIGUSR1):  # they reach the parent too, which tells us
            signal.signal(number, signal.SIG_IGN)

    def _hear(self, _number: int, _frame: FrameType | None) -> None:
        self.told = True

    def __call__(self) -> bool:
        return self.told or os.getppid() != self.parent


def main(run: str, name: str) -> int:
    ears, folder = Ears(), Path(run)
    kind, number = kind_of(name)
    with Store.open(folder) as store:
        role = Role(load_config(folder / "config.yaml"), store, WeightsFolder(folder), ears, folder=folder, rank=number)
        refusal = perform(role, kind)
    if refusal is not None:
        print(refusal, file=sys.stderr)
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
