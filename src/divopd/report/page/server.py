"""The page of a run, live: the same views, asked from a server on loopback that only reads the run's store.

loopback.py says who may open it. Runs are looked up by name among those that were found: no path is built from a
request.
"""

import json
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qsl, unquote

from divopd.errors import DivopdError, InputError
from divopd.loopback import Handler, Server, listen, serve_until_interrupted
from divopd.report.page import data
from divopd.report.page.health import health
from divopd.report.page.reading import read_rollout
from divopd.report.page.static import comparison, render, style_of
from divopd.report.runs import RunFigures, named_runs, read_run, run_folders
from divopd.report.words import Words, words_of
from divopd.run.doing import read_now
from divopd.run.folder import RunFolder
from divopd.run.stored_config import stored_config
from divopd.store.views import Cursor, StoreViews

UPDATES_AT_ONCE = 400  # in one answer; the page asks on
MOST_ROWS = 200
MOST_FIELDS = 20  # of a query
REMEMBERED = 500  # answers

Json = dict[str, Any]
Query = Mapping[str, str]


class Runs:
    """The runs of a folder and what was last answered about them. Several requests may ask at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._answers: dict[tuple[str, ...], tuple[object, Json]] = {}
        self._lock = Lock()
        if not self.found():
            raise InputError(f"{folder}: no run in it; expected the folder of a run, or a folder of such folders")

    def found(self) -> dict[str, Path]:
        return named_runs(run_folders([self.folder]))

    def folder_of(self, name: str) -> Path:
        found = self.found()
        if name not in found:
            raise InputError(f"no run {name!r} here; there are {', '.join(found)}")
        return found[name]

    def remembered(self, key: tuple[str, ...], state: object, make: Callable[[], Json]) -> Json:
        """The last answer, if nothing has changed since."""
        known = self._answers.get(key)
        if known is not None and known[0] == state:
            return known[1]
        made = make()
        with self._lock:
            if len(self._answers) >= REMEMBERED:
                self._answers.clear()
            self._answers[key] = state, made
        return made


# ── what can be asked ─────────────────────────────────────────────────────────────────────────────────────────────


def answer(runs: Runs, parts: list[str], query: Query) -> Json:
    """The data of one view; a DivopdError if there is no such thing."""
    match parts:
        case ["news"]:
            found = runs.found()
            return {
                "cursors": {name: _state_of(folder) for name, folder in found.items()},
                "doing": {name: _doing(folder) for name, folder in found.items()},
            }
        case ["runs"]:
            return {"runs": [_summary(runs, name, folder) for name, folder in runs.found().items()]}
        case ["comparison"]:
            return _comparison(runs, list(runs.found()))
        case ["comparison", first, second]:
            return _comparison(runs, [first, second])
        case ["run", name, view, *rest]:
            return _view(runs, name, [view, *rest], query)
    raise InputError("nothing of that name here")


def _view(runs: Runs, name: str, parts: list[str], query: Query) -> Json:
    with StoreViews.open(runs.folder_of(name)) as store, store.snapshot(), data.figures_of_this_version(store):
        key = (name, *parts, *(f"{key}={value}" for key, value in sorted(query.items())))
        return runs.remembered(key, store.cursor(), lambda: data.plain(_made(store, parts, query)))


def _made(store: StoreViews, parts: list[str], query: Query) -> Json:
    match parts:
        case ["learning"]:
            return data.learning(store)
        case ["updates"]:
            return data.updates(store, after=_number(query, "after", -1), count=UPDATES_AT_ONCE)
        case ["health"]:
            return health(store)
        case ["flow"]:
            return data.flow(store)
        case ["experience"]:
            return data.experience(store)
        case ["depths"]:
            return data.depths(store)
        case ["ages"]:
            return data.ages(store)
        case ["batches"]:
            count = min(MOST_ROWS, _number(query, "count", 24))
            return data.batches(store, first=_number(query, "first", 0), count=count)
        case ["batch", update]:
            return data.batch(store, update=_number({"update": update}, "update", 0))
        case ["rollouts"]:
            return data.rollouts(
                store,
                first=_number(query, "first", 0),
                count=min(MOST_ROWS, _number(query, "count", 50)),
                order=query.get("order") or "arrival",
                fate=query.get("fate") or None,
                text=query.get("text", ""),
            )
        case ["rollout", rollout]:
            config = stored_config(store.path.parent)
            return read_rollout(store, rollout, words=_words(store.path.parent), style=style_of(config))
    raise InputError("no such view")


def _number(query: Query, name: str, usual: int) -> int:
    text = query.get(name, str(usual))
    if not (text.removeprefix("-").isdigit() and text.isascii() and len(text) < 12 and int(text) >= -1):
        raise InputError(f"{name} is {text[:20]!r}; expected a number")
    return int(text)


_TOKENIZERS: dict[Path, Words] = {}  # a folder's tokenizer does not change while it is watched


def _words(folder: Path) -> Words:
    if folder not in _TOKENIZERS:
        _TOKENIZERS[folder] = words_of(folder, stored_config(folder))
    return _TOKENIZERS[folder]


def _state_of(folder: Path) -> Cursor | str:
    try:
        with StoreViews.open(folder) as store:
            return store.cursor()
    except DivopdError as error:
        return str(error)


def _doing(folder: Path) -> list[Json]:
    """What every process of a run does now, and how many seconds ago it said so."""
    said = read_now(RunFolder(folder).now)
    return [
        {"process": name, "role": now.role, "sentence": now.sentence, "ago_s": max(0.0, time.time() - now.at)}
        for name, now in said.items()
    ]


def _summary(runs: Runs, name: str, folder: Path) -> Json:
    """What is known of a run; of a store that cannot be read, why."""
    try:
        with StoreViews.open(folder) as store, store.snapshot(), data.figures_of_this_version(store):
            made = runs.remembered((name, "summary"), store.cursor(), lambda: data.plain(data.summary(store, name)))
    except DivopdError as error:
        return {"name": name, "folder": str(folder), "error": str(error)}
    changed = max(path.stat().st_mtime for path in folder.glob("store.db*"))
    return made | {"changed_s": max(0.0, time.time() - changed)}


def _comparison(runs: Runs, names: list[str]) -> Json:
    """What `divopd compare` says of those of the runs that were evaluated."""
    states = [_state_of(runs.folder_of(name)) for name in names]
    evaluated = [name for name, state in zip(names, states, strict=True) if _has_figures(state)]

    def make() -> Json:
        return data.plain(comparison([_run_figures(runs, name) for name in evaluated]))

    return runs.remembered(("comparison", *names), states, make)


def _has_figures(state: Cursor | str) -> bool:
    return isinstance(state, Cursor) and state.evaluations > 0 and state.records > 0


def _run_figures(runs: Runs, name: str) -> RunFigures:
    folder = runs.folder_of(name)
    made = runs.remembered((name, "figures"), _state_of(folder), lambda: {"run": read_run(folder, name=name)})
    return made["run"]


# ── the server ────────────────────────────────────────────────────────────────────────────────────────────────────


def make_server(folder: Path, *, port: int = 0, token: str | None = None) -> tuple[Server, str]:
    """A server on loopback and the address to open; port 0 takes a free one. The caller runs and closes it."""
    return listen(_handler(Runs(folder)), port=port, token=token)


def serve(folder: Path, *, port: int = 0, announce: Callable[[str], None] = print) -> None:
    """Show the runs of a folder until interrupted; `announce` gets the address to open."""
    server, address = make_server(folder, port=port)
    serve_until_interrupted(server, address, announce)


def _handler(runs: Runs) -> type[Handler]:
    html = render({"mode": "live"}).encode()

    class Page(Handler):
        def do_GET(self) -> None:
            if not self.is_welcome():
                return
            query = self.path.partition("?")[2]
            rest = self.place[len(self.root) :]
            if rest == "":
                self.send(HTTPStatus.OK, html, "text/html; charset=utf-8")
            elif rest.startswith("api/"):
                self._answer([unquote(part) for part in rest.split("/")[1:]], query)
            else:
                self._send_json(HTTPStatus.NOT_FOUND, {"error": "nothing here"})

        def _answer(self, parts: list[str], query: str) -> None:
            try:
                fields = dict(parse_qsl(query, max_num_fields=MOST_FIELDS))
            except ValueError:
                self._send_json(HTTPStatus.NOT_FOUND, {"error": f"more than {MOST_FIELDS} fields in the query"})
                return
            try:
                self._send_json(HTTPStatus.OK, answer(runs, parts, fields))
            except InputError as error:
                self._send_json(HTTPStatus.NOT_FOUND, {"error": str(error)})
            except DivopdError as error:
                self._send_json(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": str(error)})

        def _send_json(self, status: HTTPStatus, content: Json) -> None:
            text = json.dumps(content, separators=(",", ":"), allow_nan=False)
            self.send(status, text.encode(), "application/json")

    return Page
