"""A run that an item of the paper wants, and where it and its result lie.

A run is known by a digest of its resolved configuration, so all items that want the same run share it. Values that are
the defaults do not enter the digest: a new setting leaves old results in place. A changed default is found out when a
result is read, because the stored configuration is compared with the wanted one.
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from divopd.errors import InputError
from divopd.experiments.arms import ARMS, SETTINGS
from divopd.models.model_files import model_folder

if TYPE_CHECKING:
    from divopd.config import Config

QUICK = (
    "learner.updates=4",
    "learner.checkpoint_every=4",
    "evaluation.every=2",
    "evaluation.tasks=4",
    "composer.batch_size=8",
    "explorer.rollouts_in_flight=4",
    "environment.horizon=8",
)


@dataclass(frozen=True)
class Places:
    """Folders: configurations, run folders (large, may be deleted), and what is kept: results, tables, figures."""

    configs: Path
    runs: Path
    out: Path

    @property
    def results(self) -> Path:
        return self.out / "results"


@dataclass(frozen=True)
class Wanted:
    """One run: a setting, an arm, a seed, and overrides that hold for all runs of this command."""

    setting: str
    arm: str
    seed: int
    overrides: tuple[str, ...]
    places: Places

    @cached_property
    def config(self) -> "Config":
        """The resolved configuration."""
        from divopd.config import load_config

        arm = ARMS[self.arm]
        file = self.places.configs / self.setting / f"{arm.file}.yaml"
        if not file.is_file():
            raise InputError(
                f"{file}: no such configuration; `divopd paper` reads those of a checkout of divopd: run it there, or "
                "say where they are with --configs"
            )
        # --set comes before the arm's own overrides: what is compared must differ
        said = [*self.overrides, *arm.overrides, f"seed={self.seed}"]
        if arm.load != 1:
            own = load_config(file, said).explorer.rollouts_in_flight
            said.append(f"explorer.rollouts_in_flight={max(1, round(arm.load * own))}")
        return load_config(file, said)

    @cached_property
    def label(self) -> str:
        """A name of the run, the same for all arms that want it: SETTING/METHOD-seedN-DIGEST."""
        changed = self.config.model_dump(mode="json", exclude_defaults=True)
        digest = hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()[:8]
        return f"{self.setting}/{self.config.method}-seed{self.seed}-{digest}"

    @property
    def result_file(self) -> Path:
        return self.places.results / f"{self.label}.json"

    @cached_property
    def models(self) -> dict[str, str | None]:
        """The digests of student and teacher, so that a result of other weights is not taken for this one's."""
        return {
            "student": model_digest(self.config.student.model),
            "teacher": model_digest(self.config.teacher.model),
        }

    @property
    def folder(self) -> Path:
        weights = hashlib.sha256(json.dumps(self.models).encode()).hexdigest()[:4]
        return self.places.runs / f"{self.label}-{weights}"


def is_there(setting: str, places: Places) -> bool:
    """Whether the setting has configurations in this checkout."""
    return (places.configs / setting).is_dir()


def model_digest(name: str) -> str | None:
    """A digest of a model's weights; None if it is not there."""
    files = sorted(model_folder(name).glob("*.safetensors"))
    digests = b"".join(_digest_of(file, file.stat().st_size, file.stat().st_mtime_ns) for file in files)
    return hashlib.sha256(digests).hexdigest()[:16] if files else None


@lru_cache
def _digest_of(file: Path, size: int, changed_ns: int) -> bytes:
    """Hundreds of runs want the same models: a file is read again only when it has another size or time."""
    del size, changed_ns
    return hashlib.sha256(file.read_bytes()).digest()


def same_settings(stored: Any, wanted: Any) -> bool:
    """Whether two resolved configurations agree wherever both say something."""
    if isinstance(stored, dict) and isinstance(wanted, dict):
        return all(same_settings(stored[key], wanted[key]) for key in stored.keys() & wanted.keys() - {"versions"})
    return stored == wanted


def settings_of(places: Places, chosen: tuple[str, ...] | None) -> list[str]:
    """The settings to run: all that are there, or those of them that were asked for."""
    return [name for name in SETTINGS if is_there(name, places) and (chosen is None or name in chosen)]
