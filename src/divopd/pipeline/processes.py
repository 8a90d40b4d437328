"""The live clock: all roles at work at once, each a process, restarted when it dies (specification §7)."""

import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from divopd.config import Config
from divopd.errors import DivopdError
from divopd.pipeline import broken, wrong_answers
from divopd.pipeline.heartbeats import Heartbeats
from divopd.pipeline.preflight import stages
from divopd.pipeline.wishes import Wishes
from divopd.records import Observer
from divopd.run.doing import forget_now
from divopd.run.folder import RunFolder
from divopd.store import WRONG_ANSWER, StoreViews
from divopd.teacher import TELL_S

POLL_S = 0.2
REFUSED = 2  # exit code of a role that would end the same if it were started again
PATIENCE_S = 30.0  # for a role that was asked to stop
MAX_LOG_BYTES = 16 * 2**20  # of a role; what an environment prints may be without end
KEPT_LOG_BYTES = 2**20  # of the end of a log that is cut
LAST_WORDS_BYTES = 64 * 1024
COSTS = {broken.BROKE: broken.sentence_of, WRONG_ANSWER: wrong_answers.sentence_of}  # what costs a rollout, in words
RESTARTS = 5  # of one role while no update and no evaluation is made: more means that it cannot run


def kind_of(name: str) -> tuple[str, int]:
    """The role of a name, and its number: explorer-2 is explorer 2, learner the learner's rank 0."""
    kind, _, number = name.partition("-")
    return kind, int(number or 0)


class Worker(Protocol):
    """A role at work: a process here, an actor on a cluster."""

    def poll(self) -> int | None:
        """Its exit code; None while it is at work."""
        ...

    def terminate(self) -> None:
        """Ask it to stop at the next good moment."""
        ...

    def kill(self) -> None:
        """End it now."""
        ...


def cap_log(log: Path) -> None:
    """Cut a log that has grown too long: its end goes to NAME.log.old, and the role writes on into an empty one."""
    with suppress(FileNotFoundError):
        if log.stat().st_size > MAX_LOG_BYTES:
            log.with_suffix(".log.old").write_bytes(_end_of(log, KEPT_LOG_BYTES))
            os.truncate(log, 0)  # it was opened to append: the next word goes to its new end


def _end_of(log: Path, most: int) -> bytes:
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - most))
        return stream.read(most)


class LiveRun:
    """Starts the roles of a run as processes, keeps them running, and ends when all is learnt and evaluated."""

    def __init__(self, config: Config, folder: Path, *, observer: Observer, wishes: Wishes) -> None:
        self.config, self.folder, self.observer, self.wishes = config, RunFolder(folder), observer, wishes
        self.wishes.end_roles = self._end_at_once
        self.learners = ["learner", *(f"learner-{rank}" for rank in range(1, config.learner.ranks))]
        explorers = [f"explorer-{number}" for number in range(config.explorer.processes)]
        teachers = ["teacher", *(f"teacher-{number}" for number in range(1, config.teacher.count))]
        evaluators = ["evaluator"] if config.evaluation.share is None else []
        self.names = [*self.learners, *teachers, *evaluators, *explorers]
        self.lasting = [*self.learners, *(evaluators or explorers)]  # who end by themselves, when their work is done
        self.workers: dict[str, Worker] = {}
        self.deaths: Counter[str] = Counter()  # since the last update or evaluation
        self.heartbeats = Heartbeats(config.learner.hung_after_s)

    def start(self, name: str) -> Worker:
        """Set a role to work; what it says goes to a log of its name."""
        (self.folder.beats / name).unlink(missing_ok=True)
        command = [sys.executable, "-m", "divopd.pipeline.roles", str(self.folder.path), name, str(os.getpid())]
        with self.folder.log(name).open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def sign_of(self, name: str) -> object:
        """What changes while a rank of the learner is alive; None before its first heartbeat."""
        with suppress(FileNotFoundError):
            return (self.folder.beats / name).stat().st_mtime_ns
        return None

    def wait(self) -> None:
        """Let the roles work for a moment, then hear what is asked of the run."""
        time.sleep(POLL_S)
        for name in self.workers:
            cap_log(self.folder.log(name))
        self.wishes.check()
        if self.wishes.take_checkpoint():
            self.folder.checkpoint_wanted.touch()

    def run(self) -> None:
        """Ctrl-C and a wish to stop let all roles end cleanly; `divopd train --resume` goes on."""
        with StoreViews.open(self.folder.path) as store:
            news = News(store, self.observer)
            try:
                self._preflight()
                self._start(self.names)
                while not self._over():
                    self.wait()
                    if news.tell():
                        self.deaths.clear()
                self.wishes.check()  # a signal to all processes at once has ended the roles too early
            finally:
                self._stop()
                forget_now(self.folder.now)
                shutil.rmtree(self.folder.beats, ignore_errors=True)
                news.tell()

    def _preflight(self) -> None:
        """Check the models before anything starts, in processes that give their memory back, one after the other."""
        for number in range(len(stages(self.config))):
            name = f"preflight-{number}" if number else "preflight"
            worker = self.workers[name] = self.start(name)
            while (code := worker.poll()) is None:
                self.wait()
            del self.workers[name]
            if code:
                raise DivopdError(f"the preflight refuses the run; {self._last_words(name)}")

    def _start(self, names: list[str]) -> None:
        if "learner" in names:
            self.folder.rendezvous.unlink(missing_ok=True)
        for name in names:
            self.workers[name] = self.start(name)
            self.heartbeats.forget(name)

    def _over(self) -> bool:
        """Restart what died; True when the learner and whoever evaluates have ended well."""
        codes = {name: self.workers[name].poll() for name in self.names}  # once: who ends meanwhile has not died
        ended = {name for name in self.lasting if codes[name] == 0}
        if len(ended) == len(self.lasting):
            return True
        for name, code in codes.items():
            if name in ended:
                continue
            if name not in self.lasting and "learner" in ended and "evaluator" in self.names:
                self.workers[name].terminate()  # nobody trains on what it makes: the evaluator has the machine
            elif code == REFUSED:
                raise DivopdError(f"the {name} cannot go on; {self._last_words(name)}")
            elif code is not None:
                self._restart(name, code)
                return False  # ranks are started together: their codes are of before
        self._end_hung([name for name in self.learners if codes[name] is None])
        return False

    def _end_hung(self, names: Iterable[str]) -> None:
        """A rank that is silent for too long is ended, and so it is started again as one that died."""
        for name in names:
            silent_s = self.heartbeats.look(name, self.sign_of(name))
            if silent_s is not None:
                rank = f"rank {kind_of(name)[1]} of the learner's {len(self.learners)}"
                self.observer.told(f"the {name} hangs ({rank}): it was not heard for {silent_s:.0f} s and is ended")
                self.heartbeats.forget(name)
                self.workers[name].kill()

    def _restart(self, name: str, code: int) -> None:
        self.deaths[name] += 1
        self.observer.told(f"the {name} died (exit code {code}) and is started again")
        if self.deaths[name] > RESTARTS:
            raise DivopdError(f"the {name} died {self.deaths[name]} times, to no avail; {self._last_words(name)}")
        together = self.learners if name in self.learners else [name]  # ranks that wait for one another
        self._kill(together)
        self._start(together)

    def _last_words(self, name: str) -> str:
        log = self.folder.log(name)
        lines = _end_of(log, LAST_WORDS_BYTES).decode("utf-8", errors="replace").strip().splitlines()
        return f"its last words: {lines[-1]} (the rest is in {log})" if lines else f"{log} is empty"

    def _stop(self) -> None:
        for worker in self.workers.values():
            worker.terminate()
        deadline = time.monotonic() + PATIENCE_S
        while self._working(self.workers) and (self.wishes.to_stop or time.monotonic() < deadline):
            time.sleep(POLL_S)  # a run that is to stop has a limit of its own, see wishes.py
        self._kill(self.workers)

    def _end_at_once(self) -> None:
        for worker in list(self.workers.values()):
            worker.kill()

    def _kill(self, names: Iterable[str]) -> None:
        """End roles that are still at work: nothing is lost, the store has all that was acknowledged."""
        for name in (names := list(names)):
            if self.workers[name].poll() is None:
                self.workers[name].kill()
        while self._working(names):
            time.sleep(POLL_S)

    def _working(self, names: Iterable[str]) -> bool:
        return any(self.workers[name].poll() is None for name in names)


class News:
    """What a store has recorded since the last look, told to an observer. Only what is new is read.

    The first look tells all records that there are: an earlier process may have died before it told them. What happened
    in the time of that process is over.
    """

    def __init__(self, store: StoreViews, observer: Observer) -> None:
        self._store, self._observer = store, observer
        self._cursor = store.cursor()._replace(records=-1, evaluations=-1)
        self._next_update, self._last_event = 0, self._cursor.events
        self._versions: set[int] = set()
        self._absences: dict[str, float] = {}  # when a server was last told to be away
        self._costs = Counter(kind for _, kind, _ in store.events() if kind in COSTS)  # rollouts

    def tell(self) -> bool:
        """True if an update or an evaluation was among it."""
        cursor, before = self._store.cursor(), self._cursor
        self._cursor = cursor
        if cursor.records != before.records:
            for update, record in self._store.update_records(first=self._next_update).items():
                self._observer.updated(record)
                self._next_update = update + 1
        if cursor.evaluations != before.evaluations:
            for version, record in self._store.evaluations().items():
                if version not in self._versions:
                    self._versions.add(version)
                    self._observer.evaluated(record)
        for number, kind, event in self._store.events(after=self._last_event):
            self._last_event = number
            if kind in ("teacher_away", "teacher_still_away"):
                self._tell_absence(event)
            elif kind == "evaluation_recalled":
                self._observer.told(event["sentence"])
            elif kind in COSTS:
                self._costs[kind] += 1
                if sentence := COSTS[kind](event, count=self._costs[kind]):
                    self._observer.told(sentence)
        return (cursor.records, cursor.evaluations) != (before.records, before.evaluations)

    def _tell_absence(self, event: dict[str, Any]) -> None:
        """Once a minute of each server, though every teacher process misses it."""
        who, moment = event["who"], event["since"] + event["seconds"]
        if moment - self._absences.get(who, -TELL_S) > TELL_S / 2:
            self._absences[who] = moment
            self._observer.told(event["sentence"])
