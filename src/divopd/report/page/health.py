"""Warnings of a run and what happened in it, as the page shows them."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from divopd.records import UpdateRecord
from divopd.report.fates import counted
from divopd.report.health import Evidence, history_of
from divopd.report.unseen import unseen_words
from divopd.run.stored_config import stored_config
from divopd.store.calls import program_figures
from divopd.store.views import StoreViews

Json = dict[str, Any]
MOST_REASONS = 8


def health(store: StoreViews) -> Json:
    """What is probably wrong, over which updates it held; and what happened: absences, starved waits, lost rollouts."""
    settings, records = store.settings(), store.update_records()
    if settings is None:
        return {"warnings": [], "happened": [*_absences(store), *_broken(store)]}
    unseen, looked_at = unseen_words(store)
    beta = stored_config(store.path.parent).get("learner", {}).get("beta", 1.0)
    last = Evidence([], [], settings, beta, unseen, looked_at, programs=program_figures(store))
    warnings = history_of(records, list(store.evaluations().values()), last)
    happened = [*_absences(store), *_starved(records), *_broken(store)]
    return {"warnings": [asdict(one) for one in warnings], "happened": happened}


def _absences(store: StoreViews) -> list[Json]:
    """Each time that a teacher could not be reached: from which update on, for how long, and why.

    While it lasts, `why` says since when and until when it is waited for.
    """
    happened: list[Json] = []
    lasting: dict[tuple[Any, Any], Json] = {}  # by the server, and by the process that misses it
    for _, kind, event in store.events():
        whose, error = (event.get("who"), event.get("by")), str(event.get("error", ""))
        if kind == "teacher_away":
            lasting[whose] = {"what": "teacher away", "first": event.get("update"), "last": None, "seconds": None}
            lasting[whose]["why"] = event.get("sentence", error)
            happened.append(lasting[whose])
        elif kind == "teacher_still_away" and whose in lasting:
            lasting[whose]["why"] = event["sentence"]
        elif kind == "teacher_back" and whose in lasting:
            ended = lasting.pop(whose)
            ended.update(last=event["update"], seconds=event["away_s"], why=event.get("error", ended["why"]))
    return happened


def _broken(store: StoreViews) -> list[Json]:
    """Rollouts that broke off, by reason, the most frequent ones first."""
    by_reason: dict[str, list[Mapping[str, Any]]] = {}
    for _, kind, event in store.events():
        if kind == "rollout_broke":
            by_reason.setdefault(str(event.get("reason")), []).append(event)
    happened: list[Json] = []
    for reason, events in sorted(by_reason.items(), key=lambda item: -len(item[1]))[:MOST_REASONS]:
        last = events[-1]
        named = f"the last one {last.get('rollout')} of task {last.get('task')}"
        why = f"{counted(len(events), 'rollout')}, {named}: {reason}"
        happened.append({"what": "broke off", "first": None, "last": None, "seconds": None, "why": why})
    return happened


def _starved(records: Mapping[int, UpdateRecord]) -> list[Json]:
    """Stretches of updates before each of which nothing in the queue could be trained for a while; the first alone."""
    happened: list[Json] = []
    for update, record in records.items():
        if not record.starved_s:
            continue
        if not happened or happened[-1]["last"] != update - 1 or update == 1:
            why = "the queue had no turn that could be trained"
            why = "every run begins so: its first rollouts were being played and scored" if update == 0 else why
            happened.append({"what": "starved", "first": update, "last": update, "seconds": 0.0, "why": why})
        happened[-1] |= {"last": update, "seconds": happened[-1]["seconds"] + record.starved_s}
    return happened
