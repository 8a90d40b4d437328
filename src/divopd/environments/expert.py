"""What an expert can do: say the right action at any state of a rollout in which others may act."""

from typing import Protocol

from divopd.environments.environment import Environment, Observation


class Expert(Protocol):
    """`reset` with the first observation of a rollout; then `act` at every state.

    An action is taken to be the one that `act` proposed unless `took` names another before the next `act`.
    """

    def reset(self, observation: Observation) -> None: ...

    def act(self, observation: Observation) -> str: ...

    def took(self, action: str) -> None: ...


def expert_actions(environment: Environment, expert: Expert, task: str, *, horizon: int) -> tuple[str, ...]:
    """What the expert does from a task's beginning to its success; empty if it does not succeed within the horizon."""
    observation = environment.reset(task)
    expert.reset(observation)
    actions: list[str] = []
    while not observation.done and len(actions) < horizon:
        actions.append(expert.act(observation))
        observation = environment.step(actions[-1])
    return tuple(actions) if observation.success else ()
