"""Every report, audit and view of a run with a million turns: processor seconds and memory, and how both grow.

The run is made by the store's own API: rollouts of 1 to 30 turns with few tokens, a tenth of them truncated, 2.6 turns
put for each one trained, 256 to a batch, with a record of every update. Each command runs in a process of its own, on
this run and on one with a tenth of its turns. The bound is linear growth: ten times the turns, ten times the seconds.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from divopd.methods import make_composer
from divopd.metrics import batch_figures
from divopd.records import EvaluationRecord, QueueFigures, Spent, UpdateFigures, UpdateRecord
from divopd.store import JournaledBatch, Store
from divopd.turns import Rollout, Turn

BATCH, LOAD, EVERY = 256, 2.6, 100  # rows, turns put for each row trained, updates between evaluations


class Sizes(NamedTuple):
    turns: tuple[int, int]  # of the smaller and of the larger run


FULL = Sizes(turns=(100_000, 1_000_000))
QUICK = Sizes(turns=(2_000, 4_000))
COMMANDS = {
    "audit ledger": ["audit", "ledger", "{run}", "--json"],
    **{f"audit {name}": ["audit", name, "{run}", "--json", "--out", "{out}"] for name in ("utilization", "selection")},
    **{f"audit {name}": ["audit", name, "{run}", "--json", "--out", "{out}"] for name in ("retention", "cost", "time")},
    "report": ["report", "{run}", "--out", "{out}/report.html"],
    "compare": ["compare", "{run}"],
    "replay, two methods": ["replay", "{run}", "--method", "vanilla", "divopd"],
    "explain": ["explain", "{run}", "{late}"],
    "why": ["why", "{run}", "r000100"],
    "export": ["export", "{run}", "{out}/turns.jsonl"],
}
VIEWS = (
    "runs",
    "comparison",
    "run/big/learning",
    "run/big/updates?after=-1",
    "run/big/flow",
    "run/big/experience",
    "run/big/depths",
    "run/big/ages",
    "run/big/batches?first={late}&count=24",
    "run/big/batch/{late}",
    "run/big/rollouts?order=-disagreement",
    "run/big/rollouts?order=-stale&fate=stale&text=a",
    "run/big/rollout/r000100",
)


def run(sizes: Sizes) -> dict:
    small, large = (_measure(turns) for turns in sizes.turns)
    rows = {
        name: {**large[name], "growth": large[name]["processor_s"] / small[name]["processor_s"]} for name in COMMANDS
    }
    views = {name: {**large[name], "growth": large[name]["processor_s"] / small[name]["processor_s"]} for name in VIEWS}
    slowest = max(rows | views, key=lambda name: (rows | views)[name]["growth"])
    steps = sizes.turns[1] / sizes.turns[0]
    growth = (rows | views)[slowest]["growth"]
    return {
        "bench": "reports",
        "ratio": steps / growth,
        "unit": f"growth of processor seconds with {steps:g} times the turns, where it is largest ({slowest})",
        "ours": growth,
        "reference": steps,
        "detail": {"turns": sizes.turns[1], "made_in": large["made"], "commands": rows, "views": views},
    }


def _measure(turns: int) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        run, out = Path(folder) / "runs" / "big", Path(folder) / "out"
        out.mkdir()
        started = time.process_time()
        updates = make_run(run, turns=turns)
        made = {"processor_s": time.process_time() - started, "store_mb": (run / "store.db").stat().st_size / 1e6}
        places = {"run": run, "out": out, "late": updates - 2}
        commands = {
            name: _child(["-m", "divopd", *(part.format(**places) for part in parts)])
            for name, parts in COMMANDS.items()
        }
        views = {view: _child([__file__, str(run.parent), view.format(**places)]) for view in VIEWS}
    return commands | views | {"made": made}


def _child(arguments: list[str]) -> dict[str, float]:
    """What a command takes, its start included: that is what a user waits for."""
    started = time.perf_counter()
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=said)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        assert process.returncode == 0, f"{arguments}: {said.read()}"
    return {
        "processor_s": used.ru_utime + used.ru_stime,
        "wall_s": time.perf_counter() - started,
        "memory_mb": used.ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3),
    }


def make_run(folder: Path, *, turns: int) -> int:
    """Make a run of about so many turns; returns how many updates it has."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("method: divopd\nseed: 0\nlearner:\n  lr: 0.0001\n", encoding="utf-8")
    random, put = Random(0), (0, 0)
    composer = make_composer("divopd", batch_size=BATCH)
    with Store.create(folder / "store.db", synchronous="NORMAL") as store:
        epoch, update, trained = store.begin_learner(), 0, 0
        while put[1] < turns:
            while put[1] < min(LOAD * BATCH * (update + 1), turns):
                rollout = _rollout(f"r{put[0]:06d}", update, random)
                store.put(rollout)
                put = (put[0] + 1, put[1] + len(rollout.turns))
            batch = store.compose(composer, update=update, epoch=epoch)
            trained += sum(turn.tokens for turn in batch.turns)
            store.record(_record(batch, put=put, trained=trained))
            if update % EVERY == 0:
                store.record_evaluation(EvaluationRecord(update, 40.0, 20, turns=9.5, by_kind={"pick": 40.0}))
            update += 1
    return update


def _rollout(name: str, update: int, random: Random) -> Rollout:
    ending = {"success": random.random() < 0.4, "reward": 0.0}
    count = random.randint(1, 30)
    turns = (
        Turn(
            name,
            number,
            f"task {name[-2:]}",
            update,
            prompt_ids=[1] * 8,
            prompt_truncated=random.random() < 0.1,
            response_ids=[2] * 4,
            student_logprobs=[-random.random() for _ in range(4)],
            teacher_logprobs=[-2 * random.random() for _ in range(4)],
            action_mask=[1] * 4,
            rollout_turns=count,
            **ending,
        )
        for number in range(count)
    )
    return Rollout(name, tuple(turns))


def _record(batch: JournaledBatch, *, put: tuple[int, int], trained: int) -> UpdateRecord:
    entry, rows = batch.entry, len(batch.turns)
    tokens = sum(turn.tokens for turn in batch.turns)
    figures = UpdateFigures(rows, 0, 4 * rows, tokens, tokens, 0.5, 0.2, 1.5, None, {"forward": 0.2, "backward": 0.5})
    queue = QueueFigures(*put, 0, len(entry.stale), len(entry.aged_out), len(entry.invalid), 30, 5, rows, pending=rows)
    spent = Spent(4 * put[1], 12 * put[1], trained, trained, 8.0 * (entry.update + 1))
    shown = batch_figures(batch.candidates, update=entry.update)
    return UpdateRecord(entry.update, "virtual", 10.0 * (entry.update + 1), 2.0, 0.5, shown, figures, queue, spent)


def _ask(folder: str, view: str) -> None:
    """One view of the page, from a server that has answered nothing before; in a process of its own."""
    import http.client
    import threading

    from divopd.report.page.server import make_server

    server, _ = make_server(Path(folder), token="bench")
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=600)
        connection.request("GET", f"/bench/api/{view}")
        answer: Any = connection.getresponse()
        content = answer.read()
        connection.close()
        assert answer.status == 200, content
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


if __name__ == "__main__":
    _ask(*sys.argv[1:])
