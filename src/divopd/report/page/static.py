"""The page as one file that opens offline: style, scripts and data inside, and a policy that lets nothing else in."""

import json
import re
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from divopd.errors import DivopdError, InputError
from divopd.prompts.style import PromptStyle
from divopd.report.page import data
from divopd.report.page.health import health
from divopd.report.page.reading import read_rollout
from divopd.report.run_comparison import compare_runs
from divopd.report.runs import RunFigures, named_runs, read_run
from divopd.report.words import words_of
from divopd.run.stored_config import stored_config
from divopd.store.views import StoreViews

ASSETS = Path(__file__).parent / "assets"
STYLES = ("vendor/modern-normalize.css", "style.css")
SCRIPTS = (
    "vendor/d3.min.js",
    "vendor/plot.umd.min.js",
    "base.js",
    "source.js",
    "figures.js",
    "tables.js",
    "learning.js",
    "training.js",
    "batches.js",
    "turns.js",
    "queue.js",
    "rollouts.js",
    "diff.js",
    "app.js",
)
TEXT_BYTES = 2_000_000  # of all rollouts that can be read in a report
BATCH_BYTES = 1_000_000  # of all batches that are explained in it
LISTED = 5_000  # rollouts of a run
GOLDEN = 0.6180339887498949  # multiples of it are spread evenly, however many are taken


def write_report(runs: Sequence[Path], out: Path) -> None:
    """Write the page of these runs, whole or not at all. A report that is there is replaced."""
    page = render({"mode": "report", "views": _views(named_runs(runs))})
    partial = out.with_name(f".{out.name}.partial")
    try:
        partial.write_text(page, encoding="utf-8")
        partial.replace(out)
    except OSError as error:
        raise InputError(f"{out}: cannot write the report ({error.strerror})") from None
    finally:
        partial.unlink(missing_ok=True)


def render(content: dict[str, Any]) -> str:
    """The page with its data. Only the scripts of this package may run, and a live page may ask its own server only."""
    styles = "\n".join((ASSETS / name).read_text(encoding="utf-8") for name in STYLES)
    scripts = [(ASSETS / name).read_text(encoding="utf-8") for name in SCRIPTS]
    hashes = " ".join(f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in scripts)
    asks = "'self'" if content["mode"] == "live" else "'none'"
    parts = {
        "policy": f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        f"connect-src {asks}; base-uri 'none'; form-action 'none'",
        "styles": styles,
        "data": embeddable(content),
        "scripts": "\n".join(f"<script>{script}</script>" for script in scripts),
    }
    template = (ASSETS / "index.html").read_text(encoding="utf-8")
    # one pass over the template: what is filled in is never searched for places itself
    return "".join(parts.get(piece, piece) for piece in re.split(r"\{\{(\w+)\}\}", template))


def embeddable(content: Any) -> str:
    """JSON that cannot end its own script element, whatever texts are in it."""
    text = json.dumps(data.plain(content), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# ── the data of a report, under the names by which a live page asks for it ─────────────────────────────────────────


def _views(runs: dict[str, Path]) -> dict[str, Any]:
    views: dict[str, Any] = {"runs": {"runs": []}}
    comparable: dict[str, RunFigures] = {}
    for name, folder in runs.items():
        with StoreViews.open(folder) as store, store.snapshot(), data.figures_of_this_version(store):
            views["runs"]["runs"].append(data.summary(store, name))
            views |= {f"run/{name}/{view}": made for view, made in _of_run(store, share=len(runs)).items()}
            if store.evaluations() and store.update_records():
                comparable[name] = read_run(folder, name=name)
    views["comparison"] = comparison(list(comparable.values()))
    for first in comparable.values():
        for second in comparable.values():
            if first is not second:
                views[f"comparison/{first.name}/{second.name}"] = comparison([first, second])
    return views


def _of_run(store: StoreViews, *, share: int) -> dict[str, Any]:
    updates = store.updates
    total = data.rollouts(store, first=0, count=LISTED)
    return {
        "learning": data.learning(store),
        "updates": data.updates(store, after=-1, count=None),
        "health": health(store),
        "flow": data.flow(store),
        "experience": data.experience(store),
        "depths": data.depths(store),
        "ages": data.ages(store),
        "batches": data.batches(store, first=0, count=updates),
        "rollouts": total,
        **_explained(store, updates, budget=BATCH_BYTES // share),
        **_readable(store, [row["rollout"] for row in total["rows"]], budget=TEXT_BYTES // share),
    }


def _explained(store: StoreViews, updates: int, *, budget: int) -> dict[str, Any]:
    """The newest batches, as many as fit."""
    explained: dict[str, Any] = {}
    for update in reversed(range(updates)):
        made = data.batch(store, update=update)
        budget -= len(embeddable(made))
        if budget < 0:
            break
        explained[f"batch/{update}"] = made
    return explained


def _readable(store: StoreViews, rollouts: list[str], *, budget: int) -> dict[str, Any]:
    """Rollouts from all over the run, as many as fit."""
    folder = store.path.parent
    config = stored_config(folder)
    words, style = words_of(folder, config), style_of(config)
    readable: dict[str, Any] = {}
    for step in range(4 * len(rollouts)):
        rollout = rollouts[int(len(rollouts) * (step * GOLDEN % 1))]
        if f"rollout/{rollout}" in readable:
            continue
        made = read_rollout(store, rollout, words=words, style=style)
        budget -= len(embeddable(made))
        if budget < 0:
            break
        readable[f"rollout/{rollout}"] = made
    return readable


def style_of(config: dict[str, Any]) -> PromptStyle | None:
    """How responses of a run are read; None if it does not say."""
    try:
        return PromptStyle(**config["prompts"])
    except (KeyError, TypeError, InputError):
        return None


def comparison(runs: list[RunFigures]) -> dict[str, Any]:
    """What `divopd compare` says of these runs, or why it says nothing."""
    try:
        return compare_runs(runs).as_json() if runs else {"error": "none of the runs was evaluated yet"}
    except DivopdError as error:
        return {"error": str(error)}
