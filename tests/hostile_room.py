"""An environment for tests that does whatever harm its task or an action names, at the reset or at the step."""

import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

from divopd.environments import Observation
from divopd.errors import EnvironmentFailure

LENGTH = struct.Struct(">I")  # before a message of a worker


def hang() -> object:
    while True:
        time.sleep(3600)


def hold() -> object:
    """Hang without ever letting another thread of the process run; a child of its own hangs beside it."""
    child = subprocess.Popen(["sleep", "3600"])
    Path(os.environ["HOSTILE_PIDS"]).write_text(f"{os.getpid()} {child.pid} ", encoding="utf-8")
    sys.setswitchinterval(3600)
    while True:
        pass


def garble(words: bytes) -> object:
    """Write to every socket of the process: one of them is the pool's."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                os.write(int(name), words)
        except OSError:
            continue
    return hang()


def cut_off() -> object:
    os.closerange(3, 256)
    return hang()


def say_much() -> object:
    for _ in range(1000):
        print("x" * 100_000)
        print("y" * 1000, file=sys.stderr)
    return Observation("quiet again")


def peak_memory() -> str:
    """In kB. Not by getrusage: what the parent had at the start of the process counts there."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return status.partition("VmHWM:")[2].split()[0]


DEEDS = {
    "hang": hang,
    "hold": hold,
    "leave": lambda: sys.exit(0),
    "vanish": lambda: os._exit(5),
    "crash": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "divide": lambda: 1 / 0,
    "interrupt": lambda: (_ for _ in ()).throw(KeyboardInterrupt),
    "break": lambda: (_ for _ in ()).throw(EnvironmentFailure("the roof\x1b[2J\nfell in")),
    "bytes": lambda: Observation(b"You are here."),  # type: ignore[arg-type]
    "tuple": lambda: ("You are here.", {}),
    "surrogate": lambda: Observation("You are \ud800."),
    "surrogate action": lambda: Observation("You are here.", ["go", "\udfff"]),
    "not a number": lambda: Observation("You are here.", reward=float("nan")),
    "too large a number": lambda: Observation("You are here.", reward=10**400),
    "flood": lambda: Observation("x" * 50_000_000),
    "flood of actions": lambda: Observation("x", ["go"] * 1_000_000),
    "no JSON": lambda: garble(LENGTH.pack(4) + b"what"),
    "no message": lambda: garble(LENGTH.pack(2) + b"[]"),
    "no observation": lambda: garble(LENGTH.pack(18) + b'{"seen": {"a": 1}}'),
    "nested": lambda: garble(LENGTH.pack(200_000) + b"[" * 200_000),
    "endless message": lambda: garble(LENGTH.pack(2**32 - 1)),
    "cut off": cut_off,
    "say much": say_much,
    "pid": lambda: Observation(str(os.getpid())),
    "memory": lambda: Observation(peak_memory()),
}


class HostileRoom:
    """Tasks and actions that are no deed are answered with what was said."""

    @staticmethod
    def tasks(split: str) -> list[str]:
        return [f"{split}/{number}" for number in range(4)]

    def reset(self, task: str) -> Observation:
        self.turn = 0
        return self._do(task)

    def step(self, action: str) -> Observation:
        self.turn += 1
        return self._do(action)

    def close(self) -> None:
        if note := os.environ.get("HOSTILE_CLOSED"):
            Path(note).touch()

    def _do(self, what: str) -> Observation:
        return DEEDS.get(what, lambda: Observation(f"{what}, turn {self.turn}"))()  # type: ignore[return-value]


class MixedRoom(HostileRoom):
    """A task names the deed of its first action, or of its reset if it begins with `at once`; the others succeed.

    A third of the training tasks do harm, and one of the evaluation's.
    """

    HARMFUL = ("hang", "leave", "vanish", "at once divide", "bytes", "at once flood")

    @staticmethod
    def tasks(split: str) -> list[str]:
        fine = [f"{split}/{number}" for number in range(12)]
        return [*MixedRoom.HARMFUL, *fine] if split == "train" else [*fine[:2], "vanish"]

    def reset(self, task: str) -> Observation:
        self.task = task
        return self._do(task.removeprefix("at once ")) if task.startswith("at once ") else Observation(task)

    def step(self, action: str) -> Observation:
        del action
        return self._do(self.task) if self.task in DEEDS else Observation("You leave.", done=True, success=True)


class LeavingRoom(HostileRoom):
    """Ends its process politely at every action in training."""

    def reset(self, task: str) -> Observation:
        self.task = task
        return Observation(task)

    def step(self, action: str) -> Observation:
        del action
        return self._do("leave") if self.task.startswith("train") else Observation("Done.", done=True)


class OnceRoom(LeavingRoom):
    """Breaks off at some of the training tasks, each only the first time: a file in HOSTILE_NOTES says that it has."""

    @staticmethod
    def tasks(split: str) -> list[str]:
        return [f"{split}/{number}" for number in range(6)]

    def step(self, action: str) -> Observation:
        note = Path(os.environ["HOSTILE_NOTES"], self.task.replace("/", "-"))
        if self.task in ("train/1", "train/4") and not note.exists():
            note.touch()
            return self._do("vanish")
        return Observation(f"You hear {len(action)} letters.", done=len(action) % 3 == 0)


class WorldRoom(MixedRoom):
    """As MixedRoom, with one task of each harm; and every process of it has left a child behind, noted in a file."""

    HARMFUL = ("hang", "leave", "vanish", "crash", "at once flood")

    @staticmethod
    def tasks(split: str) -> list[str]:
        fine = [f"{split}/{number}" for number in range(10)]
        return [*WorldRoom.HARMFUL, *fine] if split == "train" else fine[:2]

    def __init__(self) -> None:
        child = subprocess.Popen(["sleep", "3600"])
        with open(os.environ["HOSTILE_PIDS"], "a", encoding="utf-8") as file:
            file.write(f"{os.getpid()} {child.pid} ")
