"""Small runs for tests of reports: a real store and real composers; only success rates and costs are invented."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import yaml
from store_processes import make_rollout

from divopd.methods import make_composer
from divopd.metrics import batch_figures
from divopd.store import Store

SETTINGS = {"batch_size": 8, "pool_multiplier": 4, "cap": 2, "max_staleness": 2, "max_pending_age": 3}
WAITED_S, UPDATE_S = 2.0, 10.0


def make_run(
    folder: Path,
    *,
    method: str = "divopd",
    seed: int = 0,
    rates: Sequence[float | None] = (10.0, 30.0, 50.0),
    every: int = 3,
    rollouts: int = 6,
    clock: Literal["virtual", "wall"] = "virtual",
    config: dict[str, Any] | None = None,
) -> Path:
    """A run with an evaluation every so many updates; an update takes 10 seconds, 2 of them waiting."""
    folder.mkdir(parents=True)
    stored = {"method": method, "seed": seed, "learner": {"lr": 1e-4}} | (config or {})
    (folder / "config.yaml").write_text(yaml.safe_dump(stored), encoding="utf-8")
    with Store.create(folder / "store.db", synchronous="NORMAL") as store:
        epoch = store.begin_learner()
        composer = make_composer(method, **SETTINGS, seed=seed)
        turns_put = trained = 0
        for update in range(every * (len(rates) - 1)):
            for number in range(rollouts):
                rollout = make_rollout(f"r.{seed}.{update}.{number}", version=update)
                turns_put += len(rollout.turns)
                store.put(rollout)
            batch = store.compose(composer, update=update, epoch=epoch)
            trained += sum(turn.tokens for turn in batch.turns)
            gap = {"version": update, "tokens": 9, "mean": 2e-6, "largest": 3e-5}
            figures = {
                **asdict(batch_figures(batch.candidates, update=update)),
                "learner": {"seconds": {"forward": 0.25, "backward": 0.5}, "logprob_gap": gap},
                "spent": spent(trained, update + 1),
                f"{clock}_s": UPDATE_S * (update + 1),
                **({"learner_s": 7.0 * (update + 1)} if clock == "wall" else {}),
                "waited_s": WAITED_S,
                "rollouts_used": store.decided(update).used,
                "rollouts_unused": store.decided(update).unused,
                "rollouts_put": rollouts * (update + 1),
                "turns_put": turns_put,
                "queued": turns_put - batch.entry.watermark,
                "stale": len(batch.entry.stale),
                "aged_out": len(batch.entry.aged_out),
                "invalid": len(batch.entry.invalid),
            }
            store.record_figures("update", update, figures)
        for place, rate in enumerate(rates):
            if rate is not None:
                store.record_figures("evaluation", every * place, evaluation(rate))
    return folder


def spent(trained: int, version: int) -> dict[str, int]:
    return {
        "trained_tokens": trained,
        "computed_tokens": trained // 2,
        "scored_tokens": 1000 * version,
        "generated_tokens": 100 * version,
    }


def evaluation(rate: float, **kinds: float) -> dict[str, Any]:
    return {"success_rate": rate, "tasks": 20, "turns": 9.5, "by_kind": kinds or {"pick": rate}}
