"""The live clock: explorers, teacher, learner and evaluator at work at once, restarted when they die (SPEC §7)."""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

from divopd.config import Config
from divopd.errors import DivopdError
from divopd.pipeline.wishes import Wishes
from divopd.store import Store

POLL_S = 0.2
REFUSED = 2  # exit code of a role that would end the same if it were started again
PATIENCE_S = 30.0  # for a role that was asked to stop
RENDEZVOUS = "ranks"  # a file in the run's folder, by which the ranks of the learner find one another
CHECKPOINT_WANTED = "checkpoint-wanted"  # a file in the run's folder, by which the learner is asked for one
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


class LiveRun:
    """Starts the roles of a run as processes, keeps them running, and ends when learner and evaluator are done."""

    def __init__(
        self,
        config: Config,
        folder: Path,
        *,
        report: Callable[[str, dict[str, Any]], None],
        wishes: Wishes | None = None,
    ) -> None:
        self.config, self.folder, self.report = config, folder, report
        self.wishes = wishes or Wishes()
        self.wishes.end_roles = self._end_at_once
        self.learners = ["learner", *(f"learner-{rank}" for rank in range(1, config.learner.ranks))]
        explorers = [f"explorer-{number}" for number in range(config.explorer.processes)]
        self.names = [*self.learners, "teacher", "evaluator", *explorers]
        self.workers: dict[str, Worker] = {}
        self.deaths: Counter[str] = Counter()  # since the last update or evaluation
        self._reported: set[tuple[str, int]] = set()

    def start(self, name: str) -> Worker:
        """Set a role to work; what it says goes to a log of its name."""
        command = [sys.executable, "-m", "divopd.pipeline.roles", str(self.folder), name]
        with self.log(name).open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def wait(self) -> None:
        """Let the roles work for a moment, then hear what is asked of the run."""
        time.sleep(POLL_S)
        self.wishes.check()
        if self.wishes.take_checkpoint():
            (self.folder / CHECKPOINT_WANTED).touch()

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def run(self) -> None:
        """Ctrl-C and a wish to stop let all roles end cleanly; `divopd train --resume` goes on."""
        with Store.open_read_only(self.folder) as store:
            try:
                self._preflight()
                self._start(self.names)
                while not self._over():
                    self.wait()
                    self._tell(store)
                self.wishes.check()  # a signal to all processes at once has ended the roles too early
            finally:
                self._stop()
                self._tell(store)

    def _preflight(self) -> None:
        """Check the models against each other before anything starts, in a process that gives its memory back."""
        worker = self.workers["preflight"] = self.start("preflight")
        while (code := worker.poll()) is None:
            self.wait()
        del self.workers["preflight"]
        if code:
            raise DivopdError(f"the preflight refuses the run; {self._last_words('preflight')}")

    def _start(self, names: list[str]) -> None:
        if "learner" in names:
            (self.folder / RENDEZVOUS).unlink(missing_ok=True)
        for name in names:
            self.workers[name] = self.start(name)

    def _over(self) -> bool:
        """Restart what died; True when the learner and the evaluator have ended well."""
        lasting = [*self.learners, "evaluator"]
        ended = {name for name in lasting if self.workers[name].poll() == 0}
        for name in self.names:
            code = self.workers[name].poll()
            if name in ended:
                continue
            if "learner" in ended and name not in lasting:
                self.workers[name].terminate()  # nobody trains on what it makes: the evaluator has the machine
            elif code == REFUSED:
                raise DivopdError(f"the {name} cannot go on; {self._last_words(name)}")
            elif code is not None:
                self._restart(name, code)
        return len(ended) == len(lasting)

    def _restart(self, name: str, code: int) -> None:
        self.deaths[name] += 1
        self.report("restart", {"role": name, "code": code})
        if self.deaths[name] > RESTARTS:
            raise DivopdError(f"the {name} died {self.deaths[name]} times, to no avail; {self._last_words(name)}")
        together = self.learners if name in self.learners else [name]  # ranks that wait for one another
        self._kill(together)
        self._start(together)

    def _last_words(self, name: str) -> str:
        log = self.log(name)
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
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

    def _tell(self, store: Any) -> None:
        """Report the figures that were recorded since the last time."""
        for kind, key in (("update", "update"), ("evaluation", "version")):
            for number, figures in store.figures(kind).items():
                if (kind, number) not in self._reported:
                    self._reported.add((kind, number))
                    self.deaths.clear()
                    self.report(kind, {key: number, **figures})
