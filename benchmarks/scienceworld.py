"""ScienceWorld actions per second: our lean environment against the package's own `env.step`, in one run.

Both play the same actions (what an expert does in five tasks), in JVMs with the same small heap, turn about, so that a
busy machine slows both. Each is first warmed up for as many seconds as the other: a JVM needs hundreds of actions until
its code is compiled, and a training run gives it thousands.
"""

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

TASKS = ("find-plant/16", "use-thermometer/32", "power-component/1", "test-conductivity/68", "chemistry-mix/4")


class Sizes(NamedTuple):
    tasks: tuple[str, ...]
    rounds: int
    warm_up_s: float


FULL = Sizes(TASKS, rounds=4, warm_up_s=20.0)
QUICK = Sizes(TASKS[:1], rounds=1, warm_up_s=0.0)


def run(sizes: Sizes) -> dict[str, Any]:
    """Plays every task so many rounds in both after the warm-up; the best time of each task counts, for both."""
    from divopd.environments.scienceworld import ScienceWorld
    from divopd.environments.scienceworld.jvm import JAVA_OPTIONS

    ours, package = ScienceWorld(), _open_package(JAVA_OPTIONS)
    play: dict[str, Any] = {"ours": partial(_play_ours, ours), "package": partial(_play_package, package)}
    try:
        paths = {task: _expert_actions(ours, task) for task in sizes.tasks}
        for name in play:
            _warm_up(play[name], paths, seconds=sizes.warm_up_s)
        best = {(name, task): float("inf") for name in play for task in paths}
        for _ in range(sizes.rounds):
            for task, actions in paths.items():
                for name in play:
                    best[name, task] = min(best[name, task], play[name](task, actions))
    finally:
        ours.close()
        package.close()
    count = sum(map(len, paths.values()))
    speed = {name: count / sum(best[name, task] for task in paths) for name in play}
    return {
        "bench": "scienceworld",
        "ratio": speed["ours"] / speed["package"],
        "unit": "actions per second",
        "ours": speed["ours"],
        "reference": speed["package"],
        "detail": {
            "actions": count,
            "rounds": sizes.rounds,
            "tasks": list(sizes.tasks),
            "java_options": list(JAVA_OPTIONS),
        },
    }


def _warm_up(play: Callable[[str, list[str]], float], paths: dict[str, list[str]], *, seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for task, actions in paths.items():
            play(task, actions)


def _expert_actions(environment: Any, task: str) -> list[str]:
    from divopd.environments.scienceworld.gold import GoldExpert

    expert, observation, actions = GoldExpert(environment), environment.reset(task), []
    expert.reset(observation)
    while not observation.done and len(actions) < 30:
        actions.append(expert.act(observation))
        observation = environment.step(actions[-1])
    return actions


def _play_ours(environment: Any, task: str, actions: list[str]) -> float:
    environment.reset(task)
    start = time.perf_counter()
    for action in actions:
        environment.step(action)
    return time.perf_counter() - start


def _play_package(environment: Any, task: str, actions: list[str]) -> float:
    name, variation = task.split("/")
    environment.load(name, int(variation), "easy")
    environment.reset()
    start = time.perf_counter()
    for action in actions:
        environment.step(action)
    return time.perf_counter() - start


def _open_package(java_options: tuple[str, ...]) -> Any:
    from scienceworld import ScienceWorldEnv

    before = os.environ.get("JAVA_TOOL_OPTIONS")
    os.environ["JAVA_TOOL_OPTIONS"] = " ".join(java_options)
    try:
        return ScienceWorldEnv()
    finally:
        if before is None:
            del os.environ["JAVA_TOOL_OPTIONS"]
        else:
            os.environ["JAVA_TOOL_OPTIONS"] = before
