"""What a role works with, the same in a process of its own (roles.py) as in an actor of a cluster (on_ray.py)."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from divopd.checkpoints import read_weights
from divopd.config import Config
from divopd.durable_folder import numbered_folders, numbered_path
from divopd.models.policy import Policy, Response
from divopd.models.transformers_policy import TransformersPolicy
from divopd.models.vllm_policy import VllmPolicy
from divopd.pipeline.wishes import Stopped
from divopd.store import Store

POLL_S = 0.05


class Weights(Protocol):
    """The policy versions that the learner has published."""

    def versions(self) -> list[int]:
        """Those that are there now, the newest last."""
        ...

    def load(self, version: int, policy: TransformersPolicy | VllmPolicy) -> None:
        """Fill a policy; a CheckpointError means that the version is gone, replaced by newer ones."""
        ...


class WeightsFolder:
    """Published versions in the run's folder."""

    def __init__(self, run: Path) -> None:
        self.path = run / "weights"

    def versions(self) -> list[int]:
        return [int(folder.name) for folder in numbered_folders(self.path)]

    def load(self, version: int, policy: TransformersPolicy | VllmPolicy) -> None:
        path = numbered_path(self.path, version)
        policy.fill_weights(read_weights(path), source=str(path))


@dataclass
class Role:
    """All that a role may touch. `folder`, the run's, is there for the learner only: others may be elsewhere."""

    config: Config
    store: Store
    weights: Weights
    is_over: Callable[[], bool]
    folder: Path | None = None
    rank: int = 0  # of a learner

    def __post_init__(self) -> None:
        torch.set_num_threads(self.config.threads)

    def check(self) -> None:
        """Stop here if the run is to stop."""
        if self.is_over():
            raise Stopped

    def wait(self, seconds: float = POLL_S) -> None:
        self.check()
        time.sleep(seconds)

    def newest_version(self) -> int | None:
        return max(self.weights.versions(), default=None)


class Interruptible:
    """A policy whose user may stop before any turn: `check` raises Stopped then."""

    def __init__(self, policy: Policy, check: Callable[[], None]) -> None:
        self.policy, self.check, self.score = policy, check, policy.score

    def respond(
        self, prompts: Sequence[Sequence[int]], *, temperature: float, max_tokens: int, seeds: Sequence[int]
    ) -> list[Response]:
        self.check()
        return self.policy.respond(prompts, temperature=temperature, max_tokens=max_tokens, seeds=seeds)


def is_evaluated(config: Config, version: int) -> bool:
    """Whether a version is one of those that the config wants evaluated."""
    return version % config.evaluation.every == 0 or version == config.learner.updates
