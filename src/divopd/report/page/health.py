"""Warnings of a run and what happened in it, as the page shows them."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from divopd.records import UpdateRecord
from divopd.report.health import Evidence, history_of
from divopd.report.unseen import unseen_words
from divopd.run.stored_config import stored_config
from divopd.store.calls import program_figures
from divopd.store.views import StoreViews

Json = dict[str, Any]


def health(store: StoreViews) -> Json:
    """What is probably wrong, over which updates it held; and what happened: absences of teachers, starved waits."""
    settings, records = store.settings(), store.update_records()
    if settings is None:
        return {"warnings": [], "happened": _absences(store)}
    unseen, looked_at = unseen_words(store)
    beta = stored_config(store.path.parent).get("learner", {}).get("beta", 1.0)
    last = Evidence([], [], settings, beta, unseen, looked_at, programs=program_figures(store))
    warnings = history_of(records, list(store.evaluations().values()), last)
    return {"warnings": [asdict(one) for one in warnings], "happened": [*_absences(store), *_starved(records)]}


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
