"""The folder of a run: made whole before anything starts."""

from pathlib import Path

from divopd.config import Config
from divopd.errors import InputError
from divopd.store import Store


def begin_run(config: Config, folder: Path) -> None:
    """Make the run's folder with the resolved configuration and an empty store; an existing run is never touched."""
    if (folder / "store.db").exists():
        raise InputError(f"{folder} is a run already; go on with it by --resume {folder}, or choose another --out")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
    Store.create(folder / "store.db", max_queued=None).close()
