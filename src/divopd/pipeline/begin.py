"""How a run begins: its folder, made whole before anything starts, and the clock that it runs on."""

from pathlib import Path
from typing import Any

from divopd.config import Config
from divopd.errors import InputError
from divopd.extras import require
from divopd.pipeline.wishes import Wishes
from divopd.pipeline.wrong_answers import WrongAnswerNews
from divopd.records import Observer, Observers
from divopd.run.card import write_card
from divopd.run.folder import RunFolder
from divopd.run.lock import RunLock
from divopd.run.stored_config import check_sealed
from divopd.store import Store


def begin_run(config: Config, folder: Path) -> None:
    """Make the run's folder with the resolved configuration, its card and an empty store.

    An existing run is never touched.
    """
    run = RunFolder(folder)
    if run.store.exists():
        raise InputError(f"{folder} is a run already; go on with it by --resume {folder}, or choose another --out")
    if config.cluster == "ray":
        require("ray")  # before anything is made
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with RunLock(folder):
            run.config.write_text(config.to_yaml(), encoding="utf-8")
            write_card(run.card)
            Store.create(run.store, config=_sealed(config)).close()
    except OSError as error:
        raise InputError(
            f"{folder}: a run cannot be made there ({error.strerror}); choose another --out, or make room"
        ) from None


def _sealed(config: Config) -> dict[str, Any]:
    """The versions of packages are told in config.yaml; they may change while a run goes on."""
    return {name: value for name, value in config.resolved().items() if name != "versions"}


def go_on(config: Config, folder: Path, *, observer: Observer, wishes: Wishes | None = None) -> None:
    """Train the run of a folder to its end; a RunBusyError if another command is at it."""
    with RunLock(folder):
        go_on_holding(config, folder, observer=observer, wishes=wishes)


def go_on_holding(config: Config, folder: Path, *, observer: Observer, wishes: Wishes | None = None) -> None:
    """Train a run whose lock the caller holds, on the clock and the machines that its configuration names."""
    check_sealed(config, folder)
    wishes = wishes or Wishes()
    if config.clock == "simulated":
        from divopd.pipeline.simulated import run_simulated

        observers = Observers(observer, WrongAnswerNews(folder, observer))  # processes tell of them on the other clock
        run_simulated(config, folder, observer=observers, wishes=wishes)
    elif config.cluster is None:
        from divopd.pipeline.processes import LiveRun

        LiveRun(config, folder, observer=observer, wishes=wishes).run()
    else:
        from divopd.pipeline.on_ray import RayRun

        RayRun(config, folder, observer=observer, wishes=wishes).run()
