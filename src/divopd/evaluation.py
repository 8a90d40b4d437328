"""How often a policy succeeds: student only, temperature 0.4, the same tasks and seeds every time (SPEC §8).

Many rollouts are in flight at once, one turn of each per call of the policy; a policy that keeps its cache between
calls reads only what is new. A response depends on its prompt and on (seed, task number, turn), never on what runs
beside it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from divopd.environments import Environment, Observation, find_entry, make_environment
from divopd.errors import EnvironmentFailure
from divopd.models.policy import Policy
from divopd.prompts import Codec, Conversation, PromptStyle


@dataclass(frozen=True)
class Played:
    """What became of one rollout of an evaluation."""

    task: str
    success: bool
    turns: int


@dataclass(frozen=True)
class Evaluation:
    """Rollouts in the order of the tasks. `percent` is the success rate (SR)."""

    rollouts: tuple[Played, ...]

    @property
    def percent(self) -> float:
        return 100.0 * sum(rollout.success for rollout in self.rollouts) / max(1, len(self.rollouts))


@dataclass(frozen=True)
class Setting:
    """What is the same for every rollout of an evaluation."""

    environment: str
    style: PromptStyle
    codec: Codec
    temperature: float = 0.4
    max_response_tokens: int = 32
    in_flight: int = 64
    seed: int = 0


class _InFlight:
    """One rollout between two turns."""

    def __init__(self, number: int, task: str, environment: Environment, setting: Setting) -> None:
        self.number, self.task, self.turn = number, task, 0
        self.environment, self.setting = environment, setting
        self.seen = environment.reset(task)
        self.conversation = Conversation(setting.style, setting.codec, self.seen)

    @property
    def over(self) -> bool:
        return self.seen.done or self.turn >= find_entry(self.setting.environment).horizon

    @property
    def sampling_seed(self) -> int:
        return int(np.random.SeedSequence([self.setting.seed, self.number, self.turn]).generate_state(1)[0])

    def act(self, response_ids: Sequence[int]) -> None:
        style = self.setting.style
        action = style.parse(self.setting.codec.decode(response_ids))
        try:
            self.seen = self.environment.step(action) if action is not None else style.unparsed(self.seen)
        except EnvironmentFailure as failure:  # it costs this rollout, which has failed
            self.seen = Observation(str(failure), done=True)
        self.conversation.add(response_ids, action, self.seen)
        self.turn += 1


def success_rate(policy: Policy, tasks: Sequence[str], setting: Setting) -> Evaluation:
    """Play every task once with the policy."""
    return success_rate_with(lambda turn: policy, tasks, setting)


def success_rate_with(actor: Callable[[int], Policy], tasks: Sequence[str], setting: Setting) -> Evaluation:
    """Play every task once, with the policy that `actor` names for a turn: a teacher may take over from a student."""
    waiting = iter(enumerate(tasks))
    active: list[_InFlight] = []
    played: dict[int, Played] = {}
    environments = [make_environment(setting.environment) for _ in range(min(setting.in_flight, len(tasks)))]
    while True:
        free = [environment for environment in environments if all(environment is not r.environment for r in active)]
        active += [_InFlight(number, task, free.pop(), setting) for number, task in islice(waiting, len(free))]
        if not active:
            return Evaluation(tuple(played[number] for number in range(len(tasks))))
        for policy, rollouts in _by_policy(actor, active):
            responses = policy.respond(
                [rollout.conversation.prompt().ids for rollout in rollouts],
                temperature=setting.temperature,
                max_tokens=setting.max_response_tokens,
                seeds=[rollout.sampling_seed for rollout in rollouts],
            )
            for rollout, response in zip(rollouts, responses, strict=True):
                rollout.act(response.ids)
        played |= {r.number: Played(r.task, r.seen.success, r.turn) for r in active if r.over}
        active = [rollout for rollout in active if not rollout.over]


def _by_policy(actor: Callable[[int], Policy], active: Sequence[_InFlight]) -> Iterator[tuple[Policy, list[_InFlight]]]:
    groups: dict[int, tuple[Policy, list[_InFlight]]] = {}
    for rollout in active:
        policy = actor(rollout.turn)
        groups.setdefault(id(policy), (policy, []))[1].append(rollout)
    yield from groups.values()
