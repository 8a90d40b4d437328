"""Small runs for tests of reports: a real store and real composers; only success rates and costs are invented."""

import json
import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from store_processes import make_rollout

from divopd.methods import make_composer
from divopd.metrics import batch_figures
from divopd.records import Clock, EvaluationRecord, QueueFigures, Spent, UpdateRecord
from divopd.store import JournaledBatch, Store
from divopd.store.session import seal
from doubles.small_records import make_evaluation_record, make_update_record

SETTINGS = {"batch_size": 8, "pool_multiplier": 4, "cap": 2, "max_staleness": 2, "max_pending_age": 3}
WAITED_S, UPDATE_S = 2.0, 10.0
LEARNER_S: dict[Clock, float] = {"virtual": UPDATE_S - WAITED_S, "wall": 7.0}  # an update; a live one also publishes


def make_run(
    folder: Path,
    *,
    method: str = "divopd",
    seed: int = 0,
    rates: Sequence[float | None] = (10.0, 30.0, 50.0),
    every: int = 3,
    rollouts: int = 6,
    clock: Clock = "virtual",
    config: dict[str, Any] | None = None,
) -> Path:
    """A run with an evaluation every so many updates; an update takes 10 seconds, 2 of them waiting."""
    folder.mkdir(parents=True)
    stored = {"method": method, "seed": seed, "learner": {"lr": 1e-4}} | (config or {})
    (folder / "config.yaml").write_text(yaml.safe_dump(stored), encoding="utf-8")
    with Store.create(folder / "store.db", synchronous="NORMAL") as store:
        epoch = store.begin_learner()
        composer = make_composer(method, **SETTINGS, seed=seed)
        trained = 0
        for update in range(every * (len(rates) - 1)):
            for number in range(rollouts):
                store.put(make_rollout(f"r.{seed}.{update}.{number}", version=update))
            batch = store.compose(composer, update=update, epoch=epoch)
            trained += sum(turn.tokens for turn in batch.turns)
            record = update_record(store, batch, clock=clock, trained=trained)
            assert store.record(record)
        for place, rate in enumerate(rates):
            if rate is not None:
                assert store.record_evaluation(evaluation(every * place, rate))
    return folder


def update_record(store: Store, batch: JournaledBatch, *, clock: Clock, trained: int) -> UpdateRecord:
    """The record of the newest batch; `trained` is the number of tokens trained up to and with it."""
    entry = batch.entry
    version = entry.update + 1
    arrived, decided = store.arrived(), store.decided(entry.update)
    return replace(
        make_update_record(entry.update),
        clock=clock,
        elapsed_s=UPDATE_S * version,
        waited_s=WAITED_S,
        starved_s=WAITED_S / 4,
        batch=batch_figures(batch.candidates, update=entry.update),
        queue=QueueFigures(
            rollouts_put=arrived.rollouts,
            turns_put=arrived.turns,
            queued=store.backlog(),
            stale=len(entry.stale),
            aged_out=len(entry.aged_out),
            invalid=len(entry.invalid),
            rollouts_used=decided.used,
            rollouts_unused=decided.unused,
            drained=decided.drained,
            pending=decided.pending,
            invalid_by_reason=dict(
                Counter(
                    [reason for _, _, reason in entry.invalid]
                    + [row.reason for row in batch.candidates if row.reason is not None]
                )
            ),
        ),
        spent=Spent(
            generated_tokens=100 * version,
            scored_tokens=1000 * version,
            trained_tokens=trained,
            computed_tokens=trained // 2,
            learner_s=LEARNER_S[clock] * version,
        ),
    )


def evaluation(version: int, rate: float, **kinds: float) -> EvaluationRecord:
    record = make_evaluation_record(version, success_rate=rate)
    return replace(record, by_kind=kinds) if kinds else record


def replace_record(run: Path, kind: str, number: int, data: dict[str, Any]) -> None:
    """Put an object in the place of a record, as another version of divopd might have written it."""
    text = json.dumps(data).encode()
    with closing(sqlite3.connect(run / "store.db")) as connection, connection:
        row = (kind, number, text, seal(text, kind, number))
        connection.execute("INSERT OR REPLACE INTO records (kind, number, json, digest) VALUES (?, ?, ?, ?)", row)
