"""How the script of a peer answers: one JSON object a line in, one out. The standard library alone, no divopd.

answer({"put": put, "get": get})      # each returns what JSON can hold; `measured(...)` is what `times` wants
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK")


def answer(questions: Mapping[str, Callable[..., Any]]) -> None:
    """Answer until the other side closes its end; an error ends the script. What packages print goes to stderr."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    for line in sys.stdin:
        asked = json.loads(line)
        out.write(json.dumps(questions[asked["question"]](**asked["values"])) + "\n")
        out.flush()


def measured(action: Callable[[], Any]) -> dict[str, float]:
    """What an action takes: of this process with its threads, and of all processes that it has started."""
    wall, processor = time.perf_counter(), time.process_time() + started_seconds()
    action()
    return {
        "wall_s": time.perf_counter() - wall,
        "processor_s": time.process_time() + started_seconds() - processor,
    }


def started_seconds() -> float:
    """Processor seconds of the processes below this one, ended ones too, to a hundredth; Linux tells all of them."""
    ended = os.times()
    parents: dict[int, int] = {}
    spent: dict[int, float] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        number = int(folder.name)
        parents[number] = int(fields[1])
        spent[number] = sum(int(ticks) for ticks in fields[11:15]) / TICKS  # its own, and of its ended children
    running = sum(seconds for number, seconds in spent.items() if _is_below(number, parents))
    return ended.children_user + ended.children_system + running


def _is_below(number: int, parents: dict[int, int]) -> bool:
    while number in parents:
        number = parents[number]
        if number == os.getpid():
            return True
    return False
