"""Programs side by side, behind the interface of a pool of environments (environments/pool.py).

`reset` starts a program for a task, `step` replies to the call that it waits for. What comes back is an observation
whose text is JSON: the next call, or, when it is `done`, how the program ended. So players, evaluations and resumes
treat a program as they treat any environment; program_rollout.py knows what the texts mean.
"""

import json
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from divopd.environments.environment import Method, Observation
from divopd.environments.pool import Answer
from divopd.environments.programs.endpoint import Attempt, ChatCall, Endpoint
from divopd.environments.programs.process import ProgramProcess
from divopd.errors import EnvironmentFailure, ProgramFailure
from divopd.printable import one_line

LOOK_S = 0.02  # between two looks at programs that ask for nothing
LAST_WORDS = 200  # characters of the output in a reason


@dataclass(eq=False)
class _Running:
    """A program at work. Its time runs while nobody owes it an answer: a slow student costs no rollout."""

    process: ProgramProcess
    attempt: Attempt
    used_s: float = 0.0
    since: float | None = None  # when its time began to run; None: it waits for an answer
    owed: ChatCall | None = None  # the call that was taken and has no reply yet


class ProgramPool:
    """A place for each program that runs at once; an attempt is over when its program has ended or was killed."""

    def __init__(
        self, command: Sequence[str], tasks: Mapping[str, Mapping[str, Any]], *, size: int, timeout_s: float
    ) -> None:
        self.size, self._command, self._tasks, self._timeout_s = size, list(command), tasks, timeout_s
        self._endpoint = Endpoint()
        self._running: dict[int, _Running] = {}
        self._asked: set[int] = set()
        self._answers: list[Answer] = []
        self._end = weakref.finalize(self, _close, self._running, self._endpoint)

    def submit(self, place: int, method: Method, argument: str | None = None) -> None:
        assert place not in self._asked, f"place {place} was asked before it has answered"
        self._asked.add(place)
        if method == "valid_actions":
            self._answers.append(Answer(place, None))
            return
        assert argument is not None, f"{method} wants an argument"
        try:
            self._begin(place, argument) if method == "reset" else self._reply(place, json.loads(argument))
        except EnvironmentFailure as failure:
            self._answers.append(Answer(place, None, failure))

    def collect(self, *, timeout_s: float = 0.0) -> list[Answer]:
        until = time.monotonic() + timeout_s
        while True:
            known = {answer.place for answer in self._answers}
            looks = [self._look(place) for place in sorted(self._asked - known)]
            self._answers += [answer for answer in looks if answer is not None]
            now = time.monotonic()
            if self._answers or now >= until or not self._asked:
                break
            self._endpoint.wait(min(until - now, LOOK_S))
        answers, self._answers = self._answers, []
        self._asked -= {answer.place for answer in answers}
        return answers

    def close(self) -> None:
        self._end()

    # ── one program ───────────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, place: int, task: str) -> None:
        if place in self._running:
            self._stop(place, "another rollout begins")
        if task not in self._tasks:
            raise EnvironmentFailure(f"there is no task {one_line(task)!r} in the files of environment.tasks")
        attempt = self._endpoint.begin()
        try:
            process = ProgramProcess(self._command, self._tasks[task], key=attempt.key, base_url=self._endpoint.address)
        except OSError as error:
            self._endpoint.revoke(attempt, "it was not started")
            raise EnvironmentFailure(f"no program can be started ({error.strerror})") from None
        self._running[place] = _Running(process, attempt, since=time.monotonic())

    def _reply(self, place: int, said: Mapping[str, Any]) -> None:
        """Reply to the call that was taken last, or cut the rollout here."""
        running = self._running.get(place)
        if running is None:
            raise EnvironmentFailure("the program has ended; it has to be started first")
        if "cut" in said:
            told = {"ended": said["cut"]} | self._stop(place, said["cut"])
            self._answers.append(Answer(place, Observation(json.dumps(told), done=True)))
            return
        assert running.owed is not None, "nothing was asked"
        self._endpoint.reply(running.owed, said["status"], said["body"])
        running.owed, running.since = None, time.monotonic()

    def _look(self, place: int) -> Answer | None:
        """What a program has asked for, or how it has ended; None: neither."""
        running = self._running[place]
        running.process.hear()
        call = self._endpoint.take(running.attempt)
        since = running.since or 0.0
        if call is not None:
            running.used_s += max(0.0, call.arrived_at - since)
            running.owed, running.since = call, None
            return Answer(place, Observation(_text_of(call)))
        if running.process.exit_code is not None:
            return self._ended(place, running)
        if running.used_s + time.monotonic() - since > self._timeout_s:
            told = self._stop(place, "its time is up")
            reason = f"the program did not end within {self._timeout_s:g} s (environment.timeout_s)"
            return Answer(place, None, _failure(reason, told))
        return None

    def _ended(self, place: int, running: _Running) -> Answer:
        process = running.process
        failure: EnvironmentFailure | None = None
        try:
            outcome = process.outcome()
        except EnvironmentFailure as wrong:
            outcome, failure = None, wrong
        told = self._stop(place, "the program has ended")
        if process.exit_code != 0:
            return Answer(place, None, _failure(f"the program broke off: {process.ending}", told))
        if outcome is None:
            return Answer(place, None, _failure(f"the program ended, and its {failure}", told))
        text = json.dumps({"ended": process.ending} | told)
        return Answer(place, Observation(text, done=True, success=outcome.success, reward=outcome.reward))

    def _stop(self, place: int, why: str) -> dict[str, Any]:
        """Revoke the key and kill the program; what there is to tell about the attempt."""
        running = self._running.pop(place)
        self._endpoint.revoke(running.attempt, why)
        running.process.end()
        undelivered = self._endpoint.undelivered(running.attempt)
        attempt = running.attempt
        refused = {"refused": attempt.refused, "refusals": attempt.refusals}
        return {"undelivered": undelivered, **refused, "output": running.process.words}


def _text_of(call: ChatCall) -> str:
    return json.dumps({"call": call.number, "agent": call.agent, **call.request})


def _failure(reason: str, told: dict[str, Any]) -> ProgramFailure:
    last = one_line(told["output"].strip().rpartition("\n")[2])[-LAST_WORDS:]
    return ProgramFailure(f"{reason}; its last words: {last}" if last else reason, told=told)


def _close(running: dict[int, _Running], endpoint: Endpoint) -> None:
    for one in running.values():
        endpoint.revoke(one.attempt, "the run has ended")
        one.process.end()
    running.clear()
    endpoint.close()
