"""Text of environments, servers, models, recordings and files reaches the terminal as text, whatever is in it."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from unicodedata import category

import pytest
from hypothesis import given
from hypothesis import strategies as st

from divopd.cli import main
from divopd.errors import DivopdError
from divopd.printable import MAX_SAID, said, tell
from evil_runs import make_evil_run

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\ud800\ndivopd: all is well\r\x08"
HARMFUL = set("\x1b\x07\x9b\u202e\ud800\r\x08")
ROOM = f"""
EVIL = {EVIL!r}
from divopd.environments import Observation
from divopd.errors import EnvironmentFailure
class Sayer:
    def reset(self, task): return Observation(EVIL, [EVIL])
    def step(self, action): return Observation(EVIL, [EVIL], done=True)
    @staticmethod
    def tasks(split): return [EVIL]
class Breaker(Sayer):
    def reset(self, task): raise EnvironmentFailure(EVIL)
"""


def told(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """All that a command writes to the terminal: as text, and no line of it passes for one of divopd."""
    main(list(map(str, words)))
    out, err = capsys.readouterr()
    assert not HARMFUL & set(out + err)
    assert not any(line.startswith("divopd: all is well") for line in err.splitlines())
    return out + err


def test_what_an_environment_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In its tasks, its observations, when it breaks off and when it cannot be imported."""
    room = tmp_path / "room.py"
    room.write_text(ROOM, encoding="utf-8")
    assert "\\x1b" in told(capsys, "envs", "--tasks", f"{room}:Sayer")
    assert "\\x1b" in told(capsys, "play", f"{room}:Sayer", "--policy", "random")
    assert "\\x1b" in told(capsys, "play", f"{room}:Breaker", "--policy", "random")
    (tmp_path / "bad.py").write_text(f"raise ValueError({EVIL!r})", encoding="utf-8")
    assert "\\x1b" in told(capsys, "play", f"{tmp_path}/bad.py:Room")


def test_what_a_run_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Task, actions of the teacher, tokens, and the configuration beside them."""
    run = make_evil_run(tmp_path / "run\x1b[31m")
    assert "\\x1b" in told(capsys, "why", run, "evil/2")
    told(capsys, "explain", run, 0)
    for command in (
        ["compare", run],
        ["audit", "ledger", run],
        ["audit", "kinds", run],
        ["report", run, "--out", tmp_path / "page.html"],
    ):
        told(capsys, *command)
    (run / "config.yaml").write_text(json.dumps({"method": EVIL}), encoding="utf-8")
    assert "\\x1b" in told(capsys, "train", "--resume", run, "--dry-run")


def test_what_a_recording_or_a_file_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line that is no turn, a key that does not exist, a value that is wrong."""
    (tmp_path / "turns.jsonl").write_text(json.dumps({"rollout": EVIL, "turn": 0}) + "\n", encoding="utf-8")
    assert "\\x1b" in told(capsys, "replay", tmp_path / "turns.jsonl")
    for number, content in enumerate(({EVIL: 1}, {"method": EVIL}, {"learner": {EVIL: 1}})):
        (tmp_path / f"{number}.yaml").write_text(json.dumps(content), encoding="utf-8")
        assert "\\x1b" in told(capsys, "config", tmp_path / f"{number}.yaml")


class _Evil(BaseHTTPRequestHandler):
    """A server that refuses everything in hostile words."""

    def do_GET(self) -> None:
        body = json.dumps({"error": {"message": EVIL}}).encode()
        self.send_response(400)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_what_a_server_says(capsys: pytest.CaptureFixture[str]) -> None:
    """Its reason for refusing is quoted, and harmless."""
    pytest.importorskip("torch", reason="for want of the extra train")
    from divopd.models.openai_policy import OpenAIPolicy

    with HTTPServer(("127.0.0.1", 0), _Evil) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        policy = OpenAIPolicy(f"http://127.0.0.1:{server.server_port}/v1", model=None, timeout_s=10)
        with pytest.raises(DivopdError) as refused:
            _ = policy.model
        server.shutdown()
    tell(refused.value)
    shown = capsys.readouterr().err
    assert "u001b" in shown or "x1b" in shown
    assert not HARMFUL & set(shown)


@given(st.text())
def test_a_message_cannot_pass_for_two(text: str) -> None:
    """Whatever is quoted: no control character but the end of a line, and every later line is set in."""
    first, *rest = said(text).split("\n")
    assert all(line.startswith("  ") for line in rest)
    assert not [
        letter for letter in "".join([first, *rest]) if letter != "\t" and category(letter) in ("Cc", "Cf", "Cs")
    ]


def test_a_message_is_capped() -> None:
    """A quotation of 100 MB is cut before it is looked at."""
    assert len(said("x" * 10**8)) < MAX_SAID + 10
