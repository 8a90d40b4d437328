"""All at once: environments that hang, die, exit and flood, and a teacher that goes, drips, lies and hangs up."""

import io
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import pytest

pytest.importorskip("torch", reason="for want of the extra train")
pytest.importorskip("transformers", reason="for want of the extra train")

from divopd.cli import main
from divopd.config import Config
from divopd.errors import AlignmentError
from divopd.models.transformers_policy import TransformersPolicy
from divopd.pipeline.begin import begin_run
from divopd.pipeline.broken import BROKE
from divopd.store import WRONG_ANSWER, Store
from divopd.validity import why_invalid
from doubles.listener import Listener
from hostile_room import WorldRoom
from leak_guard import children
from raw_server import with_length
from small_runs import config, train_small
from teacher_server import TeacherServer
from waiting import is_alive

ROOM = Path(__file__).parents[1] / "hostile_room.py"


@pytest.fixture
def server(models: Path) -> Iterator[TeacherServer]:
    server = TeacherServer(TransformersPolicy.load(models / "teacher"))
    yield server
    server.stop()


def served(models: Path, server: TeacherServer, **changes: Any) -> Config:
    teacher = {"model": "teacher", "url": server.url} | changes.pop("teacher", {})
    return config(models, teacher=teacher, **changes)


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    with Store.open_read_only(folder) as store:
        return [event for _, one, event in store.events() if one == kind]


def lies(answer: bytes) -> list[bytes]:
    """The answer, with numbers that no log probability has, of other tokens, without an end, and of no kind at all."""
    body = answer.partition(b"\r\n\r\n")[2]
    numbers = (b"0.5", b"NaN", b"1" + b"0" * 400)
    changed = [body.replace(b'"logprob": -', b'"logprob": ' + number + b', "x": -') for number in numbers]
    renamed = body.replace(b'"prompt_token_ids": [', b'"prompt_token_ids": [1, ')
    return [with_length(lie) for lie in (*changed, renamed, b"<html>", b'{"choices": []}')]


def check_unscored(folder: Path, listener: Listener, *, updates: int) -> None:
    """Every rollout with a wrong answer is whole in the ledger, without a score, and none of its turns was trained."""
    wrong = {event["rollout"]: event for event in events(folder, WRONG_ANSWER)}
    assert wrong
    with Store.open_read_only(folder) as store:
        assert (store.updates, store.account().adds_up) == (updates, True)
        turns = [turn for turn in store.turns() if turn.rollout in wrong]
        assert Counter(turn.rollout for turn in turns) == {name: event["turns"] for name, event in wrong.items()}
        assert {why_invalid(turn) for turn in turns} <= {"no_teacher_logprobs", "prompt_truncated"}
        trained = {name for update in range(updates) for name, _ in store.journal(update).selected}
    assert trained.isdisjoint(wrong)
    assert any("a teacher's answer was wrong about r" in sentence for sentence in listener.sentences)
    with redirect_stdout(io.StringIO()) as said, redirect_stderr(said):
        assert main(["audit", "ledger", str(folder)]) == 0, said.getvalue()


def test_a_run_survives_a_lying_teacher(models: Path, server: TeacherServer, tmp_path: Path) -> None:
    """On the virtual clock: the answers about every third rollout are wrong, each in another way."""
    settings, told, count = served(models, server, learner={"updates": 4}), Listener(), [0]

    def spoil(body: dict[str, Any], answer: bytes) -> Iterable[bytes] | None:
        if not (tmp_path / "run" / "weights").exists() or "prompt_logprobs" not in body:
            return None
        count[0] += 1
        return [lies(answer)[count[0] % 6]] if sum(body["prompt"]) % 3 == 0 else None

    server.spoil = spoil
    train_small(tmp_path / "run", settings, observer=told)
    check_unscored(tmp_path / "run", told, updates=4)


def test_a_teacher_that_only_lies_ends_a_run_with_a_sentence(
    models: Path, server: TeacherServer, tmp_path: Path
) -> None:
    """And one that lies at the preflight never starts it."""
    settings = served(models, server)

    def spoil(body: dict[str, Any], answer: bytes) -> Iterable[bytes] | None:
        is_checked = len(server.requests) > 4  # the preflight is over
        return [lies(answer)[0]] if is_checked and "prompt_logprobs" in body else None

    server.spoil = spoil
    with pytest.raises(AlignmentError, match=r"the answers about 4 of the last 4 rollouts of a teacher were wrong"):
        train_small(tmp_path / "run", settings)
    server.spoil = lambda body, answer: [lies(answer)[0]]
    with pytest.raises(AlignmentError, match=r"returned 0\.5 as a log probability"):
        train_small(tmp_path / "other", settings)
    with Store.open_read_only(tmp_path / "other") as store:
        assert store.account().put == 0


class HostileTeacher:
    """Spoils what a server says: it lies about every fifth prompt; of 40 answers one drips, one breaks off."""

    def __init__(self) -> None:
        self.began, self.deeds, self._count, self._lock = False, Counter[str](), 0, Lock()

    def spoil(self, body: dict[str, Any], answer: bytes) -> Iterable[bytes] | None:
        if not self.began or "prompt_logprobs" not in body:
            return None
        with self._lock:
            self._count += 1
            deed = "lie" if sum(body["prompt"]) % 5 == 0 else {2: "drip", 10: "cut"}.get(self._count % 40, "")
            self.deeds[deed] += 1
        if deed == "drip":
            return self._drip(answer)
        if deed == "cut":
            return [answer[: len(answer) // 2]]
        return [lies(answer)[self.deeds["lie"] % 6]] if deed == "lie" else None

    def _drip(self, answer: bytes) -> Iterator[bytes]:
        for place in range(40):
            time.sleep(0.1)
            yield answer[place : place + 1]
        yield answer[40:]


@pytest.mark.slow
def test_a_live_run_survives_a_hostile_world(
    models: Path, server: TeacherServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it at once: the run ends with all updates, its ledger is complete, all is counted, nobody is left."""
    monkeypatch.setenv("HOSTILE_PIDS", str(tmp_path / "pids"))
    before, run, told, hostile = set(children()), tmp_path / "run", Listener(), HostileTeacher()
    server.spoil = hostile.spoil
    settings = served(
        models,
        server,
        clock="live",
        teacher={"timeout_s": 2.0},
        environment={"name": f"{ROOM}:WorldRoom", "timeout_s": 3},
        composer={"batch_size": 4},
        learner={"updates": 12},
    )
    begin_run(settings, run)

    def go_and_come() -> None:
        deadline = time.monotonic() + 240
        while not any((run / "weights").glob("*")) and time.monotonic() < deadline:
            time.sleep(0.05)
        server.stop()  # the preflight is over, and nothing is scored yet
        hostile.began = True
        time.sleep(8)
        server.start()

    thread = Thread(target=go_and_come)
    thread.start()
    try:
        train_small(run, settings, observer=told)
    finally:
        thread.join()
    check_unscored(run, told, updates=12)
    reasons = {event["task"]: event["reason"] for event in events(run, BROKE)}
    assert set(reasons) == set(WorldRoom.HARMFUL)
    for task, words in {
        "hang": "step did not return within 3 s",
        "leave": "WorldRoom.step called sys.exit(0)",
        "vanish": "exit code 5",
        "crash": "SIGSEGV",
        "at once flood": "50,000,000 characters",
    }.items():
        assert words in reasons[task]
    absences = [event["error"] for event in events(run, "teacher_away")]
    for words in ("refused", "no whole answer in 2 s", "broke off"):
        assert any(words in error for error in absences), absences
    assert len(events(run, "teacher_back")) >= len(absences) - 1  # the last one may outlast the run
    assert hostile.deeds.keys() >= {"drip", "cut", "lie"}
    assert set(children()) <= before
    pids = [int(word) for word in (tmp_path / "pids").read_text(encoding="utf-8").split()]
    deadline = time.monotonic() + 30
    while any(map(is_alive, pids)) and time.monotonic() < deadline:  # those of a role that has just ended
        time.sleep(0.1)
    assert [pid for pid in pids if is_alive(pid)] == []
