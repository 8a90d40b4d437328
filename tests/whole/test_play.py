"""`divopd play`: a person or a script acts in the terminal, and no observation can steer it."""

import argparse
import io
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from divopd.cli import main, play
from divopd.errors import InputError
from divopd.printable import MAX_SHOWN, printable

ROOM = f"{Path(__file__).parents[2]}/examples/counting_room/counting_room.py:CountingRoom"


def run_play(*arguments: str, keys: str = "", monkeypatch: pytest.MonkeyPatch | None = None) -> None:
    parser = argparse.ArgumentParser()
    play.add_arguments(parser)
    if monkeypatch:
        monkeypatch.setattr(sys, "stdin", io.StringIO(keys))
    assert play.run(parser.parse_args(arguments)) == 0


def test_a_person_plays(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Typed lines are actions; `:actions` lists them; a line that is no action is said to be none."""
    run_play(ROOM, "7-6", keys="\n:actions\nfly\ndown\nswitch\n", monkeypatch=monkeypatch)
    shown = capsys.readouterr().out
    assert "up\ndown\nswitch" in shown
    assert "(not understood)" in shown
    assert "success after 3 of 30 turns, reward 1" in shown


@pytest.mark.parametrize("keys", ["down\n:quit\nswitch\n", "down\n"])
def test_a_person_leaves(keys: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`:quit`, or the end of the input, ends the rollout without an error."""
    run_play(ROOM, "7-6", keys=keys, monkeypatch=monkeypatch)
    assert "not solved after 1 of 30 turns" in capsys.readouterr().out


def test_expert_plays(capsys: pytest.CaptureFixture[str]) -> None:
    """`--policy expert` solves an evaluation task of its own choice."""
    run_play("alfworld-small", "--policy", "expert")
    assert "success after" in capsys.readouterr().out


def test_random_policy_depends_on_the_seed_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """The same seed gives the same rollout, another seed another."""
    shown = []
    for seed in ("1", "1", "2"):
        run_play("alfworld-small", "small/test/00003", "--policy", "random", "--seed", seed)
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] != shown[2]


def test_observation_cannot_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Escape sequences, markup and direction marks of an environment, and of a task name, are shown, not obeyed."""
    file = tmp_path / "hostile.py"
    file.write_text(
        "from divopd.environments import Observation\n"
        "EVIL = '\\x1b[2J\\x1b]0;owned\\x07 [bold red]x[/] \\u202e \\x9b31m'\n"
        "class Hostile:\n"
        "    def reset(self, task): return Observation(EVIL, [EVIL])\n"
        "    def step(self, action): return Observation(EVIL, done=True)\n"
    )
    run_play(f"{file}:Hostile", "a\x1b[31m", "--policy", "random")
    shown = capsys.readouterr().out
    assert not set(shown) & set("\x1b\x07\x9b\u202e")
    assert "\\x1b[2J" in shown
    assert "[bold red]x[/]" in shown
    assert "task a\\x1b[31m" in shown


@given(st.text())
def test_printable_text_is_printable(text: str) -> None:
    """Whatever the text, what is shown has no control character but newline and tab, and can be encoded."""
    shown = printable(text)
    assert all(letter in "\n\t" or letter.isprintable() or letter.isspace() or ord(letter) > 0x9F for letter in shown)
    shown.encode("utf-8")


def test_printable_is_capped() -> None:
    """An endless observation does not flood the terminal."""
    assert len(printable("x" * 10_000_000)) < MAX_SHOWN + 10


def test_settings_and_their_errors() -> None:
    """`--set` values are JSON where they can be, text otherwise; what is no pair is an error."""
    assert play.read_settings(["a=1", "b=x", 'c="y"', "d=p=q"]) == {"a": 1, "b": "x", "c": "y", "d": "p=q"}
    with pytest.raises(InputError, match="KEY=VALUE"):
        play.read_settings(["nonsense"])


def test_what_cannot_be_played_is_an_error() -> None:
    """A wrong task, an unknown environment, and an expert where there is none are one-line errors."""
    for arguments in (["alfworld-small", "nope"], ["nowhere"], ["gym", "--policy", "expert"]):
        with pytest.raises(InputError):
            run_play(*arguments)


def test_shopping_in_a_browser_is_for_webshop(capsys: pytest.CaptureFixture[str]) -> None:
    """--web elsewhere is told; in WebShop a page opens (tests/test_webshop_web.py uses it)."""
    assert main(["play", "alfworld-small", "--web"]) == 2
    assert "--web is for WebShop" in capsys.readouterr().err
