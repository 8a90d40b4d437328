"""A model at work in the terminal: every answer and what the environment says to it, as it happens."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from divopd.environments import Environment, Observation
from divopd.explorer import Acting, Played, Start, play
from divopd.models.policy import Policy, Response
from divopd.printable import printable
from divopd.prompts.chat import readable

if TYPE_CHECKING:
    from rich.console import Console


def show_rollout(
    start: Start, acting: Acting, *, policy: Policy, environment: Environment, console: "Console"
) -> Played:
    """Play one rollout exactly as an evaluation does, and show it on the console meanwhile."""
    shown = _Shown(policy, environment, acting, console)
    [played] = play([start], acting, student=shown, environments=[shown])
    if played.failure:
        console.print(printable(f"the environment broke off: {played.failure}"), style="yellow")
    ending = "success" if played.success else "not solved"
    console.print(f"{ending} after {len(played.turns)} of {start.depth} turns, reward {played.reward:g}", style="bold")
    return played


class _Shown:
    """A policy and an environment that say aloud what passes through them."""

    def __init__(self, policy: Policy, environment: Environment, acting: Acting, console: "Console") -> None:
        self._policy, self._environment, self._acting, self._console = policy, environment, acting, console
        self._turn = 0

    def respond(
        self, prompts: Sequence[Sequence[int]], *, temperature: float, max_tokens: int, seeds: Sequence[int]
    ) -> list[Response]:
        responses = self._policy.respond(prompts, temperature=temperature, max_tokens=max_tokens, seeds=seeds)
        for response in responses:
            self._turn += 1
            answer = self._acting.codec.decode(response.ids)
            if self._acting.program is not None:
                self._console.print(printable(f"{self._turn} > {answer.strip()}"), style="bold")
                continue
            action = self._acting.style.parse(answer)
            self._console.print(printable(f"{self._turn} > {action or '(no action in the answer)'}"), style="bold")
            if answer.strip() != action:
                self._console.print(printable(answer.strip()), style="dim")
        return responses

    def score(
        self, sequences: Sequence[Sequence[int]], spans: Sequence[Sequence[tuple[int, int]]]
    ) -> list[list[np.ndarray]]:
        return self._policy.score(sequences, spans)

    def reset(self, task: str) -> Observation:
        self._console.print(printable(f"task {task}"), style="bold")
        return self._seen(self._environment.reset(task))

    def step(self, action: str) -> Observation:
        return self._seen(self._environment.step(action))

    def _seen(self, observation: Observation) -> Observation:
        if not observation.valid:
            self._console.print("(not understood)", style="yellow")
        text = observation.text if self._acting.program is None else readable(observation.text)
        self._console.print(printable(text))
        return observation
