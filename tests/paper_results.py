"""Results as `divopd paper` stores them, made up: what tests of tables and claims read."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from divopd.experiments.arms import FIRST_SEED, MAIN
from divopd.experiments.results import BATCH, OTHERS
from divopd.experiments.wanted import Places, Wanted

CONFIGS = Path(__file__).parents[1] / "configs"
UPDATES, EVERY = 20, 5
COSTS = {"computed_tokens": 50, "learner_s": 2.0, "elapsed_s": 3.0, "scored_tokens": 400, "generated_tokens": 40}


def wanted_run(out: Path, arm: str, seed: int, *, setting: str = "default") -> Wanted:
    """`seed` counts from the first one of all results."""
    return Wanted(setting, arm, FIRST_SEED + seed, (), Places(CONFIGS, out / "runs", out))


def store_result(
    wanted: Wanted,
    rates: Sequence[float],
    *,
    tokens_per_update: int = 100,
    audits: dict[str, Any] | None = None,
    **changes: Any,
) -> None:
    """A result with an evaluation every five updates; `changes` replace what stands at its top."""
    columns = {name: [1.0 + update % 3 for update in range(UPDATES)] for name in (*BATCH, *OTHERS, "gradient_norm")}
    per_update = COSTS | {"trained_tokens": tokens_per_update}
    stored = {
        "setting": wanted.setting,
        "method": wanted.config.method,
        "seed": wanted.seed,
        "config": wanted.config.resolved(),
        "models": wanted.models,
        "seconds": 60.0,
        "clock": "virtual",
        "evaluations": [
            {
                "version": EVERY * place,
                "success_rate": rate,
                "costs": {name: cost * EVERY * place for name, cost in per_update.items()},
                "by_kind": {},
            }
            for place, rate in enumerate(rates)
        ],
        "updates": columns,
        "costs": {name: cost * UPDATES for name, cost in per_update.items()},
        "utilization": {
            "rollouts": 50,
            "never_selected": 0.5,
            "unreachable": 0.1,
            "gini": 0.6,
            "scored_valid_tokens": 400,
            "trained_valid_tokens": 100,
            "scored_per_trained": 4.0,
        },
        "account": {"put": 60, "trained": 30, "invalid": 5, "stale": 10, "aged_out": 5, "pending": 5, "queued": 5},
        "drained": 40,
        "audits": audits or {},
    } | changes
    wanted.result_file.parent.mkdir(parents=True, exist_ok=True)
    wanted.result_file.write_text(json.dumps(stored), encoding="utf-8")


def made_up_audits(recording: Path) -> dict[str, Any]:
    """Audits of a recording, and those that need weights as they would be."""
    from divopd.audits.cost import FATES
    from divopd.audits.geometry import EXPECTED_BASE, LINEUP, ORACLE
    from divopd.audits.table import AUDITS

    made = {name: AUDITS[name](recording, {}, lambda _: None) for name in ("utilization", "selection", "retention")}
    aligned = {"projection": 1.2, "cosine": 0.8, "pairwise_cosine": 0.01}
    composers = {name: dict(aligned) for name in (*LINEUP, EXPECTED_BASE, ORACLE)}
    update = {"update": 5, "turns": 40, "composers": composers, "dropped_turns": 0.4, "dropped_norm": 0.3}
    made["geometry"] = {
        "size": 32,
        "updates": [update, update | {"update": 10}],
        "decided": 2,
        "focus_above_base": {"drawn": 2, "expected": 2},
        "oracle_ratio": 1.75,
        "swapped_pairs": 1,
    }
    lag = {"lag": 1, "turns": 50, "spearman": 0.98, "top_k_overlap": 0.95}
    lag |= {"probability_correlation": 0.97, "probability_gap": 0.01}
    made["stability"] = {"cap": 4, "max_staleness": 2, "lags": [lag, lag | {"lag": 5}]}
    made["cost"] = {
        "updates": UPDATES,
        "scored_by_fate": dict.fromkeys(FATES, 10),
        "scored_valid_tokens": 400,
        "trained_valid_tokens": 100,
        "scored_per_trained": 4.0,
        "never_trained_share": 0.7,
        "stages_s": {"forward": 1.0},
        **dict.fromkeys(("trained_tokens", "computed_tokens", "scored_tokens", "read_tokens"), 60),
        **dict.fromkeys(("generated_tokens", "elapsed_s", "learner_s", "waited_s", "explorer_s", "teacher_s"), 60),
    }
    return made


def base_rate(arm: str) -> float:
    """A success rate that differs between methods and is the same for all variants of one."""
    return 50.0 + 3 * (MAIN.index(arm) if arm in MAIN else 0)
