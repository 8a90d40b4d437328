"""ScienceWorld in the real simulator: all of it, its find-* tasks in few words, and the gold paths as an expert."""

from divopd.environments.scienceworld.environment import NOT_UNDERSTOOD, ScienceWorld
from divopd.environments.scienceworld.split import tasks

__all__ = ["NOT_UNDERSTOOD", "ScienceWorld", "tasks"]
