"""Environments of other interfaces: Gymnasium classes, OpenEnv servers."""

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from divopd.environments import make_environment
from divopd.environments.gym import GymEnvironment, seed_of
from divopd.environments.openenv import OpenEnvEnvironment
from divopd.errors import EnvironmentFailure, InputError

# ── Gymnasium ─────────────────────────────────────────────────────────────────────────────────────────────────────


def make_guess(*, reveal: Callable[[int], Any] = lambda n: f"low of {n}") -> Any:
    """A real Gymnasium environment: guess the number that the seed drew, with words for actions."""
    gymnasium = pytest.importorskip("gymnasium", reason="for want of the extra gym")

    class Guess(gymnasium.Env):
        observation_space = gymnasium.spaces.Text(100)
        action_space = gymnasium.spaces.Discrete(3)

        def reset(self, *, seed: int | None = None, options: dict | None = None):  # type: ignore[override]
            super().reset(seed=seed)
            self.left = 3
            self.number = int(self.np_random.integers(3)) if options is None else len(options["task"]) % 3
            return reveal(self.number), {}

        def step(self, action: Any):  # type: ignore[override]
            if action == 2:
                raise OSError("the guess machine is broken")
            self.left -= 1
            right = action == self.number
            return "right" if right else "wrong", float(right), right, self.left == 0, {}

    return Guess()


def test_gym_environment_is_played_with_words() -> None:
    """Actions are names of numbers, tasks are seeds, success is an end with a reward, other words are invalid."""
    environment = GymEnvironment(make_guess(), actions=["zero", "one", "break"])
    texts = {environment.reset(f"seed/{seed}").text for seed in (1, 1, 2, 3, 4, 5)}
    assert len(texts) > 1
    first = environment.reset("seed/1")
    assert first == environment.reset("seed/1")
    assert first.allowed_actions == ["zero", "one", "break"]
    environment.reset("ab c")  # no seed: the task itself is handed over
    assert not environment.step("fly").valid
    seen = environment.step("one")
    assert (seen.done, seen.success, seen.reward) == (True, True, 1.0)


def test_gym_environment_that_runs_out_of_time_has_failed() -> None:
    """Truncation ends the rollout without success."""
    environment = GymEnvironment(make_guess(), actions=["zero", "one"])
    environment.reset("abc")
    environment._env.number = 9
    seen = [environment.step("one") for _ in range(3)]
    assert [observation.done for observation in seen] == [False, False, True]
    assert not seen[-1].success


def test_gym_environment_that_raises_costs_one_rollout() -> None:
    """Whatever the environment raises is an EnvironmentFailure, and the next reset works."""
    environment = GymEnvironment(make_guess(), actions=["zero", "one", "break"])
    environment.reset("seed/1")
    with pytest.raises(EnvironmentFailure, match="guess machine is broken"):
        environment.step("break")
    assert environment.reset("seed/1").text


def test_gym_observation_that_is_no_text_needs_a_description() -> None:
    """Numbers for observations are an error that says what to give; a `describe` function makes them text."""
    with pytest.raises(InputError, match="describe"):
        GymEnvironment(make_guess(reveal=lambda n: n)).reset("seed/1")
    described = GymEnvironment(make_guess(reveal=lambda n: n), describe=lambda seen, info: f"number {seen}")
    assert described.reset("seed/1").text.startswith("number ")


def test_gym_by_id() -> None:
    """An id that gymnasium does not know, or none at all, is an InputError."""
    pytest.importorskip("gymnasium", reason="for want of the extra gym")
    with pytest.raises(InputError, match="NoSuchGame"):
        make_environment("gym", id="NoSuchGame-v0")
    with pytest.raises(InputError, match="id is missing"):
        make_environment("gym")


@pytest.mark.parametrize(("task", "seed"), [("seed/7", 7), ("seed/", None), ("seed/-1", None), ("boil/3", None)])
def test_seed_of_a_task(task: str, seed: int | None) -> None:
    """`seed/N` is a seed; anything else is a task by name."""
    assert seed_of(task) == seed


# ── OpenEnv ───────────────────────────────────────────────────────────────────────────────────────────────────────

SERVER = """
import sys
import uvicorn
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

class Say(Action):
    text: str

class Seen(Observation):
    text: str = ""
    allowed_actions: list[str] = ["up", "crash"]

class Stairs(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True
    floor = 0
    def reset(self, seed=None, episode_id=None, task="", **other):
        self.floor = seed or 0
        return Seen(text=f"floor {self.floor} {task}")
    def step(self, action, timeout_s=None, **other):
        if action.text == "crash":
            raise ValueError("the stairs broke")
        self.floor += action.text == "up"
        return Seen(text=f"floor {self.floor}", done=self.floor == 3, reward=float(self.floor == 3))
    @property
    def state(self):
        return State(step_count=self.floor)

uvicorn.run(create_app(Stairs, Say, Seen, env_name="stairs", max_concurrent_envs=4), port=int(sys.argv[1]))
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen]]:
    """A real OpenEnv server on loopback, in a process of its own."""
    pytest.importorskip("openenv", reason="for want of the extra openenv")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, str(port)], stderr=subprocess.DEVNULL, cwd=tmp_path
    ) as process:
        try:
            end = time.monotonic() + 120
            while time.monotonic() < end and process.poll() is None:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.2)
            yield f"http://127.0.0.1:{port}", process
        finally:
            process.kill()


@pytest.mark.slow
def test_openenv_server(server: tuple[str, subprocess.Popen]) -> None:
    """Sessions keep their state, seeds and task names arrive, an error of the server or its death costs one rollout."""
    url, process = server
    first, second = OpenEnvEnvironment(url), OpenEnvEnvironment(url)
    assert first.reset("seed/1").text.strip() == "floor 1"
    assert second.reset("cellar").text == "floor 0 cellar"
    assert first.step("up").text == "floor 2"
    assert second.step("x" * 100_000).text == "floor 0"
    seen = first.step("up")
    assert (seen.done, seen.success, seen.reward, seen.allowed_actions) == (True, True, 1.0, ["up", "crash"])
    with pytest.raises(EnvironmentFailure, match="the stairs broke"):
        second.step("crash")
    with pytest.raises(EnvironmentFailure, match="reset"):
        second.step("up")
    assert second.reset("seed/2").text.strip() == "floor 2"
    with pytest.raises(InputError, match="text_field"):
        OpenEnvEnvironment(url, text_field="words").reset("seed/1")
    process.kill()
    process.wait()
    with pytest.raises(EnvironmentFailure, match="failed"):
        second.step("up")
    with pytest.raises(EnvironmentFailure, match="is the server running"):
        second.reset("seed/1")


def test_openenv_needs_an_address() -> None:
    """Without a url there is nothing to talk to."""
    with pytest.raises(InputError, match="url is missing"):
        make_environment("openenv")
