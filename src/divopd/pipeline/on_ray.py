"""The live clock on a Ray cluster: the same roles as in roles.py, as actors.

The run's folder is on the machine that starts the run, and with it the learner's first rank (placing.py has the
others), the actor that owns the store and the actor that has published weights. Explorers, teachers and evaluator are
wherever Ray finds the GPUs that the configuration asks for; they need no shared file system. Actors that die are
started again: roles by the same rules as processes (processes.py), store and weights by Ray, from their files.
"""

import os
import signal
import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, cast

from divopd.composers import Composer
from divopd.config import Config
from divopd.curricula import Outcome
from divopd.errors import DivopdError, FencedError, MissingExtraError, StoreError
from divopd.learner.meeting import Place, read_place
from divopd.pipeline.access import Access
from divopd.pipeline.on_ray_weights import RemoteWeights, WeightsActor, answer
from divopd.pipeline.placing import CPUS, PLACEMENT_S, LearnerPlaces
from divopd.pipeline.processes import REFUSED, LiveRun, kind_of
from divopd.pipeline.roles import perform
from divopd.printable import said
from divopd.records import EvaluationRecord, UpdateRecord
from divopd.run.doing import Doing, Now, write_now
from divopd.run.folder import RunFolder
from divopd.store import Answer, Arrived, Decided, JournaledBatch, Question, Store
from divopd.turns import Rollout

try:
    import ray
    from ray.exceptions import RayActorError, RayError, RayTaskError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError:
    raise MissingExtraError("ray", "ray") from None

DIED = -9  # the exit code of an actor that is gone


class StoreActor:
    """Owns the store of a run. When it dies, Ray starts it again from the file."""

    def __init__(self, run: Path) -> None:
        self._store, self._run = Store.open(run), RunFolder(run)

    def hear(self, name: str, now: Now) -> None:
        """What a role does now: the run's folder is here."""
        write_now(self._run.now, name, now)

    def call(self, name: str, values: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """A method of the store that RemoteStore has, and no other."""
        if name not in vars(RemoteStore):
            raise StoreError(f"the store's actor was asked for {name!r}, which no role may ask for")
        return getattr(self._store, name)(*values, **named)

    def meeting(self) -> Place | None:
        """Where the ranks of the learner meet: the run's folder, in which the first rank tells it, is here."""
        return read_place(self._run.rendezvous)

    def updates(self) -> int:
        return self._store.updates

    def compose(self, composer: Composer, update: int, epoch: int) -> JournaledBatch:
        """As Store.compose; the same again from the same learner is answered with the batch that was composed."""
        try:
            return self._store.compose(composer, update=update, epoch=epoch)
        except FencedError:
            raise
        except StoreError:
            if update != self._store.updates - 1:
                raise
            return self._store.batch(update)

    def close(self) -> None:
        """At the end of the run: SQLite then brings its log into the file."""
        self._store.close()

    @ray.method(max_task_retries=0)
    def note(self, kind: str, event: dict[str, Any]) -> None:
        self._store.note(kind, event)


class RemoteStore:
    """The store as the roles on a cluster see it: a Queue and a Ledger. While its actor is down, callers wait.

    Ray repeats a call whose answer was lost with the store's actor, so each of these leaves the store as one call
    would; a number of `reserve` may be lost, as it is with an explorer that dies, and so may an attempt at a rollout,
    which then has no call. A `record` that is repeated says
    False: the learner's observer does not hear of it then, and whoever reads the store does.
    """

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def _call(self, name: str, *values: Any, **named: Any) -> Any:
        return answer(self._actor.call.remote(name, values, named))

    # ── Queue ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def reserve(self, count: int) -> range:
        return self._call("reserve", count)

    def offer(self, rollout: Rollout, *, generated_tokens: int) -> None:
        self._call("offer", rollout, generated_tokens=generated_tokens)

    def unscored(self, limit: int) -> list[Rollout]:
        return self._call("unscored", limit)

    def claim(self, holder: str, count: int, *, seconds: float) -> list[Rollout]:
        return self._call("claim", holder, count, seconds=seconds)

    def renew(self, holder: str, *, seconds: float) -> int:
        return self._call("renew", holder, seconds=seconds)

    def set_aside(self, holder: str, *, seconds: float) -> int:
        return self._call("set_aside", holder, seconds=seconds)

    def put_scored(self, rollout: Rollout) -> bool:
        return self._call("put_scored", rollout)

    def put(self, rollout: Rollout, *, available_at: int | None = None, generated_tokens: int = 0) -> bool:
        return self._call("put", rollout, available_at=available_at, generated_tokens=generated_tokens)

    def outcomes(self, *, after: int) -> list[Outcome]:
        return self._call("outcomes", after=after)

    def backlog(self) -> int:
        return self._call("backlog")

    def note(self, kind: str, event: dict[str, Any]) -> None:
        """It may be lost with the store's actor, but is never written twice."""
        with suppress(RayActorError):
            answer(self._actor.note.remote(kind, event))

    # ── Questions ─────────────────────────────────────────────────────────────────────────────────────────────────

    def ask(self, asker: str, questions: Sequence[Question]) -> None:
        self._call("ask", asker, list(questions))

    def claim_questions(self, holder: str, count: int, *, seconds: float) -> list[Question]:
        return self._call("claim_questions", holder, count, seconds=seconds)

    def answer(self, number: int, answer: Answer) -> bool:
        return self._call("answer", number, answer)

    def answers(self, numbers: Iterable[int]) -> dict[int, Answer]:
        return self._call("answers", list(numbers))

    def forget_questions(self, numbers: Iterable[int]) -> None:
        self._call("forget_questions", list(numbers))

    def forget_asker(self, asker: str) -> None:
        self._call("forget_asker", asker)

    # ── Calls ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def begin_attempt(self, rollout: int, begun: dict[str, Any]) -> int:
        return self._call("begin_attempt", rollout, begun)

    def intend_call(self, rollout: int, attempt: int, call: int, intent: dict[str, Any]) -> None:
        self._call("intend_call", rollout, attempt, call, intent)

    def record_call(self, rollout: int, attempt: int, call: int, record: dict[str, Any]) -> None:
        self._call("record_call", rollout, attempt, call, record)

    def end_attempt(self, rollout: int, attempt: int, ended: dict[str, Any]) -> None:
        self._call("end_attempt", rollout, attempt, ended)

    # ── Ledger ────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def updates(self) -> int:
        return answer(self._actor.updates.remote())

    def begin_learner(self) -> int:
        return self._call("begin_learner")

    def rows(self, composer: Composer, *, update: int) -> int:
        return self._call("rows", composer, update=update)

    def compose(self, composer: Composer, *, update: int, epoch: int) -> JournaledBatch:
        return answer(self._actor.compose.remote(composer, update, epoch))

    def batch(self, update: int) -> JournaledBatch:
        return self._call("batch", update)

    def record(self, record: UpdateRecord) -> bool:
        return self._call("record", record)

    def arrived(self) -> Arrived:
        return self._call("arrived")

    def decided(self, update: int) -> Decided:
        return self._call("decided", update)

    def acknowledge(self, update: int, *, epoch: int) -> None:
        self._call("acknowledge", update, epoch=epoch)

    def settle(self, update: int, *, epoch: int) -> int:
        return self._call("settle", update, epoch=epoch)

    def evaluations(self) -> dict[int, EvaluationRecord]:
        return self._call("evaluations")

    def record_evaluation(self, record: EvaluationRecord) -> bool:
        return self._call("record_evaluation", record)


class RoleActor:
    """Does one role; listens meanwhile, in a thread of its own."""

    def __init__(self, config: Config, store: Any, weights: Any, *, name: str, run: Path, where: Path) -> None:
        with suppress(FileNotFoundError):  # relative folders of models mean the same as where the run was started
            os.chdir(where)
        self._config, self._store, self._weights, self._run = config, RemoteStore(store), RemoteWeights(weights), run
        self._kind, self._number = kind_of(name)
        self._heard, self._name = store, name
        self._stopping = False

    def perform(self) -> str | None:
        access = Access(
            self._config,
            self._store,
            self._weights,
            lambda: self._stopping,
            folder=RunFolder(self._run) if self._kind == "learner" else None,
            rank=self._number,
            open_store=lambda: nullcontext(self._store),
            doing=Doing(lambda now: self._heard.hear.remote(self._name, now)),
            meeting=lambda: answer(self._heard.meeting.remote()),
        )
        return perform(access, self._kind)

    def stop(self) -> None:
        self._stopping = True

    def beat(self) -> int:
        """Answers while the process is alive, whatever it does meanwhile."""
        return os.getpid()


class ActorWorker:
    """An actor at work, as processes.py sees a worker. When it ends badly, its log says why."""

    def __init__(self, actor: Any, log: Path) -> None:
        self.actor, self.log = actor, log
        self.began = time.monotonic()
        self._placed, self._done = actor.__ray_ready__.remote(), actor.perform.remote()
        self._code: int | None = None
        self._told = False
        self._asked, self._beats = actor.beat.remote(), 0

    def poll(self) -> int | None:
        if self._code is None and _is_there(self._done):
            self._code = self._end()
            ray.kill(self.actor)  # its GPUs are free for others
        return self._code

    def _end(self) -> int:
        try:
            refusal = cast(str | None, ray.get(self._done))
        except RayError as error:
            self._write(str(error))
            return 1 if isinstance(error, RayTaskError) else DIED
        if refusal is not None:
            self._write(refusal)
        return 0 if refusal is None else REFUSED

    def _write(self, words: str) -> None:
        with self.log.open("a", encoding="utf-8") as log:
            print(said(words), file=log)

    @property
    def is_placed(self) -> bool:
        return _is_there(self._placed)

    def sign(self) -> int | None:
        """How often it has answered that it is alive; asks again when it has. None before the first answer."""
        if _is_there(self._asked):
            self._asked, self._beats = self.actor.beat.remote(), self._beats + 1
        return self._beats or None

    def terminate(self) -> None:
        if not self._told:
            self.actor.stop.remote()
        self._told = True

    def kill(self) -> None:
        ray.kill(self.actor)


def _is_there(reference: Any) -> bool:
    return bool(ray.wait([reference], timeout=0)[0])


class RayRun(LiveRun):
    """Starts the roles of a run as actors; everything else is as with processes."""

    def run(self) -> None:
        connected = not ray.is_initialized()
        if connected:
            connect()
        try:
            self._here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
            here = {"num_cpus": CPUS, "scheduling_strategy": self._here}
            lasting: dict[str, Any] = here | {"max_restarts": -1, "max_task_retries": -1}
            reading: dict[str, Any] = lasting | {"concurrency_groups": {"reading": 1, "taking": 1}}
            folder = self.folder.path.absolute()
            self.store = ray.remote(**lasting)(StoreActor).remote(folder)
            self.weights = ray.remote(**reading)(WeightsActor).remote(folder)
            self._places = LearnerPlaces(self.config, here=ray.get_runtime_context().get_node_id())
            try:
                self._places.wait(self.wishes.check)
                super().run()
            finally:
                self._places.release()
                with suppress(RayActorError):  # it could not start: the run's own error says more
                    answer(self.store.close.remote())
        finally:
            if connected:
                ray.shutdown()

    def start(self, name: str) -> ActorWorker:
        kind, number = kind_of(name)
        roles = ("explorer", "teacher") if kind == "preflight" else (kind,)  # which loads the engines of both
        options = {
            "num_cpus": CPUS,
            "num_gpus": max(self.config.gpus_of(role) for role in roles),
            "max_concurrency": 2,
            "scheduling_strategy": self._places.of(number) if kind == "learner" else "SPREAD",
        }
        actor = ray.remote(**options)(RoleActor).remote(
            self.config, self.store, self.weights, name=name, run=self.folder.path.absolute(), where=Path.cwd()
        )
        return ActorWorker(actor, self.folder.log(name))

    def sign_of(self, name: str) -> object:
        return cast(ActorWorker, self.workers[name]).sign()

    def wait(self) -> None:
        """A role of which no actor finds a place ends the run; if some explorers do, the others may come later."""
        super().wait()
        for kind in {kind_of(name)[0] for name in self.workers}:
            workers = [cast(ActorWorker, worker) for name, worker in self.workers.items() if kind_of(name)[0] == kind]
            waited = time.monotonic() - max(worker.began for worker in workers)
            if waited > PLACEMENT_S and not any(worker.is_placed for worker in workers):
                raise DivopdError(
                    f"Ray found no place for the {kind} in {PLACEMENT_S:g} s; the run asks for {self.config.gpu_plan}, "
                    f"and the cluster has {ray.cluster_resources().get('GPU', 0):g}; add a machine, or lower "
                    "gpus or explorer.processes of a new run; this one goes on with --resume"
                )


def connect() -> None:
    """Join the cluster that RAY_ADDRESS or `ray start` on this machine names; without one, start one here.

    Ray listens on all addresses of the machine, so the one that is started here answers to the user's token only.
    """
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    heard = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address="auto", **quiet)
    except ConnectionError:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
        ray.init(address="local", include_dashboard=False, **quiet)
    if callable(heard):  # ray.init puts a handler of its own in its place, which ends the process
        signal.signal(signal.SIGTERM, heard)
