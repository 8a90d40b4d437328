"""The configuration of a run: typed, frozen, and checked before anything starts.

    config = load_config(Path("configs/default/divopd.yaml"), ["learner.lr=1e-5"])

A YAML file may extend another one (`extends: ../common.yaml`, relative to itself): mappings are merged key by key, all
other values are replaced. What no file says has the paper's value. What depends on the environment (its horizon, its
evaluation, the look of its prompts) or on the student (the form of answers that it was taught) is filled in, so that
the resolved configuration stored with a run says all of it.

The classes are loaded when they are asked for: whoever only reads files (files.py), as audits and --help do, needs no
pydantic.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from divopd.config.loading import load_config, validated
    from divopd.config.parts import Costs, LearnerPart, LoggerName, ModelPart, StudentPart
    from divopd.config.schema import SHARED, Config, package_versions

__all__ = [
    "SHARED",
    "Config",
    "Costs",
    "LearnerPart",
    "LoggerName",
    "ModelPart",
    "StudentPart",
    "load_config",
    "package_versions",
    "validated",
]
HOMES = {
    "loading": ("load_config", "validated"),
    "parts": ("Costs", "LearnerPart", "LoggerName", "ModelPart", "StudentPart"),
    "schema": ("SHARED", "Config", "package_versions"),
}


def __getattr__(name: str) -> Any:
    for home, names in HOMES.items():
        if name in names:
            return getattr(import_module(f"divopd.config.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
