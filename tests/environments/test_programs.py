"""Agent programs as the pool sees them: a program that hangs, floods, forks or dies costs its rollout and nothing else.

Programs here are shell scripts and a few lines of Python: they begin at once.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from divopd.environments import tasks
from divopd.environments.pool import Answer, open_pool
from divopd.environments.programs import process
from divopd.environments.programs.pool import ProgramPool
from divopd.environments.programs.process import MOST_OUTPUT, Outcome, read_outcome
from divopd.environments.programs.source import Program
from divopd.errors import EnvironmentFailure, InputError, ProgramFailure
from waiting import processes_of

ASKER = """
import json, os, urllib.request
body = json.dumps({"messages": [{"role": "user", "content": "hello"}]}).encode()
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
said = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
json.dump({"success": said == "yes", "reward": 0.25}, open(os.environ["OUTCOME_FILE"], "w"))
"""
YES = json.dumps({"status": 200, "body": {"choices": [{"message": {"role": "assistant", "content": "yes"}}]}})


@contextmanager
def pool_of(*command: str, timeout_s: float = 30.0, size: int = 1) -> Iterator[ProgramPool]:
    with closing(ProgramPool(command, {"t": {"id": "t", "door": 3}}, size=size, timeout_s=timeout_s)) as pool:
        yield pool


def shell(script: str, **settings: Any) -> Any:
    return pool_of("sh", "-c", script, **settings)


def asked(pool: ProgramPool, method: Any, argument: str, place: int = 0) -> Answer:
    pool.submit(place, method, argument)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for answer in pool.collect(timeout_s=1.0):
            return answer
    raise AssertionError("no answer")


def failure_of(script: str, **settings: Any) -> ProgramFailure:
    with shell(script, **settings) as pool:
        answer = asked(pool, "reset", "t")
        assert isinstance(answer.failure, ProgramFailure)
        return answer.failure


def gone(condition: Callable[[], object]) -> bool:
    until = time.monotonic() + 20
    while condition() and time.monotonic() < until:
        time.sleep(0.02)
    return not condition()


def test_a_program_asks_and_ends_with_its_outcome() -> None:
    """What it asks is an observation, and so is its end."""
    with pool_of(sys.executable, "-c", ASKER) as pool:
        first = asked(pool, "reset", "t").value
        last = asked(pool, "step", YES).value
    assert not isinstance(first, list)
    assert not isinstance(last, list)
    assert first is not None
    assert last is not None
    request = json.loads(first.text)
    assert (request["messages"], first.done) == ([{"role": "user", "content": "hello"}], False)
    assert (last.done, last.success, last.reward) == (True, True, 0.25)
    assert json.loads(last.text)["undelivered"] == []


def test_a_program_has_its_task_and_no_proxy_before_the_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """The task file is the whole line; loopback is excepted from whatever proxy the user has."""
    monkeypatch.setenv("NO_PROXY", "intern.example")
    script = 'cat "$TASK_FILE"; echo; echo "$NO_PROXY $no_proxy $OPENAI_BASE_URL"; exit 3'
    told = failure_of(script).told["output"].split("\n")
    assert json.loads(told[0]) == {"id": "t", "door": 3}
    assert told[1].startswith("intern.example,127.0.0.1,localhost 127.0.0.1,localhost http://127.0.0.1:")


def test_no_outcome_means_failed_and_an_unreadable_one_breaks_off() -> None:
    """A program that ends well without a word has failed at its task; nonsense is no outcome."""
    with shell("exit 0") as pool:
        seen = asked(pool, "reset", "t").value
    assert not isinstance(seen, list)
    assert seen is not None
    assert (seen.done, seen.success, seen.reward) == (True, False, 0.0)
    assert "OUTCOME_FILE holds b'nonsense'" in str(failure_of('printf nonsense > "$OUTCOME_FILE"'))
    assert read_outcome(b'{"success": true}') == Outcome(True, 1.0)
    for wrong in (b"[1]", b'{"success": 1}', b'{"success": true, "reward": NaN}', b"9" * 70_000):
        with pytest.raises(EnvironmentFailure, match="expected"):
            read_outcome(wrong)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo so it goes; exit 7", "the program broke off: it ended with exit code 7; its last words: so it goes"),
        ("kill -SEGV $$", "it was killed by SIGSEGV"),
    ],
)
def test_a_program_that_dies_costs_its_rollout(script: str, reason: str) -> None:
    """The reason says how, with its last words; the next rollout has a new process."""
    with shell(script) as pool:
        for _ in range(2):
            answer = asked(pool, "reset", "t")
            assert reason in str(answer.failure)


def test_a_program_that_is_not_there_says_so() -> None:
    """It is told as what it is."""
    with pool_of("no-such-program-here") as pool:
        failure = asked(pool, "reset", "t").failure
    assert "it could not be started; its last words: cannot start no-such-program-here: No such file" in str(failure)


def test_a_program_that_hangs_is_killed_with_all_that_it_started() -> None:
    """Also what ignores signals, and what has left its process group."""
    mark = f"6{os.getpid()}.25"
    script = f"trap '' TERM INT HUP; setsid sleep {mark} & sleep {mark} & setsid setsid sleep {mark}; sleep {mark}"
    failure = failure_of(script, timeout_s=1.5)
    assert "did not end within 1.5 s" in str(failure)
    assert gone(lambda: processes_of(f"sleep {mark}"))


def test_a_program_that_ends_leaves_no_child_behind() -> None:
    """A server that it started in the background ends with it, and does not hold up the rollout."""
    mark = f"7{os.getpid()}.25"
    with shell(f"setsid sleep {mark} & sleep {mark} & exit 0") as pool:
        seen = asked(pool, "reset", "t").value
    assert not isinstance(seen, list)
    assert seen is not None
    assert seen.done
    assert gone(lambda: processes_of(f"sleep {mark}"))


def test_a_program_that_floods_is_cut_to_its_last_words() -> None:
    """Five megabytes of output: what is kept has a bound, and the program waits while nobody listens."""
    failure = failure_of("yes abcdefghijklmno | head -c 5000000; echo the end; exit 1")
    assert len(failure.told["output"]) <= MOST_OUTPUT
    assert failure.told["output"].endswith("the end\n")


def test_neighbours_of_a_program_that_dies_go_on() -> None:
    """Two places, one of which dies while the other waits for its answer."""
    script = ASKER.replace('"hello"', 'json.load(open(os.environ["TASK_FILE"]))["id"]')
    killed = "import os, signal, time; time.sleep(0.3); os.kill(os.getpid(), signal.SIGKILL)"
    code = f'import json, os\nif json.load(open(os.environ["TASK_FILE"]))["id"] == "bad":\n  {killed}\n{script}'
    both = {name: {"id": name} for name in ("good", "bad")}
    with closing(ProgramPool([sys.executable, "-c", code], both, size=2, timeout_s=60)) as pool:
        pool.submit(1, "reset", "bad")
        pool.submit(0, "reset", "good")
        answers: dict[int, Answer] = {}
        while len(answers) < 2:
            answers |= {answer.place: answer for answer in pool.collect(timeout_s=1.0)}
        assert "SIGKILL" in str(answers[1].failure)
        last = asked(pool, "step", YES).value
    assert not isinstance(last, list)
    assert last is not None
    assert last.success


def test_a_program_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    """However that dies."""
    mark = f"8{os.getpid()}.25"
    starter = (
        "import time\nfrom divopd.environments.programs.process import ProgramProcess\n"
        f"ProgramProcess(['sh', '-c', 'sleep {mark}; true'], {{'id': 't'}}, key='k{mark}', base_url='u')\n"
        "print('ready', flush=True)\ntime.sleep(60)\n"
    )
    outer = subprocess.Popen(
        [sys.executable, "-c", starter], stdout=subprocess.PIPE, env=os.environ | {"TMPDIR": str(tmp_path)}
    )
    assert outer.stdout is not None
    assert outer.stdout.readline() == b"ready\n"
    assert not gone(lambda: not processes_of(f"sleep {mark}")) or processes_of(f"sleep {mark}")
    outer.kill()
    outer.wait()
    outer.stdout.close()
    assert gone(lambda: processes_of(f"sleep {mark}"))


def test_keys_of_two_programs_differ_and_the_environment_of_others_is_left_alone() -> None:
    """Only what has the key of an attempt is swept away."""
    other = subprocess.Popen(["sleep", "60"], env={process.KEY: "sk-another"})
    process.sweep("sk-mine")
    assert other.poll() is None
    process.sweep("sk-another")
    assert other.wait(10) == -9


# ── tasks and commands ────────────────────────────────────────────────────────────────────────────────────────────


def test_tasks_are_lines_with_an_id(tmp_path: Path) -> None:
    """In the order of the file; numbers are names, too."""
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"id": "b/2", "x": 1}\n\n{"id": 7, "kind": "hard"}\n')
    settings = {"command": ["true"], "tasks_by_split": {"train": str(file), "test": str(file)}}
    assert tasks("program", "train", **settings) == ["b/2", "7"]
    program = Program(**settings)
    assert [program.kind(task) for task in ("b/2", "7")] == ["b", "hard"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"id": "a"}\n{"id": "a"}', "the id 'a' was there before"),
        ("[1]", "expected 1 to 200 characters"),
        ('{"name": "a"}', "expected 1 to 200 characters"),
        ("{", "no JSON"),
        ("", "no task in it"),
    ],
)
def test_a_wrong_file_of_tasks_is_told_with_its_line(tmp_path: Path, text: str, reason: str) -> None:
    """Before anything is started."""
    file = tmp_path / "tasks.jsonl"
    file.write_text(text)
    with pytest.raises(InputError, match=reason):
        Program(command=["true"], tasks_by_split={"train": str(file)}).tasks("train")


def test_a_python_function_is_a_program(tmp_path: Path) -> None:
    """It gets the task and returns the outcome; it runs in a process of its own, which may import what lies beside."""
    (tmp_path / "beside.py").write_text("WANTED = 'go'\n")
    agent = tmp_path / "agent.py"
    agent.write_text(
        "from beside import WANTED\ndef act(task):\n    return {'success': task['do'] == WANTED, 'reward': 2}\n"
    )
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"id": "a", "do": "go"}\n')
    settings = {"command": f"{agent}:act", "tasks_by_split": {"train": str(file)}}
    with closing(open_pool("program", settings, size=1)) as pool:
        assert isinstance(pool, ProgramPool)
        seen = asked(pool, "reset", "a").value
    assert not isinstance(seen, list)
    assert seen is not None
    assert (seen.success, seen.reward) == (True, 2.0)


def test_a_command_must_be_words() -> None:
    """A line for a shell is none: what would be quoted how?"""
    for wrong in ("node agent.js", [], ["node", ""]):
        with pytest.raises(InputError, match=r"environment\.command is"):
            Program(command=wrong).argv()
