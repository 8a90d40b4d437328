"""The roles of the live clock. They meet only in the store and in the published weights.

    python -m divopd.pipeline.roles RUN ROLE PARENT

Here each is a process, and store and weights are in the run's folder; on_ray.py makes the same functions actors. Any
of them may be killed at any moment: what it had acknowledged is in the store, and a new one goes on from there. SIGTERM
stops a role after the turn, the rollout or the update that it is at.
"""

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType

from divopd.errors import AlignmentError, EnvironmentFailure, InputError, TeacherAwayError
from divopd.evaluation import exam_of, is_evaluated
from divopd.first_evaluation import evaluate_version
from divopd.learner.meeting import read_place
from divopd.models.engine import Interruptible
from divopd.pipeline.access import Access, WeightsFolder
from divopd.pipeline.exploring import explore
from divopd.pipeline.heartbeats import beat
from divopd.pipeline.live import learn
from divopd.pipeline.models import load_actor
from divopd.pipeline.preflight import check_stage
from divopd.pipeline.processes import REFUSED, kind_of
from divopd.pipeline.teaching import teach
from divopd.pipeline.vocabularies import Vocabularies
from divopd.pipeline.wishes import Stopped
from divopd.printable import said
from divopd.run.doing import Doing, write_now
from divopd.run.folder import RunFolder
from divopd.run.stored_config import load_run_config
from divopd.store import Store


def evaluate(access: Access) -> None:
    """The evaluator of a run whose evaluations have an engine of their own (evaluation.share: null).

    Evaluates every version that is due, as soon as it is published; ends after the last one.
    """
    os.nice(15)  # where cores are few, learner and explorers come first
    student = load_actor(access.config)
    vocabularies = Vocabularies(access.config)
    exam, forbidden = exam_of(access.config, vocabularies.student_codec()), vocabularies.forbidden
    last, noted = access.config.learner.updates, False

    def recalled(sentence: str) -> None:
        access.store.note("evaluation_recalled", {"sentence": sentence})

    while True:
        done = access.store.evaluations()
        due = [v for v in access.weights.versions() if is_evaluated(access.config, v) and v not in done]
        if not due:
            if last in done:
                return
            access.doing("evaluator", "waiting for the next version that is due")
            access.wait()
            continue
        version = due[0]
        access.weights.load(version, student)
        policy = Interruptible(student, access.check)
        record = evaluate_version(
            access.config,
            exam,
            policy,
            version=version,
            forbidden=forbidden,
            recalled=recalled,
            heed=access.check,
            progress=partial(access.doing, "evaluator", f"evaluating version {version}"),
        )
        if not noted and (words := exam.words()):
            access.store.note("evaluation_words", {"words": words})
            noted = True
        access.store.record_evaluation(record)


def check(access: Access) -> None:
    """The preflight, or a stage of it: load models and check them, one at a time."""
    check_stage(access.config, access.rank)


ROLES: dict[str, Callable[[Access], None]] = {
    "preflight": check,
    "explorer": explore,
    "teacher": teach,
    "evaluator": evaluate,
    "learner": learn,
}


def perform(access: Access, kind: str) -> str | None:
    """Do a role to its end. The answer is why it cannot go on: if it were started again, it would end the same."""
    try:
        ROLES[kind](access)
    except Stopped:
        pass
    except (InputError, AlignmentError, EnvironmentFailure, TeacherAwayError) as error:
        return str(error)
    return None


class StopSignal:
    """Hear SIGTERM, and notice when the process that started the roles is gone: nobody else would end them.

    The number of that process is told: it may die while a role is still importing.
    """

    def __init__(self, parent: int) -> None:
        self.told, self.parent = False, parent
        signal.signal(signal.SIGTERM, self._hear)
        for number in (signal.SIGINT, signal.SIGUSR1):  # they reach the parent too, which tells us
            signal.signal(number, signal.SIG_IGN)

    def _hear(self, _number: int, _frame: FrameType | None) -> None:
        self.told = True

    def __call__(self) -> bool:
        return self.told or os.getppid() != self.parent


def main(run: str, name: str, parent: str) -> int:
    is_over, folder = StopSignal(int(parent)), RunFolder(run)
    kind, number = kind_of(name)
    with Store.open(folder.path) as store:
        config = load_run_config(folder)
        doing = Doing(lambda now: write_now(folder.now, name, now))
        access = Access(
            config,
            store,
            WeightsFolder(folder),
            is_over,
            folder=folder,
            rank=number,
            open_store=lambda: Store.open(folder.path),
            doing=doing,
            meeting=lambda: read_place(folder.rendezvous),
        )
        if kind == "learner":
            beat(folder.beats / name)
        refusal = perform(access, kind)
    if refusal is not None:
        print(said(refusal), file=sys.stderr)
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
