"""The configuration of a run that has begun: RUN/config.yaml, held against what the store has sealed.

A run's batches follow from its configuration, so the file must be the one that the run began with. Runs of before the
seal, and replays, have none: of them the file is believed.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from divopd.config.files import Layered, read_layers, shown
from divopd.errors import InputError
from divopd.run.folder import RunFolder
from divopd.store import Store

if TYPE_CHECKING:
    from divopd.config import Config

SHOWN = 8  # differences in one message
MISSING = object()
# what may change while a run goes on: where figures, servers and machines are, and how long to wait for them
FREE = (
    *("loggers", "gpus", "machine", "weights", "versions"),
    *("teacher.url", "teacher.server", "teacher.timeout_s", "teacher.away_limit_s", "teacher.count"),
    *("student.tensor_parallel", "teacher.tensor_parallel"),
    *("environment.workers", "environment.timeout_s", "environment.max_broken"),
)


def stored_config(folder: Path) -> dict[str, Any]:
    """What config.yaml says, as plain data; empty if there is none, as in a replay.

    An InputError names every key that is not as the run began.
    """
    run = RunFolder(folder)
    if not run.config.exists():
        return {}
    data = read_layers(run.config, ()).data
    _refuse_differences(run, _sealed(run), data)
    return data


def load_run_config(run: RunFolder) -> "Config":
    """The configuration of a run, as the run began."""
    from divopd.config import load_config

    stored_config(run.path)  # a change is told before what it makes invalid
    return load_config(run.config)


def check_sealed(config: "Config", folder: Path) -> None:
    """Refuse to go on with a run under another configuration than it began with."""
    from divopd.config import validated

    run = RunFolder(folder)
    sealed = _sealed(run)
    if sealed is not None:  # what this version of divopd knows and the run's did not has its default in both
        _refuse_differences(run, validated(Layered(run.store, dict(sealed))).resolved(), config.resolved())


def _sealed(run: RunFolder) -> dict[str, Any] | None:
    if not run.store.exists():
        return None
    with Store.open_read_only(run.store) as store:
        return store.sealed_config()


def _refuse_differences(run: RunFolder, sealed: Mapping[str, Any] | None, got: Mapping[str, Any]) -> None:
    told = list(_differences(sealed, got)) if sealed is not None else []
    if told:
        more = f"; and {len(told) - SHOWN} more" if len(told) > SHOWN else ""
        raise InputError(
            f"{run.config}: not as the run began: {'; '.join(told[:SHOWN])}{more}; put it back, or begin a new run "
            "with these settings by --out"
        )


def _differences(sealed: Mapping[str, Any], got: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for every key whose value is another one, or which only one of the two has."""
    before, now = dict(_leaves(sealed)), dict(_leaves(got))
    for key in dict.fromkeys([*before, *now]):
        if any(key == free or key.startswith(f"{free}.") for free in FREE):
            continue
        was, is_ = before.get(key, MISSING), now.get(key, MISSING)
        if was != is_ or type(was) is not type(is_):
            yield f"{key} {_word(is_, 'is')}, {_word(was, 'was')}"


def _word(value: object, verb: str) -> str:
    return f"{verb} missing" if value is MISSING else f"{verb} {shown(value)}"


def _leaves(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value
