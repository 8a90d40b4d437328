"""Asynchronous on-policy distillation of multi-turn agents, and the composer that fills its batches."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from divopd.methods import METHODS, make_composer
    from divopd.pool import Pool
    from divopd.rows import Row, measure
    from divopd.turns import Rollout, Turn

__version__ = "0.1.0"
__all__ = ["METHODS", "Pool", "Rollout", "Row", "Turn", "make_composer", "measure"]

_WHERE = {
    "METHODS": "methods",
    "Pool": "pool",
    "Rollout": "turns",
    "Row": "rows",
    "Turn": "turns",
    "make_composer": "methods",
    "measure": "rows",
}


def __getattr__(name: str) -> Any:
    """Load what is asked for: the processes that hold environments, of which there are many, need none of it."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"divopd.{_WHERE[name]}"), name)
    return value
