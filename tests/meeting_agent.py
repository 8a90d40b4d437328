"""The game of door_agent.py by a program that waits for another one, and takes a random time for everything.

    python meeting_agent.py FOLDER

It goes on only when two programs of its split have come as far as it has: before its first call, and after the first
answer. It gives up when nobody comes.
"""

import json
import os
import sys
import time
from pathlib import Path
from random import SystemRandom

import door_agent

PATIENCE_S = 20.0


def meet(folder: Path, place: str) -> None:
    (folder / f"{place} {os.getpid()}").touch()
    until = time.monotonic() + PATIENCE_S
    while len(list(folder.glob(f"{place} *"))) < 2:
        if time.monotonic() > until:
            sys.exit(f"nobody came to {place}")
        time.sleep(0.01)
    time.sleep(SystemRandom().uniform(0, 0.05))


def main(folder: Path) -> None:
    with open(os.environ["TASK_FILE"]) as file:
        split = json.load(file)["id"].partition("-")[0]
    meet(folder, f"{split} start")
    ask = door_agent.complete

    def complete(messages: list[dict[str, str]]) -> str:
        said = ask(messages)
        meet(folder, f"{split} answer")
        return said

    door_agent.complete = complete
    door_agent.main()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
