"""A process that trains and audits runs one after the other: `python -m divopd.experiments.worker`.

It reads one JSON object a line, {"run": FOLDER, "train": true, "audits": […]}, and answers each with one line:
{"seconds": …, "audits": {…}} or {"error": …}. One process for many runs saves loading torch for each of them.
"""

import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from divopd.audits.table import AUDITS
from divopd.errors import DivopdError
from divopd.pipeline.begin import go_on
from divopd.records import Observers
from divopd.run.folder import RunFolder
from divopd.run.stored_config import load_run_config

CHANGES = {"utilization": {"first": 100}}  # as many updates as the paper's table is over


def do(task: dict[str, Any]) -> dict[str, Any]:
    """Train a run to its end, if it is asked for, and audit it."""
    folder = Path(task["run"])
    started = time.monotonic()
    if task["train"]:
        _train(folder)
    seconds = round(time.monotonic() - started, 1)
    audits = {name: AUDITS[name](folder, CHANGES.get(name, {}), lambda _: None) for name in task["audits"]}
    return {"seconds": seconds, "audits": audits}


def _train(folder: Path) -> None:
    go_on(load_run_config(RunFolder(folder)), folder, observer=Observers())
    gc.collect()  # a JVM whose environment is gone serves the next run


def main() -> None:
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever a library prints goes to the log
    for line in sys.stdin:
        try:
            answer = do(json.loads(line))
        except DivopdError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
