"""Rollouts of the virtual clock whose turns may have different versions (explorer.versions: turn).

A turn is generated at the virtual moment at which it begins, with the weights that explorers then have. What a rollout
takes in all is the same as where it has one version; `next_turn_s` says how much of it has passed before a turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from divopd.config import Costs
from divopd.environments import Environment
from divopd.errors import CheckpointError
from divopd.explorer import Acting, Answered, Ask, InLockStep, Start, go_on, live
from divopd.models.policy import Response


@dataclass(frozen=True, eq=False)
class Given:
    """One answer of a model in a rollout: what was read for it, what came, and the version of the weights."""

    prompt_tokens: int
    response: Response
    version: int


@dataclass(frozen=True, eq=False)
class Begun:
    """A rollout under way, as a checkpoint keeps it: how it began, and what models have answered so far."""

    start: Start
    version: int  # of its start
    began_at: float
    given: tuple[Given, ...] = ()

    def after(self, ask: Ask, response: Response, *, version: int) -> "Begun":
        return replace(self, given=(*self.given, Given(len(ask.prompt.ids), response, version)))

    def next_turn_s(self, costs: Costs) -> float:
        """Virtual seconds, without jitter, from its start to its next turn.

        Each turn takes its share of `rollout_s`, by the turns that it may have; who ends early takes the rest at the
        end. A prompt may be shorter than the one before it: time does not go back.
        """
        generated, read, turns = 0, 0, len(self.start.replayed)
        for one in self.given:
            generated += len(one.response.ids)
            read = max(read, one.prompt_tokens + len(one.response.ids))
            turns += 1
        each = costs.rollout_s / self.start.depth + costs.environment_step_s
        return turns * each + generated * costs.generated_token_s + read * costs.read_token_s

    def live_again(self, acting: Acting, environment: Environment) -> InLockStep:
        """Live up to where it was: the environment hears the same actions, and no model is asked."""
        life = InLockStep(live(self.start, acting), self.start, environment)
        go_on([(life, None)])
        for one in self.given:
            if life.ask is None:
                raise CheckpointError(
                    f"rollout r{self.start.number:06d} of task {self.start.task} ends earlier than before the resume; "
                    "expected an environment that answers the same actions alike"
                )
            go_on([(life, Answered(one.response, one.version))])
        return life

    def to_json(self) -> dict[str, Any]:
        start = self.start
        return {
            "start": [start.number, start.task, start.depth, list(start.replayed)],
            "version": self.version,
            "began_at": self.began_at,
            "given": [[g.prompt_tokens, g.response.ids, g.response.logprobs.tolist(), g.version] for g in self.given],
        }


def begun_from_json(data: dict[str, Any]) -> Begun:
    number, task, depth, replayed = data["start"]
    given: Sequence[Any] = data["given"]
    answers = tuple(Given(tokens, Response(ids, np.asarray(logs)), version) for tokens, ids, logs, version in given)
    return Begun(Start(number, task, depth, tuple(replayed)), data["version"], data["began_at"], answers)
