"""How a run begins: its folder, made whole before anything starts, and the clock that it runs on."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from divopd.config import Config
from divopd.errors import InputError
from divopd.pipeline.wishes import Wishes
from divopd.store import Store

if TYPE_CHECKING:
    from divopd.pipeline.live import LiveRun
    from divopd.pipeline.simulated import SimulatedRun


def begin_run(config: Config, folder: Path) -> None:
    """Make the run's folder with the resolved configuration and an empty store; an existing run is never touched."""
    if (folder / "store.db").exists():
        raise InputError(f"{folder} is a run already; go on with it by --resume {folder}, or choose another --out")
    if config.cluster == "ray":
        import divopd.pipeline.on_ray  # noqa: F401 - if the extra is missing, this says so before anything is made
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
    Store.create(folder / "store.db", max_queued=None).close()


def make_run(
    config: Config, folder: Path, *, report: Callable[[str, dict[str, Any]], None], wishes: Wishes | None = None
) -> "SimulatedRun | LiveRun":
    """The run of a folder on the clock and the machines that its configuration names; `run()` trains it to its end."""
    if config.clock == "simulated":
        from divopd.pipeline.simulated import SimulatedRun as Run
    elif config.cluster is None:
        from divopd.pipeline.live import LiveRun as Run
    else:
        from divopd.pipeline.on_ray import RayRun as Run
    return Run(config, folder, report=report, wishes=wishes)
