"""What the shopper is asked to buy, in an order that is the same on every machine.

A goal's number is its place after one shuffle with the original's seed, so goals 0–499 are the test goals and
training starts at 500. Hidden draws (the exact price inside a price range, the price limit) come from a generator
seeded by (seed, product), hence do not depend on the hash seed, on the other products, or on the order of calls.
"""

import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from divopd.environments.webshop.catalogue import Product
from divopd.errors import InputError

GoalKind = Literal["synthetic", "human"]
Split = Literal["train", "test"]

HORIZON = 15  # turns of a rollout
TEST_GOALS = 500  # goals 0–499 are for testing, the rest for training
EVALUATION_TASKS = 128  # an evaluation plays the first so many test goals

_SHUFFLE_SEED = 233  # the original's, so that its numbering of goals is ours
_PRICE_LIMITS = [10.0 * i for i in range(1, 100)]
_NO_LIMIT = 1_000_000.0


@dataclass(frozen=True, slots=True)
class Goal:
    """One shopping task: `text` is all that the agent is told, the rest decides the reward."""

    text: str
    product: Product
    attributes: tuple[str, ...]
    options: tuple[str, ...]  # the wanted values
    price_limit: float


def make_goals(products: Sequence[Product], kind: GoalKind, *, seed: int) -> tuple[Goal, ...]:
    """All goals of that kind in their fixed order."""
    make = {"synthetic": _synthetic_goals, "human": _human_goals}[kind]
    goals = [goal for product in products for goal in make(product, seed=seed)]
    if not goals:
        raise InputError(f"none of the {len(products)} products has a {kind} goal; choose the other kind of goals")
    random.Random(_SHUFFLE_SEED).shuffle(goals)
    return tuple(goals)


def exact_price(product: Product, *, seed: int) -> float:
    """What buying costs: a product with a price range has one price inside it that no page shows."""
    return _draws(product, "price", seed=seed).uniform(product.pricing[0], product.pricing[-1])


def task_names(number_of_goals: int, split: Split) -> list[str]:
    """The tasks of a split, in training or evaluation order."""
    if split == "test":
        return [_name(number) for number in range(min(TEST_GOALS, number_of_goals))]
    if number_of_goals <= TEST_GOALS:
        raise InputError(
            f"there are {number_of_goals} goals and the first {TEST_GOALS} are for testing: none is left to train on; "
            "use more products, or synthetic goals"
        )
    return [_name(number) for number in range(TEST_GOALS, number_of_goals)]


def goal_number(task: str, number_of_goals: int) -> int:
    """The number in a task name; a name that is no task of this shop is an InputError."""
    number = task.removeprefix("goal-")
    if not (number.isascii() and number.isdigit() and task == _name(int(number[:9])) and int(number) < number_of_goals):
        raise InputError(f"unknown WebShop task {task[:80]!r}; expected {_name(0)} to {_name(number_of_goals - 1)}")
    return int(number)


def _name(number: int) -> str:
    return f"goal-{number:05d}"


def _draws(product: Product, purpose: str, *, seed: int) -> random.Random:
    return random.Random(f"{seed}/{purpose}/{product.id}")  # a string seeds by its digest, not by hash()


def _synthetic_goals(product: Product, *, seed: int) -> Iterable[Goal]:
    """One goal per combination of option values, all with the same price limit."""
    if product.instruction is None or not product.instruction_attributes:
        return
    limit, limit_text = _price_limit(product, _draws(product, "limit", seed=seed), seed=seed)
    names = sorted(product.options)
    for values in itertools.product(*(product.options[name] for name in names)):
        wanted = ", and ".join(f"{name}: {value}" for name, value in zip(names, values, strict=True))
        text = product.instruction + (f" with {wanted}" if wanted else "") + limit_text
        yield Goal(text, product, product.instruction_attributes, values, limit)


def _human_goals(product: Product, *, seed: int) -> Iterable[Goal]:
    draws = _draws(product, "limit", seed=seed)
    for asked in product.human:
        if asked.attributes:
            limit, limit_text = _price_limit(product, draws, seed=seed)
            yield Goal(asked.text.strip(".") + limit_text, product, asked.attributes, asked.options, limit)


def _price_limit(product: Product, draws: random.Random, *, seed: int) -> tuple[float, str]:
    """The larger of two of the next four multiples of ten above the price; no limit where fewer than two are left."""
    price = exact_price(product, seed=seed)
    above = [limit for limit in _PRICE_LIMITS if limit > price][:4]
    if len(above) < 2:
        return _NO_LIMIT, ""
    limit = max(draws.sample(above, 2))
    return limit, f", and price lower than {limit:.2f} dollars"
