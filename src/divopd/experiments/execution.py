"""Making the runs that items want: as processes of their own, several at once, resumable, with the time that is left.

A run is trained by `divopd train --resume`, audited by `divopd audit`, and then its result is written. Whatever is
stopped goes on where it was when the same command is given again; two commands at once share the work.
"""

import fcntl
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from divopd.durable_folder import numbered_folders
from divopd.errors import DivopdError
from divopd.experiments.results import load_result, result_of
from divopd.experiments.wanted import Wanted
from divopd.store import Store

POLL_S = 1.0
AUDIT_UPDATES = 5  # about what an audit costs, in updates of training


@dataclass(frozen=True)
class Job:
    """A run that is not complete yet, and the audits that are still wanted of it."""

    wanted: Wanted
    audits: tuple[str, ...]
    trained: bool  # its result is there, only audits are missing

    @property
    def size(self) -> int:
        """How much there is to do, in updates."""
        return AUDIT_UPDATES * len(self.audits) + (0 if self.trained else self.wanted.config.learner.updates)


def missing_jobs(wanted: Mapping[Wanted, Sequence[str]]) -> list[Job]:
    """What has to be done so that every wanted run has its result with these audits; a run wanted twice once."""
    jobs: dict[str, Job] = {}
    for run, audits in wanted.items():
        result = load_result(run)
        done = result.audits if result else {}
        known = jobs[run.label].audits if run.label in jobs else ()
        left = tuple(dict.fromkeys([*known, *(audit for audit in audits if audit not in done)]))
        if result is None or left:
            jobs[run.label] = Job(run, left, trained=result is not None)
    return list(jobs.values())


@dataclass
class Crew:
    """Does jobs, at most so many at once. Stopping it stops the processes that it started."""

    size: int
    _processes: set["subprocess.Popen[str]"] = field(default_factory=set)
    _lock: Lock = field(default_factory=Lock)
    _stopping: bool = False

    def work(self, jobs: Sequence[Job]) -> Iterator[Job | None]:
        """Do the jobs; yields each when it is done, and None about once a second in between."""
        with ThreadPoolExecutor(self.size) as pool:
            waiting: dict[Future[None], Job] = {pool.submit(self._do, job): job for job in jobs}
            try:
                while waiting:
                    done, _ = wait(waiting, timeout=POLL_S, return_when=FIRST_COMPLETED)
                    for future in done:
                        job = waiting.pop(future)
                        future.result()
                        yield job
                    if not done:
                        yield None
            finally:
                self._stop()
                pool.shutdown(wait=True, cancel_futures=True)

    def _do(self, job: Job) -> None:
        run = job.wanted
        folder = run.folder
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / "paper.lock"):
            before = load_result(run)  # another command may have made it meanwhile
            audits = dict(before.audits) if before else {}
            seconds = before.stored["seconds"] if before else None
            missing = [name for name in job.audits if name not in audits]
            if before is None or (missing and not is_finished(run)):
                seconds = self._train(run)
            for name in missing:
                audits[name] = json.loads(self._command(folder, "audit", name, str(folder), "--json"))
            run.result_file.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps(result_of(run, audits=audits, seconds=seconds), separators=(",", ":"))
            run.result_file.write_text(text + "\n", encoding="utf-8")

    def _train(self, run: Wanted) -> float | None:
        from divopd.pipeline.begin import begin_run

        anew = not (run.folder / "store.db").exists()
        if anew:
            begin_run(run.config, run.folder)
        if is_finished(run):
            return None
        started = time.monotonic()
        self._command(run.folder, "train", "--resume", str(run.folder))
        return round(time.monotonic() - started, 1) if anew else None

    def _command(self, folder: Path, *arguments: str) -> str:
        """Run divopd; its messages go to a log beside the run."""
        with self._lock:
            if self._stopping:
                raise DivopdError("stopped")
            with (folder / "paper.log").open("a", encoding="utf-8") as log:
                command = [sys.executable, "-m", "divopd", *arguments]
                process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
            self._processes.add(process)
        output, _ = process.communicate()
        with self._lock:
            self._processes.discard(process)
        if process.returncode and not self._stopping:
            lines = (folder / "paper.log").read_text(encoding="utf-8", errors="replace").splitlines()
            raise DivopdError(f"{' '.join(arguments)}: {lines[-1] if lines else 'failed'} (more in {folder}/paper.log)")
        return output

    def _stop(self) -> None:
        with self._lock:
            self._stopping = True
            for process in self._processes:
                process.terminate()


def is_finished(run: Wanted) -> bool:
    """Whether the run's folder holds all of its updates, its last evaluation and the weights that audits need."""
    if not (run.folder / "store.db").exists():
        return False
    last = run.config.learner.updates
    with Store.open_read_only(run.folder) as store:
        evaluated = last in store.figures("evaluation")
    return evaluated and any(int(path.name) == last for path in numbered_folders(run.folder / "weights"))


def updates_done(job: Job) -> int:
    """How far a job has got, in updates."""
    if not (job.wanted.folder / "store.db").exists():
        return 0
    with Store.open_read_only(job.wanted.folder) as store:
        return min(job.size, store.updates)


@contextmanager
def _locked(file: Path) -> Iterator[Any]:
    """Wait until no other process works on the run; the lock goes with the process that holds it."""
    with file.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
