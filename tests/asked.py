"""Environments that answer what a generator of the product asks."""

from collections.abc import Generator
from typing import Any, TypeVar

from divopd.environments import Environment
from divopd.environments.environment import Call, answer

T = TypeVar("T")


def told(asking: Generator[Call, Any, T], environment: Environment) -> T:
    """What the generator returns when this environment answers its calls."""
    given = None
    try:
        while True:
            given = answer(environment, asking.send(given))
    except StopIteration as end:
        return end.value
