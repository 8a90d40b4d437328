"""What the page shows of a run, as plain JSON. Figures come from the functions that the commands print from."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from itertools import accumulate
from math import isfinite
from typing import Any

from divopd.errors import NotAStoreError
from divopd.metrics import figures_of_shares
from divopd.records import Clock, QueueFigures, Spent, UpdateRecord, encode_evaluation
from divopd.report.explanation import explain
from divopd.report.fates import shown_fates, told_of_programs
from divopd.report.gauge import WINDOW, queue_pressure
from divopd.report.page.made_by import made_by
from divopd.report.run_comparison import flat_settings
from divopd.report.runs import costs_at, costs_by_version, ranks_of, utilization_so_far
from divopd.run.stored_config import stored_config
from divopd.store.calls import program_figures
from divopd.store.views import StoreViews

Json = dict[str, Any]
COUNTS = ("stale", "aged_out", "invalid", "queued", "pending", "turns_put", "rollouts_put", "drained")
MEASURED = (  # by the learner, in one update
    "loss",
    "learner_kl_per_token",
    "gradient_norm",
    "clipped_norm",
    "lr",
    "memory_bytes",
    "valid_tokens",
)
AXES = ("trained_tokens", "computed_tokens", "learner_s", "scored_tokens", "generated_tokens")
ROLES = {"explorers": "generated_tokens", "teacher": "scored_tokens", "learner": "trained_tokens"}
PRESSURE = ("load", "expiring_turns", "unused_rollouts", "waiting")
MOST_TRAINED = 12  # trained turns of a rollout; the histogram puts what is above with it


def plain(value: Any) -> Any:
    """JSON that every browser reads: six digits are enough to look at, and what is not finite is null."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


@contextmanager
def figures_of_this_version(store: StoreViews) -> Generator[None]:
    """Figures that are not what this version records are a fault of the store, not of the page."""
    try:
        yield
    except (KeyError, TypeError, AttributeError) as error:
        what = f"{store.path}: its figures or its config are not those of this version of divopd ({error!r})"
        raise NotAStoreError(what) from None


def summary(store: StoreViews, name: str) -> Json:
    """What a list of runs says about one of them."""
    folder = store.path.parent
    config, settings, cursor = stored_config(folder), store.settings(), store.cursor()
    rates = [one.success_rate for one in store.evaluations().values()]
    last = store.update_records(first=max(0, cursor.updates - 1))
    return {
        "name": name,
        "folder": str(folder),
        "method": settings.method if settings else config.get("method"),
        "seed": settings.seed if settings else config.get("seed"),
        "environment": config.get("environment", {}).get("name"),
        "settings": flat_settings(config),
        "made_by": made_by(folder),
        "batch_size": settings.batch_size if settings else None,
        "clock": _clock(last),
        "kind": "run" if config else "replay",
        "updates": cursor.updates,
        "planned": config.get("learner", {}).get("updates"),
        "turns": cursor.turns,
        "evaluations": len(rates),
        "first_rate": rates[0] if rates else None,
        "last_rate": rates[-1] if rates else None,
        "peak_rate": max(rates, default=None),
    }


def learning(store: StoreViews) -> Json:
    """Every evaluation with what its version had cost."""
    updates = store.update_records()
    costs = costs_by_version(updates, ranks=ranks_of(stored_config(store.path.parent)))
    evaluations = [
        encode_evaluation(record) | asdict(costs_at(version, costs)) for version, record in store.evaluations().items()
    ]
    return {"clock": _clock(updates), "evaluations": evaluations}


def updates(store: StoreViews, *, after: int, count: int | None) -> Json:
    """The figures of at most `count` updates after this one, as columns; how full the queue was; whether there is more.

    A replay recorded no figures: those of its batches are computed, and its clock counts updates.
    """
    journaled = store.updates
    end = journaled if count is None else min(journaled, after + 1 + count)
    first = after + 1
    settings = store.settings()
    if settings is None or first >= end:
        return {"columns": {}, "first": first, "more": False, "pressure": None, "clock": None}
    known = store.update_records(first=max(0, first - WINDOW), last=end - 1)
    config = stored_config(store.path.parent)
    # a run that is on its first update has a batch in its journal and no figures yet
    recorded = known if known or config else _recomputed(store, max(0, first - WINDOW), end - 1)
    backlog, ranks = config.get("explorer", {}).get("max_backlog"), ranks_of(config)
    rows = []
    pressure = None
    for update in (number for number in recorded if number >= first):
        before = [recorded[number] for number in range(update - WINDOW, update + 1) if number in recorded]
        pressure = queue_pressure(before, settings, max_backlog=backlog)
        row = _row(recorded[update], {} if pressure is None else asdict(pressure))
        rows.append(row | _learner_row(recorded[update], ranks=ranks) | _rates(recorded[update], before[:-1]))
    names = dict.fromkeys(name for row in rows for name in row)
    return {
        "columns": {name: [row.get(name) for row in rows] for name in names},
        "first": first,
        "more": end < journaled,
        "pressure": None if pressure is None else {**asdict(pressure), "sentence": pressure.sentence},
        "clock": _clock(known),
    }


def _row(record: UpdateRecord, pressure: Mapping[str, Any]) -> Json:
    return {
        "update": record.update,
        **asdict(record.batch),
        **{name: getattr(record.queue, name) for name in COUNTS},
        "waited_s": record.waited_s,
        "starved_s": record.starved_s,
        "elapsed_s": record.elapsed_s,
        **{f"pressure.{name}": pressure.get(name) for name in PRESSURE},
        "pressure.verdict": pressure.get("verdict"),
    }


def _learner_row(record: UpdateRecord, *, ranks: int) -> Json:
    """What the learner measured, and what the run had cost when this update was made; nothing of a replay."""
    learner, spent = record.learner, record.spent
    if learner is None:
        return dict.fromkeys((*MEASURED, "gap_mean", "gap_largest", "processor_s", *(f"cost.{name}" for name in AXES)))
    gap = learner.logprob_gap
    return {
        **{name: getattr(learner, name) for name in MEASURED},
        "gap_mean": gap.mean if gap else None,
        "gap_largest": gap.largest if gap else None,
        "processor_s": None if learner.processor_s is None else sum(learner.processor_s.values()),
        **{f"seconds.{stage}": seconds for stage, seconds in learner.seconds.items()},
        **{f"cost.{name}": getattr(spent, name) for name in AXES},
        "cost.learner_s": ranks * spent.learner_s,
    }


def _rates(record: UpdateRecord, before: list[UpdateRecord]) -> Json:
    """Tokens of each role per second of the run, since the update before; its first one has none."""
    seconds = record.elapsed_s - before[-1].elapsed_s if before else 0.0
    if record.learner is None or seconds <= 0:
        return dict.fromkeys(f"rate.{role}" for role in ROLES)
    return {
        f"rate.{role}": (getattr(record.spent, name) - getattr(before[-1].spent, name)) / seconds
        for role, name in ROLES.items()
    }


def _recomputed(store: StoreViews, first: int, last: int) -> dict[int, UpdateRecord]:
    """What `divopd train` would have recorded of these updates, as far as a journal tells."""
    moments, rollouts, turns_put = _arrived(store)
    watermarks, exits = store.watermarks(), store.exits(first=first, last=last)
    drained, pending = store.drained(first=first, last=last), store.pending_counts()
    reasons = store.invalid_counts(first=first, last=last)
    made: dict[int, UpdateRecord] = {}
    for update, shares in store.shares(first=first, last=last).items():
        place = bisect_right(moments, update)
        queue = QueueFigures(
            rollouts_put=rollouts[place],
            turns_put=turns_put[place],
            queued=turns_put[place] - watermarks[update],
            stale=exits.get((update, "stale"), 0),
            aged_out=exits.get((update, "aged_out"), 0),
            invalid=exits.get((update, "invalid"), 0),
            rollouts_used=0,
            rollouts_unused=0,
            drained=drained[update],
            pending=pending[update],
            invalid_by_reason=reasons[update],
        )
        made[update] = UpdateRecord(
            update=update,
            clock="virtual",
            elapsed_s=float(update + 1),
            waited_s=0.0,
            starved_s=0.0,
            batch=figures_of_shares(shares, update=update),
            learner=None,
            queue=queue,
            spent=Spent(),
        )
    return made


def _arrived(store: StoreViews) -> tuple[list[int], list[int], list[int]]:
    """Updates before which something arrived, and how many rollouts and turns had arrived before and after each."""
    arrivals = store.arrivals()
    rollouts = accumulate((rollouts for _, rollouts, _ in arrivals), initial=0)
    return (
        [moment for moment, _, _ in arrivals],
        list(rollouts),
        list(accumulate((t for _, _, t in arrivals), initial=0)),
    )


def flow(store: StoreViews) -> Json:
    """Where every turn went."""
    account, dead = store.account(), store.dead_rows()
    fates = shown_fates(account, dead=sum(dead.values()))
    programs = program_figures(store)
    told = None if programs is None else {**asdict(programs), "sentence": told_of_programs(programs)}
    return {
        "account": account._asdict(),
        "fates": fates,
        "reasons": store.reasons(),
        "dead": dead,
        "programs": told,
    }


def experience(store: StoreViews) -> Json:
    """How much of the experience was trained, beside what could have been; trained turns of the valid rollouts."""
    settings = store.settings()
    if settings is None:
        return {"utilization": None, "trained_turns": []}
    tallies = store.rollout_tallies(available_before=store.updates)
    counts = Counter(min(tally.trained_turns, MOST_TRAINED) for tally in tallies if tally.valid_turns)
    return {
        "utilization": asdict(utilization_so_far(tallies, settings, updates=store.updates)),
        "trained_turns": [counts[n] for n in range(max(counts, default=-1) + 1)],
        "most": MOST_TRAINED,
    }


def depths(store: StoreViews) -> Json:
    """Turns by their place in the rollout: how many of each fate, and their disagreement."""
    return {"depths": [tally._asdict() for tally in store.depth_tallies()]}


def ages(store: StoreViews) -> Json:
    """How old trained turns were: in policy versions, and in updates spent pending."""
    settings = store.settings()
    return {
        "ages": list(store.ages().items()),
        "waits": list(store.waits().items()),
        "max_staleness": settings.max_staleness if settings else None,
        "max_pending_age": settings.max_pending_age if settings else None,
    }


def batches(store: StoreViews, *, first: int, count: int) -> Json:
    """The slots of some batches: [rollout, live rows, dead rows, tokens] for each rollout, the largest first."""
    last = min(first + count, store.updates) - 1
    made = []
    for update, turns in store.trained(first=first, last=last).items() if last >= first else ():
        slots: dict[str, list[Any]] = {}
        for turn in turns:
            slot = slots.setdefault(turn.rollout, [turn.rollout, 0, 0, 0])
            slot[1 if turn.reason is None else 2] += 1
            slot[3] += turn.tokens
        made.append({"update": update, "slots": sorted(slots.values(), key=lambda slot: (-slot[1], -slot[2], slot[0]))})
    return {"batches": made, "total": store.updates}


def batch(store: StoreViews, *, update: int) -> Json:
    """What `divopd explain` tells of an update, one line a rollout."""
    explained = explain(store, update)
    return {"update": update, "settings": explained["settings"], "rollouts": list(map(_line, explained["rollouts"]))}


def _line(entry: Mapping[str, Any]) -> Json:
    everything = [turn for name in ("selected", "pending", "fell_out") for turn in entry[name]]
    return {
        **{name: entry[name] for name in ("rollout", "task", "version")},
        "first_seen": min(turn["first_seen"] for turn in everything),
        "selected": [[t["turn"], t["disagreement"], t["pass"], t["reason"]] for t in entry["selected"]],
        "tokens": sum(turn["tokens"] for turn in entry["selected"]),
        "pending": [turn["turn"] for turn in entry["pending"]],
        "fell_out": list(Counter(turn["why"] for turn in entry["fell_out"]).items()),
    }


def rollouts(store: StoreViews, **wanted: Any) -> Json:
    """A page of rollouts; see StoreViews.rollout_page."""
    page = store.rollout_page(**wanted)
    return {"rows": [row._asdict() for row in page.rows], "total": page.total}


def _clock(updates: Mapping[int, UpdateRecord]) -> Clock | None:
    """Which seconds a run counts; None where it recorded none."""
    return next((record.clock for record in updates.values()), None)
