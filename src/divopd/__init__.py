"""Asynchronous on-policy distillation of multi-turn agents, and the composer that fills its batches."""

from divopd.methods import METHODS, make_composer
from divopd.pool import Pool
from divopd.rows import Row, measure
from divopd.turns import Rollout, Turn

__version__ = "0.1.0"
__all__ = ["METHODS", "Pool", "Rollout", "Row", "Turn", "make_composer", "measure"]
