"""Views of the live page on a run of 100,000 turns: how long the slowest takes, against the 300 ms that it may take.

The run is a replay of a synthetic recording, so that the page must compute every figure of a batch itself: a run of
`divopd train` has recorded them. Each view is asked over HTTP from a server that has answered nothing before. The
processor time counts, which is what a view takes on an idle core, and the best of a few rounds, because the machine may
be shared; the time on the clock is given beside it. The plain way would read all turns of the store for every view.
"""

import http.client
import json
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from divopd.composers import make_composer
from divopd.replay import journal_replay
from divopd.report.page.server import make_server
from divopd.store import Store
from divopd.synth import PRESETS, synthesize

LIMIT_MS = 300.0


class Sizes(NamedTuple):
    updates: int
    rounds: int


FULL = Sizes(updates=560, rounds=3)
QUICK = Sizes(updates=70, rounds=1)
VIEWS = (
    "news",
    "runs",
    "comparison",
    "run/big/learning",
    "run/big/updates?after=-1",
    "run/big/updates?after={later}",
    "run/big/flow",
    "run/big/experience",
    "run/big/depths",
    "run/big/ages",
    "run/big/batches?first={late}&count=24",
    "run/big/batch/{late}",
    "run/big/rollouts?order=-arrival",
    "run/big/rollouts?order=-disagreement",
    "run/big/rollouts?order=-stale&fate=stale&text=a",
)


def run(sizes: Sizes) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        turns = list(synthesize(PRESETS["alfworld"], updates=sizes.updates, seed=0))
        journal_replay(turns, make_composer("divopd"), updates=sizes.updates, run=Path(folder) / "big")
        later, late = 5 * sizes.updates // 7 - 1, sizes.updates - 60
        views = [view.format(later=later, late=late) for view in VIEWS]
        views.append(f"run/big/rollout/{turns[len(turns) // 2].rollout}")
        rounds = [_ask_all(Path(folder), views) for _ in range(sizes.rounds)]
        plain = min(_read_all(Path(folder) / "big") for _ in range(2))
    asked = {view: _best([one[view] for one in rounds]) for view in views}
    slowest = max(asked, key=lambda view: asked[view]["cpu_ms"])
    return {
        "bench": "watch",
        "ratio": LIMIT_MS / asked[slowest]["cpu_ms"],
        "unit": "processor ms of the slowest view, and the limit",
        "ours": asked[slowest]["cpu_ms"],
        "reference": LIMIT_MS,
        "detail": {"turns": len(turns), "slowest": slowest, "views": asked, "plain_reading_of_all_turns_cpu_ms": plain},
    }


def _ask_all(folder: Path, views: list[str]) -> dict[str, dict[str, float]]:
    server, _ = make_server(folder, token="bench")
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        return {view: _ask(server.server_port, view) for view in views}
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _ask(port: int, view: str) -> dict[str, float]:
    start, cpu = time.perf_counter(), time.process_time()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", f"/bench/api/{view}")
    answer = connection.getresponse()
    content: Any = json.loads(answer.read())
    connection.close()
    assert answer.status == 200, content
    return {"ms": 1000 * (time.perf_counter() - start), "cpu_ms": 1000 * (time.process_time() - cpu)}


def _best(times: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(min(one[name] for one in times), 1) for name in ("ms", "cpu_ms")}


def _read_all(run: Path) -> float:
    start = time.process_time()
    with Store.open_read_only(run) as store:
        sum(1 for _ in store.stored_turns())
    return round(1000 * (time.process_time() - start), 1)
