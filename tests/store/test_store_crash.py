"""Promises 1 to 4 with real processes that are killed, and with system calls that fail."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import store_processes
import training_processes
from store_processes import Log, fill, make_rollout, read_log, unscored
from training_processes import WORK_UPDATES

from divopd.audits.ledger import audit_ledger
from divopd.records import decode_update
from divopd.run.durable_folder import numbered_folders
from divopd.run.folder import RunFolder
from divopd.store import Store, StoreReader
from doubles.hashing_learner import HashingLearner

EXPLORERS = ("e1", "e2")
LIMIT_S = 120  # for anything that must end
ROLES = dict.fromkeys(("explore", "settle", "teach", "hold"), store_processes) | {
    "learn": training_processes,
    "work": training_processes,
}
HERE = Path(__file__).parent
ENVIRONMENT = os.environ | {
    "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")])
}


def start(
    role: str, run: Path, name: str, *, prefix: tuple[str, ...] = (), stdin: int | None = None
) -> subprocess.Popen[bytes]:
    """Start a role; what it says on stderr goes to RUN/NAME.err."""
    command = [*prefix, sys.executable, str(ROLES[role].__file__), role, str(run), name]
    with (run / f"{name}.err").open("ab") as errors:
        return subprocess.Popen(command, stdin=stdin, stderr=errors, bufsize=0, env=ENVIRONMENT)


def test_a_line_that_a_kill_cut_is_no_claim(tmp_path: Path) -> None:
    """Of the processes' own logs: such a line is not read, and the next life does not append to it."""
    file = tmp_path / "e1.log"
    file.write_text('["try", "a", 0]\n["put", "a')
    assert read_log(file) == [["try", "a", 0]]
    Log(file).write("put", "a", 0)
    assert read_log(file) == [["try", "a", 0], ["put", "a", 0]]


def check_promises(run: Path) -> None:
    """Everything that a process has ever claimed in its log is true in the store, and the ledger is exact."""
    lines = [line for log in sorted(run.glob("*.log")) for line in read_log(log)]
    with Store.open(run) as store:
        audit_ledger(store)
        journal = [store.journal(update) for update in range(store.updates)]
        for _, name, version in (line for line in lines if line[0] == "put"):
            check_whole(store, name, version)
        tried = {line[1]: line[2] for line in lines if line[0] == "try"}
        assert {turn.rollout for turn in store.stored_turns()} <= tried.keys()
        check_settled(store)
    trained_in = Counter(key for entry in journal for key in entry.selected)
    assert not trained_in or max(trained_in.values()) == 1
    served: dict[int, set[str]] = {}
    for _, update, digest, keys in (line for line in lines if line[0] == "train"):
        assert [tuple(key) for key in keys] == journal[update].selected
        served.setdefault(update, set()).add(digest)
    assert all(len(digests) == 1 for digests in served.values())
    check_records(run, lines)
    check_checkpoints(run, lines, tried)


def check_records(run: Path, lines: list[list[Any]]) -> None:
    """No update is skipped or told twice; what was told is what was recorded; tokens count since the start."""
    told = [decode_update(data) for _, _, data in (line for line in lines if line[0] == "told")]
    with Store.open_read_only(run) as store:
        records = store.update_records()
        assert list(records) == list(range(len(records)))
        assert len(records) in (store.updates, store.updates - 1)
    trained = accumulate(record.batch.tokens for record in records.values())
    assert [record.spent.trained_tokens for record in records.values()] == list(trained)
    assert len({record.update for record in told}) == len(told)
    assert all(records[record.update] == record for record in told)


def check_checkpoints(run: Path, lines: list[list[Any]], tried: dict[str, int]) -> None:
    """Each has the weights that its updates give, and all that a resume from it needs is in the store."""
    kept = [int(folder.name) + 1 for folder in numbered_folders(RunFolder(run).checkpoints)]
    saved = [line[1] + 1 for line in lines if line[0] == "saved"]
    assert max(saved, default=0) <= max(kept, default=0)
    with Store.open_read_only(run) as store:
        journal = [store.journal(update) for update in range(store.updates)]
        acknowledged, settled = checkpointed(store)
        assert settled <= min(kept, default=0)
        assert acknowledged <= max(kept, default=0) <= len(store.update_records())
        for update in range(min(kept, default=0), store.updates):
            assert [turn.key for turn in store.batch(update).turns] == journal[update].selected
    for version in kept:
        expected, found = HashingLearner(), HashingLearner()
        for entry in journal[:version]:
            turns = [make_rollout(name, version=tried[name]).turns[turn] for name, turn in entry.selected]
            expected.update(turns, entry.weights)
        state = found.load(RunFolder(run).checkpoints / f"{version - 1:06d}")
        assert (found.digest, state["version"]) == (expected.digest, version)


def checkpointed(store: StoreReader) -> tuple[int, int]:
    """How many updates the store knows to be in a checkpoint, and how many have had their tokens dropped."""
    return store._db.execute("SELECT acknowledged_updates, settled_updates FROM state").fetchone()


def check_settled(store: StoreReader) -> None:
    """Tokens are gone if the turn left by a settled update, and there if it did not: nothing in between."""
    kept = {arrival for (arrival,) in store._db.execute("SELECT arrival FROM payloads")}
    for turn in store.stored_turns():
        assert (turn.arrival in kept) != store.is_settled(turn)


def check_whole(store: Store, name: str, version: int) -> None:
    """An acknowledged rollout is there with all its turns, the teacher's too, and all tokens that were not settled."""
    rollout = make_rollout(name, version=version)
    turns, expected = store.turns_of(name), rollout.turns
    assert store.teacher_turns(name) == rollout.teacher_turns
    assert [turn.turn for turn in turns] == [turn.turn for turn in expected]
    for stored, turn in zip(turns, expected, strict=True):
        if not store.is_settled(stored):
            assert store.whole(stored).student_logprobs == turn.student_logprobs


def chaos(run: Path, *, kills: int, seed: int) -> None:
    """Two explorers and a learner; again and again one of them is killed: as soon as it starts, or amid its work."""
    rng = random.Random(seed)
    Store.create(run / "store.db").close()
    roles = dict.fromkeys(EXPLORERS, "explore") | {"learner": "learn"}
    processes = {name: start(role, run, name) for name, role in roles.items()}
    begun = dict.fromkeys(roles, 0)
    try:
        for _ in range(kills):
            name = rng.choice(list(roles))
            if rng.random() < 0.7:
                wait_until(lambda n=name: lines_of(run, n)["put"] + lines_of(run, n)["train"] > begun[n])
            time.sleep(rng.expovariate(1 / 0.1))
            processes[name].send_signal(signal.SIGKILL)
            assert processes[name].wait(LIMIT_S) == -signal.SIGKILL, (run / f"{name}.err").read_text()
            begun[name] = lines_of(run, name)["put"] + lines_of(run, name)["train"]
            processes[name] = start(roles[name], run, name)
        saved = lines_of(run, "learner")["saved"]
        wait_until(lambda: lines_of(run, "learner")["saved"] > saved + 2)
        (run / "stop").touch()
        for name, process in processes.items():
            assert process.wait(LIMIT_S) == 0, (run / f"{name}.err").read_text()
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


def lines_of(run: Path, name: str) -> Counter[str]:
    """How often a process has said what."""
    return Counter(line[0] for line in read_log(run / f"{name}.log"))


def wait_until(condition: Callable[[], bool], *, every_s: float = 0.02) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(every_s)


@pytest.mark.crash
def test_killed_processes_lose_and_double_nothing(tmp_path: Path) -> None:
    """Explorers and a learner killed at random, also while they start and resume: every promise holds afterwards."""
    chaos(tmp_path, kills=20, seed=1)
    check_promises(tmp_path)


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_killed_for_minutes(tmp_path: Path, seed: int) -> None:
    """The same for longer."""
    chaos(tmp_path, kills=200, seed=seed)
    check_promises(tmp_path)


@pytest.mark.crash
def test_what_a_killed_teacher_held_is_scored_by_the_others(tmp_path: Path) -> None:
    """One dies while it holds rollouts, others at random: all are scored, each is put once, and no lease is left."""
    rng, names = random.Random(3), [f"r.{number}" for number in range(60)]
    with Store.create(tmp_path / "store.db") as store:
        for name in names:
            store.offer(unscored(make_rollout(name)), generated_tokens=5)
    holder = start("hold", tmp_path, "holder")
    wait_until(lambda: lines_of(tmp_path, "holder")["claimed"] == 1)
    kill(holder)
    [[_, held]] = read_log(tmp_path / "holder.log")
    assert held == names[:-11:-1]  # the newest
    teachers = {name: start("teach", tmp_path, name) for name in ("t1", "t2", "t3")}
    for _ in range(4):
        name = rng.choice(list(teachers))
        said = lines_of(tmp_path, name)["try"]
        wait_until(lambda n=name, s=said: lines_of(tmp_path, n)["try"] > s or teachers[n].poll() is not None)
        kill(teachers[name])
        teachers[name] = start("teach", tmp_path, name)
    assert [process.wait(LIMIT_S) for process in teachers.values()] == [0, 0, 0]
    check_promises(tmp_path)
    with Store.open(tmp_path) as store:
        assert {turn.rollout for turn in store.stored_turns()} == set(names)
        assert [kind for (kind,) in store._db.execute("SELECT kind FROM records WHERE kind <> 'teacher_turns'")] == []
    put = Counter(line[1] for name in teachers for line in read_log(tmp_path / f"{name}.log") if line[0] == "put")
    assert max(put.values()) == 1


def kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


@pytest.mark.crash
def test_a_killed_settle_drops_the_tokens_of_an_update_or_none(tmp_path: Path) -> None:
    """Killed while it settles, again and again: what was settled is gone, all else is there; fates and journal stay."""
    updates, rng = 30, random.Random(7)
    with Store.create(tmp_path / "store.db") as store:
        store.acknowledge(updates - 1, epoch=fill(store, updates=updates))
        expected = [store.batch(update) for update in range(updates)]
        fates = {turn.key: turn.fate for turn in store.stored_turns()}

    def check() -> None:
        told = lines_of(tmp_path, "learner")
        with Store.open_read_only(tmp_path) as reader:
            audit_ledger(reader)
            check_settled(reader)
            settled = checkpointed(reader)[1]
            assert told["settled"] <= settled <= told["settled"] + 1
            assert {turn.key: turn.fate for turn in reader.stored_turns()} == fates
            assert [reader.journal(update) for update in range(updates)] == [batch.entry for batch in expected]
            assert [reader.batch(update) for update in range(settled, updates)] == expected[settled:]

    for _ in range(10):
        with start("settle", tmp_path, "learner", stdin=subprocess.PIPE) as process:
            for _ in range(rng.randrange(3)):
                ask_to_settle(process, tmp_path, wait_for="settled")
            ask_to_settle(process, tmp_path, wait_for="settle")
            time.sleep(rng.uniform(0, 0.006))
            process.kill()
        check()
    with start("settle", tmp_path, "learner", stdin=subprocess.PIPE) as process:
        for _ in range(updates - lines_of(tmp_path, "learner")["settled"]):
            ask_to_settle(process, tmp_path, wait_for="settled")
    check()
    assert lines_of(tmp_path, "learner")["settled"] == updates


def ask_to_settle(process: subprocess.Popen[bytes], run: Path, *, wait_for: str) -> None:
    """Have the next update settled, and wait until the process says that it begins, or that it is done."""
    before = lines_of(run, "learner")[wait_for]
    assert process.stdin
    process.stdin.write(b"\n")
    wait_until(lambda: lines_of(run, "learner")[wait_for] > before, every_s=0.0005)


# ── every system call ─────────────────────────────────────────────────────────────────────────────────────────────

needs_strace = pytest.mark.skipif(not shutil.which("strace"), reason="for want of strace")
CALLS = "pwrite64,fdatasync,fsync,ftruncate,unlink,unlinkat,link,linkat,rename,renameat"


def work_with(run: Path, *injection: str) -> int:
    """Do a fixed amount of work while a system call is struck; returns the exit code of the work."""
    run.mkdir(exist_ok=True)
    prefix = ("strace", "-f", "-qq", "-o", str(run / "trace"), "-e", f"trace={CALLS}", *injection)
    return start("work", run, "w", prefix=prefix).wait(LIMIT_S)


def calls_of_the_work(folder: Path) -> list[tuple[str, int]]:
    """(system call, how many times so far) for each that the work makes; strace counts each kind for itself."""
    assert work_with(folder / "whole") == 0
    names = re.findall(r"^\d+ +(\w+)\(", (folder / "whole" / "trace").read_text(), flags=re.MULTILINE)
    return [(name, names[: place + 1].count(name)) for place, name in enumerate(names)]


def finish_and_check(run: Path, undisturbed: Path) -> None:
    """The cause is gone: a new process does the same work to its end, every promise holds, and it ends the same."""
    assert start("work", run, "w").wait(LIMIT_S) == 0, (run / "w.err").read_text()
    check_promises(run)
    assert end_of(run) == end_of(undisturbed)
    shutil.rmtree(run)


def end_of(run: Path) -> tuple[Any, ...]:
    """The ledger's digest, its account, what checkpoints hold, and the weights."""
    learner, newest = HashingLearner(), RunFolder(run).newest_checkpoint()
    assert newest is not None
    learner.load(newest)
    with Store.open_read_only(run) as store:
        assert store.updates == WORK_UPDATES
        return store.batch(WORK_UPDATES - 1).digest, store.account(), checkpointed(store)[0], learner.digest


@needs_strace
@pytest.mark.crash
@pytest.mark.slow
def test_killed_at_every_system_call(tmp_path: Path) -> None:
    """Killed at any write, sync, link or rename: what was acknowledged is there, and the work can be finished."""
    calls = calls_of_the_work(tmp_path)
    assert {"pwrite64", "fdatasync", "fsync", "link"} <= {call for call, _ in calls}
    for place, (call, number) in enumerate(calls):
        run = tmp_path / str(place)
        assert work_with(run, "-e", f"inject={call}:signal=KILL:when={number}") != 0
        if (run / "store.db").exists():
            check_promises(run)
        finish_and_check(run, tmp_path / "whole")


@needs_strace
@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
@pytest.mark.parametrize("when", ["{}", "{}+"], ids=["once", "from then on"])
def test_failing_system_calls(tmp_path: Path, error: str, when: str) -> None:
    """A write or a sync fails, once or from then on: a typed error in time, and the promises hold after repair."""
    calls = [call for call in calls_of_the_work(tmp_path) if call[0] in ("pwrite64", "fdatasync", "fsync")]
    for place, (call, number) in enumerate(calls[::3]):
        run = tmp_path / str(place)
        code = work_with(run, "-e", f"inject={call}:error={error}:when={when.format(number)}")
        said = (run / "w.err").read_text().splitlines()
        assert code == 0 or said[-1].startswith("divopd.errors."), said
        if (run / "store.db").exists():
            check_promises(run)
        finish_and_check(run, tmp_path / "whole")


@needs_strace
@pytest.mark.crash
def test_a_store_that_cannot_be_written_does_not_appear(tmp_path: Path) -> None:
    """One of the last writes before a new store gets its name fails: a sound store, or a typed error and none."""
    calls = create_under_strace(tmp_path / "whole")[1]
    named = next(place for place, call in enumerate(calls) if call.startswith("link"))
    writes = sum(call.startswith("pwrite64") for call in calls[:named])
    for number in range(writes - 3, writes + 1):
        run = tmp_path / str(number)
        done, _ = create_under_strace(run, "-e", f"inject=pwrite64:error=EIO:when={number}")
        assert done.returncode == 0 or "divopd.errors.StoreError" in done.stderr
        assert (run / "store.db").exists() == (done.returncode == 0)
        if done.returncode == 0:
            with Store.open(run) as store:
                store.check()


@needs_strace
@pytest.mark.crash
def test_a_new_store_is_synced_before_it_gets_its_name(tmp_path: Path) -> None:
    """The file is synced before the link that names it, the folder after: a power cut leaves a whole store or none."""
    _, calls = create_under_strace(tmp_path)
    calls = [call for call in calls if "partial" in call or "sync" in call]
    named = next(place for place, call in enumerate(calls) if call.startswith("link"))
    assert calls[named - 1].startswith("fsync")
    assert ".partial>" in calls[named - 1]
    assert calls[named + 1].startswith("fsync")
    assert f"{tmp_path}>" in calls[named + 1]


def create_under_strace(run: Path, *injection: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Create a store in a process of its own; (how it ended, its system calls in order)."""
    run.mkdir(exist_ok=True)
    trace = run / "trace"
    script = "import sys; from divopd.store import Store; Store.create(sys.argv[1]).close()"
    traced = ["strace", "-f", "-y", "-o", str(trace), "-e", f"trace={CALLS}", *injection]
    command = [*traced, sys.executable, "-c", script, str(run / "store.db")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return done, [line.split(maxsplit=1)[1] for line in trace.read_text().splitlines()]


@needs_strace
@pytest.mark.crash
def test_a_put_is_synced_before_it_returns(tmp_path: Path) -> None:
    """Between the last write of a put and its acknowledgement the log is synced: a power cut takes nothing back."""
    script = (
        "import os, sys; from store_processes import Store, make_rollout\n"
        "store = Store.create(sys.argv[1])\n"
        "for count in range(5): store.put(make_rollout(f'e.{count}')); os.write(1, b'acknowledged')"
    )
    trace = tmp_path / "trace"
    command = [
        "strace",
        "-f",
        "-y",
        "-o",
        str(trace),
        "-e",
        "trace=pwrite64,fdatasync,fsync,write",
        sys.executable,
        "-c",
    ]
    subprocess.run(
        [*command, script, str(tmp_path / "store.db")], check=True, env=ENVIRONMENT, stdout=subprocess.DEVNULL
    )
    calls = [line for line in trace.read_text().splitlines() if "store.db-wal>" in line or "acknowledged" in line]
    acknowledged = [place for place, line in enumerate(calls) if "acknowledged" in line]
    assert len(acknowledged) == 5
    assert all("sync(" in calls[place - 1] for place in acknowledged)
