"""A user's file that hangs while it is imported, or lists tasks without end, is told in a line."""

import signal
import threading
import time
from pathlib import Path

import pytest

from divopd.environments import kind_of, tasks
from divopd.environments.limited import limited
from divopd.errors import InputError

ROOM = """
import time
class Room:
    def reset(self, task): ...
    def step(self, action): ...
    @staticmethod
    def tasks(split):
        while split == "train":
            pass
        return ["a"]
    @staticmethod
    def kind(task):
        try:
            time.sleep(900)
        except BaseException:
            time.sleep(900)
"""
IN_TIME = {"loading_s": 0.2}


@pytest.fixture
def room(tmp_path: Path) -> str:
    (tmp_path / "room.py").write_text(ROOM, encoding="utf-8")
    return f"{tmp_path / 'room.py'}:Room"


def test_a_file_that_hangs_is_told(tmp_path: Path) -> None:
    """An import that waits, in whatever way, ends at the limit with the file and the setting."""
    file = tmp_path / "slow.py"
    told = r"slow.py:Room: importing it did not return within 0.2 s \(setting loading_s"
    for line in ("import time; time.sleep(900)", "while True: pass", "import select; select.select([], [], [], 900)"):
        file.write_text(line, encoding="utf-8")
        with pytest.raises(InputError, match=told):
            tasks(f"{file}:Room", "train", **IN_TIME)


def test_a_list_without_end_and_a_stubborn_kind_are_told(room: str) -> None:
    """Also code that swallows the first interruption."""
    with pytest.raises(InputError, match=r"tasks\('train'\) did not return within 0.2 s"):
        tasks(room, "train", **IN_TIME)
    with pytest.raises(InputError, match=r"kind\('a'\) did not return within 0.2 s"):
        kind_of(room, "a", **IN_TIME)
    assert tasks(room, "test", **IN_TIME) == ["a"]


def test_the_timer_of_somebody_else_goes_on() -> None:
    """As pytest's own: what was left of it is left, and its handler is as before."""
    handler, was = signal.getsignal(signal.SIGALRM), signal.setitimer(signal.ITIMER_REAL, 50)
    try:
        with limited("what is quick", seconds=9):
            time.sleep(0.01)
        left, again = signal.getitimer(signal.ITIMER_REAL)
        assert 40 < left < 50
        assert again == 0
        assert signal.getsignal(signal.SIGALRM) == handler
    finally:
        signal.setitimer(signal.ITIMER_REAL, *was)


def test_other_threads_have_no_limit() -> None:
    """They cannot be interrupted: what they call returns when it returns."""
    done: list[bool] = []

    def wait() -> None:
        with limited("what takes long", seconds=0.01):
            time.sleep(0.05)
            done.append(True)

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    assert done == [True]
