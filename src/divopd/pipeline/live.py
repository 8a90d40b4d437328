"""The live clock: explorer, teacher, learner and evaluator processes, restarted when they die (SPEC §7)."""

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from divopd.config import Config
from divopd.errors import DivopdError
from divopd.store import Store

POLL_S = 0.2
REFUSED = 2  # exit code of a role that would end the same if it were started again
PATIENCE_S = 30.0  # for a role to stop after SIGTERM
RESTARTS = 5  # of one role while no update and no evaluation is made: more means that it cannot run


class LiveRun:
    """Starts the roles of a run, keeps them running, and ends when learner and evaluator are done."""

    def __init__(self, config: Config, folder: Path, *, report: Callable[[str, dict[str, Any]], None]) -> None:
        self.config, self.folder, self.report = config, folder, report
        explorers = [f"explorer-{number}" for number in range(config.explorer.processes)]
        self.names = ["learner", "teacher", "evaluator", *explorers]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.deaths: Counter[str] = Counter()  # since the last update or evaluation
        self._reported: set[tuple[str, int]] = set()

    def run(self) -> None:
        """Ctrl-C stops all roles cleanly; `divopd train --resume` goes on."""
        with Store.open_read_only(self.folder) as store:
            try:
                self._preflight()
                for name in self.names:
                    self._start(name)
                while not self._over():
                    time.sleep(POLL_S)
                    self._tell(store)
            finally:
                self._stop()
                self._tell(store)

    def _preflight(self) -> None:
        """Check the models against each other before anything starts, in a process that gives its memory back."""
        self._start("preflight")
        while (code := self.processes["preflight"].poll()) is None:
            time.sleep(POLL_S)
        del self.processes["preflight"]
        if code:
            raise DivopdError(f"the preflight refuses the run; {self._last_words('preflight')}")

    def _start(self, name: str) -> None:
        log = (self.folder / f"{name}.log").open("ab")
        command = [sys.executable, "-m", "divopd.pipeline.roles", str(self.folder), name.partition("-")[0]]
        with log:
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def _over(self) -> bool:
        """Restart what died; True when the learner and the evaluator have ended well."""
        ended = set()
        for name, process in list(self.processes.items()):
            code = process.poll()
            if code == 0 and name in ("learner", "evaluator"):
                ended.add(name)
            elif "learner" in ended and name != "evaluator":
                process.send_signal(signal.SIGTERM)  # nobody trains on what it makes: the evaluator has the machine
            elif code == REFUSED:
                raise DivopdError(f"the {name} cannot go on; {self._last_words(name)}")
            elif code is not None:
                self._restart(name, code)
        return ended == {"learner", "evaluator"}

    def _restart(self, name: str, code: int) -> None:
        self.deaths[name] += 1
        self.report("restart", {"role": name, "code": code})
        if self.deaths[name] > RESTARTS:
            raise DivopdError(f"the {name} died {self.deaths[name]} times, to no avail; {self._last_words(name)}")
        self._start(name)

    def _last_words(self, name: str) -> str:
        log = self.folder / f"{name}.log"
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"its last words: {lines[-1]} (the rest is in {log})" if lines else f"{log} is empty"

    def _stop(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + PATIENCE_S
        for process in self.processes.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()  # nothing is lost: the store has all that was acknowledged
                process.wait()

    def _tell(self, store: Any) -> None:
        """Report the figures that were recorded since the last time."""
        for kind, key in (("update", "update"), ("evaluation", "version")):
            for number, figures in store.figures(kind).items():
                if (kind, number) not in self._reported:
                    self._reported.add((kind, number))
                    self.deaths.clear()
                    self.report(kind, {key: number, **figures})
