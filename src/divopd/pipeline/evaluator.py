"""Evaluation of a policy version: student only, the same tasks and random numbers every time (SPEC §8)."""

from collections import Counter
from functools import cached_property
from typing import Any

from divopd.config import Config
from divopd.environments import kind_of, tasks
from divopd.errors import EnvironmentFailure
from divopd.evaluation import Evaluation, Setting, success_rate, takeover_success_rate
from divopd.models.policy import Policy
from divopd.prompts import Codec


class Evaluator:
    """Plays the fixed evaluation tasks of a run."""

    def __init__(self, config: Config, codec: Codec) -> None:
        self.config = config
        self._setting = Setting(
            environment=config.environment.name,
            style=config.prompts,
            codec=codec,
            settings=config.environment.settings,
            horizon=config.environment.horizon,
            temperature=config.evaluation.temperature,
            max_response_tokens=config.explorer.max_response_tokens,
            in_flight=config.evaluation.in_flight,
            seed=config.seed,
        )

    @cached_property
    def tasks(self) -> list[str]:
        environment = self.config.environment
        return tasks(environment.name, environment.evaluation_split, **environment.settings)[
            : self.config.evaluation.tasks
        ]

    def evaluate(self, policy: Policy) -> dict[str, Any]:
        """Success rate in percent, overall and by kind of task, and the mean number of turns."""
        return self._figures(success_rate(policy, self.tasks, self._setting))

    def evaluate_takeover(self, policy: Policy, *, student: Policy, after_turns: int) -> dict[str, Any]:
        """The same figures when the policy takes over from a student, over the tasks that were open by then."""
        played = takeover_success_rate(student, self.tasks, self._setting, teacher=policy, after_turns=after_turns)
        return self._figures(Evaluation(tuple(one for one in played.rollouts if len(one.turns) > after_turns)))

    def _figures(self, played: Evaluation) -> dict[str, Any]:
        failures = [rollout.failure for rollout in played.rollouts]
        if failures and all(failures):  # a success rate of 0 would be a claim about the policy
            raise EnvironmentFailure(f"all {len(failures)} rollouts of an evaluation broke off: {failures[-1]}")
        environment = self.config.environment
        kinds = {task: kind_of(environment.name, task, **environment.settings) for task in self.tasks}
        total = Counter(kinds[rollout.start.task] for rollout in played.rollouts)
        won = Counter(kinds[rollout.start.task] for rollout in played.rollouts if rollout.success)
        return {
            "success_rate": played.percent,
            "tasks": len(played.rollouts),
            "turns": sum(len(rollout.turns) for rollout in played.rollouts) / max(1, len(played.rollouts)),
            "by_kind": {kind: 100.0 * won[kind] / total[kind] for kind in sorted(total)},
        }
