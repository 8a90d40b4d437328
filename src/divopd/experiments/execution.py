"""Making the runs that items want: in processes of their own (worker.py), several at once, resumable.

A run is trained, audited, and then its result is written. Whatever is stopped goes on where it was when the same
command is given again; two commands at once share the work.
"""

import fcntl
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from divopd.errors import DivopdError
from divopd.experiments.results import load_result, result_of
from divopd.experiments.wanted import Wanted
from divopd.pipeline.begin import begin_run
from divopd.run.durable_folder import numbered_folders
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


class Crew:
    """Does jobs with so many workers; `failures` says why a job could not be done. Stopping it stops its processes."""

    def __init__(self, size: int, *, log: Path) -> None:
        self.size = size
        self.failures: dict[str, str] = {}
        self._log = log
        self._idle: SimpleQueue[Worker] = SimpleQueue()

    def work(self, jobs: Sequence[Job]) -> Iterator[Job | None]:
        """Do the jobs; yields each when it is over, and None about once a second in between."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        workers = [Worker(self._log) for _ in range(min(self.size, len(jobs)))]
        for worker in workers:
            self._idle.put(worker)
        with ThreadPoolExecutor(self.size) as pool:
            waiting = {pool.submit(self._do, job, patient=False): job for job in jobs}
            try:
                while waiting:
                    over, _ = wait(waiting, timeout=POLL_S, return_when=FIRST_COMPLETED)
                    for future in over:
                        job = waiting.pop(future)
                        try:
                            if not future.result():  # another command is at it: look again after all the others
                                waiting[pool.submit(self._do, job, patient=True)] = job
                                continue
                        except DivopdError as error:  # one run that cannot be made must not cost the others
                            self.failures[job.wanted.label] = str(error)
                        yield job
                    if not over:
                        yield None
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
                for worker in workers:
                    worker.stop()

    def _do(self, job: Job, *, patient: bool) -> bool:
        worker = self._idle.get()
        try:
            return complete(job, worker, patient=patient)
        finally:
            self._idle.put(worker)


class Worker:
    """A process of worker.py; one that died is replaced when there is something to do."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._stopped = False
        self._process = self._start()

    def _start(self) -> "subprocess.Popen[str]":
        with self.log.open("a", encoding="utf-8") as messages:
            command = [sys.executable, "-m", "divopd.experiments.worker"]
            pipe = subprocess.PIPE
            return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=messages, text=True)

    def do(self, run: Path, *, train: bool, audits: Sequence[str]) -> dict[str, Any]:
        """What the process answers; a DivopdError if it could not do it."""
        if self._process.poll() is not None and not self._stopped:
            self._end()
            self._process = self._start()
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        task = json.dumps({"run": str(run), "train": train, "audits": list(audits)})
        with suppress(BrokenPipeError):  # the missing answer tells
            print(task, file=process.stdin, flush=True)
        line = process.stdout.readline()
        if not line:
            process.wait()
            raise DivopdError(f"{run}: its process ended with code {process.returncode}; {self.log} tells more")
        answer = json.loads(line)
        if "error" in answer:
            raise DivopdError(f"{run}: {answer['error']}")
        return answer

    def stop(self) -> None:
        """End the process; what it was doing can be resumed."""
        self._stopped = True
        self._end()

    def _end(self) -> None:
        self._process.terminate()
        self._process.wait()
        with suppress(BrokenPipeError), self._process:  # closes its pipes; a task that it did not take is left in one
            pass


def complete(job: Job, worker: Worker, *, patient: bool = True) -> bool:
    """Train and audit a run as far as that is missing, and write its result.

    While another process is at the run, a patient caller waits; any other one is told False.
    """
    run = job.wanted
    run.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(run.folder / "paper.lock", patient=patient) as is_ours:
        if not is_ours:
            return False
        before = load_result(run)  # another command may have made it meanwhile
        audits = dict(before.audits) if before else {}
        missing = [name for name in job.audits if name not in audits]
        if before and not missing:
            return True
        anew = not (run.folder / "store.db").exists()
        if anew:
            begin_run(run.config, run.folder)
        finished = is_finished(run)
        answer = worker.do(run.folder, train=not finished, audits=missing)
        whole = answer["seconds"] if anew else None  # of a run that was resumed a part only
        seconds = before.stored["seconds"] if before and finished else whole
        stored = result_of(run, audits=audits | answer["audits"], seconds=seconds)
        run.result_file.parent.mkdir(parents=True, exist_ok=True)
        run.result_file.write_text(json.dumps(stored, separators=(",", ":")) + "\n", encoding="utf-8")
    return True


def is_finished(run: Wanted) -> bool:
    """Whether the run's folder holds all of its updates, its last evaluation and the weights that audits need."""
    if not (run.folder / "store.db").exists():
        return False
    last = run.config.learner.updates
    with Store.open_read_only(run.folder) as store:
        evaluated = last in store.evaluations()
    return evaluated and any(int(path.name) == last for path in numbered_folders(run.folder / "weights"))


def updates_done(job: Job) -> int:
    """How far a job has got, in updates."""
    if not (job.wanted.folder / "store.db").exists():
        return 0
    with Store.open_read_only(job.wanted.folder) as store:
        return min(job.size, store.updates)


@contextmanager
def _locked(file: Path, *, patient: bool) -> Iterator[bool]:
    """Hold a run, once no other process does or only if none does; the lock goes with the process that holds it."""
    with file.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if patient else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
