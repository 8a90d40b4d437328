"""What an expert can do: say the right action at any state of a rollout in which others may act."""

from typing import Protocol

from divopd.environments.environment import Observation


class Expert(Protocol):
    """`reset` with the first observation of a rollout; then `act` at every state.

    An action is taken to be the one that `act` proposed unless `took` names another before the next `act`.
    """

    def reset(self, observation: Observation) -> None: ...

    def act(self, observation: Observation) -> str: ...

    def took(self, action: str) -> None: ...
