"""An OpenEnv server as an environment. The session lives on one websocket: the server's plain HTTP calls keep no state.

A task `seed/7` resets with that seed; any other task is handed over as `task=TASK`.
"""

from typing import Any

from divopd.environments.environment import Observation
from divopd.environments.gym import seed_of
from divopd.errors import EnvironmentFailure, InputError, MissingExtraError


class OpenEnvEnvironment:
    """Talks to the server at `url` ("http://127.0.0.1:8000"); connects at the first reset and again after a failure.

    `action_field` is the field of the server's action that takes the text, `text_field` the field of its observation
    that holds what is seen. Fields `allowed_actions`, `success` and `valid` are used where the observation has
    them; otherwise success is an end with a positive reward.
    """

    def __init__(
        self, url: str, *, action_field: str = "text", text_field: str = "text", timeout_s: float = 60.0
    ) -> None:
        self._url = url
        self._action_field = action_field
        self._text_field = text_field
        self._timeout_s = timeout_s
        self._client: Any = None

    def reset(self, task: str) -> Observation:
        seed = seed_of(task)
        if self._client is None:
            self._client = _connect(self._url, self._timeout_s)
        return self._ask("reset", **({"task": task} if seed is None else {"seed": seed}))

    def step(self, action: str) -> Observation:
        if self._client is None:
            raise EnvironmentFailure(f"OpenEnv {self._url}: no session is open; reset the environment first")
        return self._ask("step", {self._action_field: action.encode("utf-8", "replace").decode("utf-8")})

    def close(self) -> None:
        """End the session; a later reset opens another."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _ask(self, method: str, *arguments: Any, **named: Any) -> Observation:
        from websockets.exceptions import WebSocketException

        try:
            result = getattr(self._client, method)(*arguments, **named)
        # the client raises RuntimeError for an error that the server reports, ValueError for an answer that is no JSON
        except (OSError, TimeoutError, RuntimeError, ValueError, WebSocketException) as error:
            self.close()
            raise EnvironmentFailure(f"OpenEnv {self._url}: {method} failed: {type(error).__name__}: {error}") from None
        return self._observe(result)

    def _observe(self, result: Any) -> Observation:
        seen, reward, done = result.observation, float(result.reward or 0.0), bool(result.done)
        text = seen.get(self._text_field)
        if not isinstance(text, str):
            raise InputError(
                f"OpenEnv {self._url}: the observation has no text in {self._text_field!r}; it has "
                f"{', '.join(sorted(seen))}; set text_field"
            )
        allowed = seen.get("allowed_actions")
        return Observation(
            text,
            None if allowed is None else [str(action) for action in allowed],
            done=done,
            success=done and bool(seen.get("success", reward > 0)),
            reward=reward,
            valid=bool(seen.get("valid", True)),
        )


def _connect(url: str, timeout_s: float) -> Any:
    try:
        from openenv.core.generic_client import GenericEnvClient
    except ImportError:
        raise MissingExtraError("OpenEnv", "openenv") from None
    try:
        client = GenericEnvClient(
            base_url=url, connect_timeout_s=min(timeout_s, 10.0), message_timeout_s=timeout_s
        ).sync()
        return client.connect()
    except (OSError, TimeoutError) as error:
        raise EnvironmentFailure(f"OpenEnv {url}: cannot connect ({error}); is the server running?") from None
