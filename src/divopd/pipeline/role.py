"""What the processes of the live clock have in common."""

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import torch

from divopd.config import Config, load_config
from divopd.durable_folder import numbered_folders
from divopd.models.policy import Policy, Response
from divopd.store import Store

POLL_S = 0.05


class Stopped(Exception):
    """The run is to stop; raised where a role can stop without losing anything."""


class Role:
    """What all roles have: the configuration, a connection to the store, and ears for SIGTERM."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config: Config = load_config(folder / "config.yaml")
        torch.set_num_threads(self.config.threads)
        self.store = Store.open(folder)
        self.stopping = False
        self._parent = os.getppid()
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which tells us

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self.stopping = True

    def check(self) -> None:
        """Stop here if SIGTERM came, or if the process that started the roles is gone: nobody would end them."""
        if self.stopping or os.getppid() != self._parent:
            raise Stopped

    def wait(self, seconds: float = POLL_S) -> None:
        self.check()
        time.sleep(seconds)

    @property
    def weights(self) -> Path:
        return self.folder / "weights"

    def newest_version(self) -> int | None:
        return max((int(folder.name) for folder in numbered_folders(self.weights)), default=None)


class Interruptible:
    """A policy that acts for a role, which may stop before any turn."""

    def __init__(self, policy: Policy, role: Role) -> None:
        self.policy, self.role, self.score = policy, role, policy.score

    def respond(
        self, prompts: Sequence[Sequence[int]], *, temperature: float, max_tokens: int, seeds: Sequence[int]
    ) -> list[Response]:
        self.role.check()
        return self.policy.respond(prompts, temperature=temperature, max_tokens=max_tokens, seeds=seeds)


def is_evaluated(config: Config, version: int) -> bool:
    """Whether a version is one of those that the config wants evaluated."""
    return version % config.evaluation.every == 0 or version == config.learner.updates
