"""Results of runs as small JSON files, and the figures that tables and claims take from them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from divopd.errors import InputError
from divopd.experiments.wanted import Wanted, same_settings
from divopd.methods import BASELINE
from divopd.metrics import Utilization, arrival_per_drain, mean_of_last
from divopd.records import BatchFigures, encode_update
from divopd.report.run_comparison import CURRENCIES, Standing, compare_runs
from divopd.report.runs import Costs, Evaluated, RunFigures, drained_by, read_run
from divopd.report.seeds import Interval, interval_of, ratio_interval_of
from divopd.store import Store
from divopd.store.journal import Account

BATCH = tuple(field.name for field in fields(BatchFigures))
OTHERS = ("stale", "aged_out", "invalid", "queued", "turns_put", "waited_s")


def result_of(wanted: Wanted, *, audits: Mapping[str, Any], seconds: float | None) -> dict[str, Any]:
    """All that is kept of a finished run. `seconds` is the real time of training, if it was not interrupted."""
    run = read_run(wanted.folder)
    with Store.open_read_only(wanted.folder) as store:
        updates = store.update_records().values()
        told = [encode_update(one) for one in updates]
        columns = {name: [_short(one[name]) for one in told] for name in (*BATCH, *OTHERS)}
        columns["gradient_norm"] = [_short(one.learner.gradient_norm) for one in updates if one.learner]
        kinds = {version: one.by_kind for version, one in store.evaluations().items()}
    return {
        "setting": wanted.setting,
        "method": wanted.config.method,
        "seed": wanted.seed,
        "config": wanted.config.resolved(),
        "models": wanted.models,
        "seconds": seconds,
        "clock": run.clock,
        "evaluations": [asdict(one) | {"by_kind": kinds[one.version]} for one in run.evaluations],
        "updates": columns,
        "costs": asdict(run.costs),
        "utilization": asdict(run.utilization),
        "account": run.account._asdict(),
        "drained": drained_by(updates),
        "audits": dict(audits),
    }


def _short(value: float) -> float:
    return value if isinstance(value, int) else float(f"{value:.5g}")


def in_valid_tokens(figures: dict[str, Any]) -> dict[str, Any]:
    """Figures of a utilization or a cost audit; of results that counted whole rows the ratios are not known."""
    if "trained_valid_tokens" in figures:
        return figures
    ratios = figures.keys() & {"scored_per_trained", "never_trained_share"}
    return figures | dict.fromkeys((*ratios, "scored_valid_tokens", "trained_valid_tokens"))


@dataclass(frozen=True)
class Result:
    """A stored result: the run's figures as a comparison takes them, and the audits that were made of it."""

    arm: str
    seed: int
    run: RunFigures
    stored: dict[str, Any]

    @cached_property
    def audits(self) -> dict[str, Any]:
        audits = dict(self.stored["audits"])
        if "cost" in audits:
            audits["cost"] = in_valid_tokens(audits["cost"])
        if "utilization" in audits:
            rows = audits["utilization"].items()
            used = {name: one | {"utilization": in_valid_tokens(one["utilization"])} for name, one in rows}
            audits["utilization"] = used
        return audits

    def column(self, name: str) -> list[float]:
        """A figure of every update, in order."""
        return self.stored["updates"][name]

    @property
    def stale_rows(self) -> int:
        return self.run.account.stale

    def late(self, name: str) -> float:
        """Mean of a figure over the last 40 % of updates."""
        return mean_of_last(self.column(name))


def load_result(wanted: Wanted) -> Result | None:
    """The stored result of a wanted run; None if there is none, or if it is of other settings or weights."""
    if not wanted.result_file.exists():
        return None
    stored = _read(wanted.result_file)
    known = {role: digest for role, digest in wanted.models.items() if digest is not None}
    if not same_settings(stored["config"], wanted.config.resolved()) or not same_settings(stored["models"], known):
        return None
    return _result(stored, wanted.arm)


def _read(file: Path) -> dict[str, Any]:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: not a result ({error}); delete it, and it is made again") from None


def _result(stored: dict[str, Any], arm: str) -> Result:
    columns = stored["updates"]
    batches = tuple(BatchFigures(*row) for row in zip(*(columns[name] for name in BATCH), strict=True))
    evaluations = tuple(
        Evaluated(one["version"], one["success_rate"], Costs(**one["costs"])) for one in stored["evaluations"]
    )
    run = RunFigures(
        name=f"{arm}/{stored['seed']}",
        folder=Path(stored["setting"]),
        method=arm,
        seed=stored["seed"],
        config=stored["config"],
        clock=stored["clock"],
        evaluations=evaluations,
        batches=batches,
        costs=Costs(**stored["costs"]),
        utilization=Utilization(**in_valid_tokens(stored["utilization"])),
        account=Account(**stored["account"]),
        dead_rows=sum(round(batch.dead_share * batch.rows) for batch in batches),
        arrival_per_drain=arrival_per_drain(
            put=columns["turns_put"][-1],
            drained=stored["drained"],
            elapsed_s=stored["costs"]["elapsed_s"],
            waited_s=sum(columns["waited_s"]),
        ),
    )
    return Result(arm, stored["seed"], run, stored)


class SettingResults:
    """The results of one setting: by arm and seed, and side by side."""

    def __init__(self, name: str, results: Iterable[Result]) -> None:
        self.name = name
        self._results = {(one.arm, one.seed): one for one in results}

    @property
    def arms(self) -> list[str]:
        return list(dict.fromkeys(arm for arm, _ in self._results))

    def of(self, arm: str) -> dict[int, Result]:
        """The results of an arm by seed; empty if there are none."""
        return {seed: one for (name, seed), one in self._results.items() if name == arm}

    @cached_property
    def _comparison(self) -> Any:
        return compare_runs([one.run for one in self._results.values()])

    @property
    def target(self) -> int:
        """τ: from vanilla, if it is there; 0 otherwise."""
        return self._comparison.target if BASELINE in self.arms else 0

    @property
    def budget(self) -> int:
        return self._comparison.budget

    @cached_property
    def standings(self) -> dict[tuple[str, int], Standing]:
        places = {f"{arm}/{seed}": (arm, seed) for arm, seed in self._results}
        return {places[one.run]: one for one in self._comparison.standings}

    def value(self, arm: str, seed: int, measure: str) -> float | None:
        """A measure of one run: of its standing, its late batches (late:…), its audits (audit:a/b/c), or its own."""
        result = self._results[arm, seed]
        kind, _, name = measure.partition(":")
        if kind == "late":
            return result.late(name)
        if kind == "audit":
            return _inside(result.audits, name)
        if kind == "ratio":
            return self.standings[arm, seed].ratios[name]
        if measure == "stale_rows":
            return result.stale_rows
        if measure == "final":
            return result.run.rates[-1]
        if measure == "tokens_per_update":
            return result.run.costs.trained_tokens / len(result.run.batches)
        return getattr(self.standings[arm, seed], measure)

    def values(self, arm: str, measure: str) -> dict[int, float]:
        """A measure of all seeds of an arm that have it."""
        found = {seed: self.value(arm, seed, measure) for seed in self.of(arm)}
        return {seed: value for seed, value in found.items() if value is not None}

    def mean(self, arm: str, measure: str) -> Interval | None:
        """Mean over seeds; ratios are averaged as logarithms. None: no seed has it."""
        values = list(self.values(arm, measure).values())
        if not values:
            return None
        return ratio_interval_of(values) if measure.startswith("ratio:") else interval_of(values)

    def differences(self, arm: str, base: str, measure: str) -> list[float]:
        """Arm minus base, seed by seed."""
        of, against = self.values(arm, measure), self.values(base, measure)
        return [of[seed] - against[seed] for seed in of if seed in against]

    def quotients(self, arm: str, base: str, measure: str) -> list[float]:
        """Base by arm, seed by seed: above 1 where the arm has less."""
        of, against = self.values(arm, measure), self.values(base, measure)
        return [against[seed] / of[seed] for seed in of if seed in against and of[seed] and against[seed]]

    def cost_quotients(self, arm: str, base: str, currency: str) -> list[float]:
        """Cost to τ of base by that of arm, for the seeds in which both came there; currency: one of CURRENCIES."""
        assert currency in CURRENCIES
        costs: list[list[float | None]] = []
        for name in (base, arm):
            reached = {seed: self.standings[name, seed].costs_to_target for seed in self.of(name)}
            costs.append([getattr(reached[s], currency) if reached.get(s) else None for s in self._common(arm, base)])
        return [before / after for before, after in zip(*costs, strict=True) if before and after]

    def _common(self, arm: str, base: str) -> Sequence[int]:
        return [seed for seed in self.of(arm) if seed in self.of(base)]


def _inside(data: Any, path: str) -> float | None:
    """The value at audit.key.key…; keys are separated by a slash because names hold dots and commas."""
    for key in path.split("/"):
        if not isinstance(data, Mapping) or key not in data:
            return None
        data = data[key]
    return data
