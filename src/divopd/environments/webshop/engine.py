"""WebShop as an environment: a shop (products, goals, index) that many environments share, and the walk through it.

    shop = open_shop(Path("webshop/data"))        # or open_shop() for a synthetic catalogue
    environment = WebShop(shop)
    observation = environment.reset(shop.tasks("test")[0])
    observation = environment.step("search[red shoes]")

Left out of the original on purpose: its search prefixes `<r>`, `<a>`, `<c>`, `<q>`, which look into hidden fields.
"""

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from divopd.environments.environment import Observation
from divopd.environments.webshop import pages
from divopd.environments.webshop.catalogue import Product, read_catalogue
from divopd.environments.webshop.goals import Goal, GoalKind, Split, exact_price, goal_number, make_goals, task_names
from divopd.environments.webshop.reward import reward
from divopd.environments.webshop.search import SearchIndex
from divopd.environments.webshop.synthetic import make_catalogue
from divopd.errors import EnvironmentFailure

LONGEST_ACTION = 1_000  # characters; a longer action is not understood
_ACTION = re.compile(r"(search|click)\[(.+)\]")


@dataclass(frozen=True)
class Shop:
    """Everything that does not change while shopping; safe to share between environments and threads."""

    products: tuple[Product, ...]
    goals: tuple[Goal, ...]
    index: SearchIndex
    seed: int
    by_id: dict[str, Product] = field(repr=False)

    def tasks(self, split: Split) -> list[str]:
        """Task names of a split in their fixed order; an evaluation takes the first EVALUATION_TASKS of `test`."""
        return task_names(len(self.goals), split)

    def goal(self, task: str) -> Goal:
        return self.goals[goal_number(task, len(self.goals))]


def open_shop(data: Path | None = None, *, goals: GoalKind = "synthetic", seed: int = 0) -> Shop:
    """A shop with the products in `data` (see catalogue.py), or with a synthetic catalogue of the default size."""
    return stock_shop(make_catalogue(seed=seed) if data is None else read_catalogue(data), goals=goals, seed=seed)


def stock_shop(products: tuple[Product, ...], *, goals: GoalKind = "synthetic", seed: int = 0) -> Shop:
    """A shop with these products."""
    return Shop(
        products=products,
        goals=make_goals(products, goals, seed=seed),
        index=SearchIndex(products),
        seed=seed,
        by_id={product.id.lower(): product for product in products},
    )


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the shopper is. `Back to Search` forgets it all; a search or `< Prev` to the results, the options."""

    kind: Literal["search", "results", "item", "sub_page", "done"] = "search"
    found: tuple[Product, ...] = ()
    page: int = 1
    product: Product | None = None
    chosen: tuple[tuple[str, str], ...] = ()  # option name, value
    sub_page: str = ""


class WebShop:
    """The shopping environment. An action that is not understood changes nothing and gives `valid=False`.

    `layout` is pages.FULL (the original's text) or pages.SHORT. Text beyond `max_chars` is cut off.
    """

    def __init__(self, shop: Shop, *, layout: pages.Layout = pages.FULL, max_chars: int = 12_000) -> None:
        self.shop = shop
        self.layout = layout
        self.max_chars = max_chars
        self._goal: Goal | None = None
        self._place = _Place(kind="done")
        self._page = pages.Page(())

    def reset(self, task: str) -> Observation:
        self._goal = self.shop.goal(task)
        return self._go(self._goal, _Place())

    def step(self, action: str) -> Observation:
        if self._goal is None or self._place.kind == "done":
            raise EnvironmentFailure("WebShop got an action while no task is going on; call reset with a task first")
        place = self._after(action)
        if place is None:
            return self._observe(valid=False)
        return self._go(self._goal, place)

    def _go(self, goal: Goal, place: _Place) -> Observation:
        self._place = place
        if place.kind == "done":
            return self._buy(goal, place)
        self._page = self._render(goal.text, place)
        return self._observe(valid=True)

    def _after(self, action: str) -> _Place | None:
        """The place an action leads to, None if it is not understood here. Search works anywhere, as it did."""
        understood = _ACTION.fullmatch(action.strip().lower()) if len(action) <= LONGEST_ACTION else None
        if understood is None:
            return None
        verb, argument = understood.groups()
        if verb == "search":
            found = tuple(self.shop.products[number] for number in self.shop.index.search(argument))
            return _Place(kind="results", found=found)
        return self._click(argument) if argument in self._page.clickables else None

    def _click(self, label: str) -> _Place:
        place = self._place
        if label == pages.BACK.lower():
            return _Place()
        if label == pages.NEXT.lower() and place.kind == "results":
            return replace(place, page=place.page + 1)
        if label == pages.PREVIOUS.lower():
            return self._previous()
        if place.kind == "results":
            return replace(place, kind="item", product=self.shop.by_id[label])
        if label == pages.BUY.lower():
            return replace(place, kind="done")
        for name in self.layout.sub_pages:
            if label == name.lower():
                return replace(place, kind="sub_page", sub_page=name)
        assert place.product is not None  # only an item page has other clickables: its option values
        name = pages.option_of_value(place.product)[label]
        return replace(place, chosen=tuple((dict(place.chosen) | {name: label}).items()))

    def _previous(self) -> _Place:
        place = self._place
        if place.kind == "results":
            return replace(place, page=place.page - 1)
        if place.kind == "sub_page":
            return replace(place, kind="item", sub_page="")
        return _Place(kind="results", found=place.found, page=place.page)

    def _render(self, instruction: str, place: _Place) -> pages.Page:
        if place.kind == "results":
            return pages.results_page(instruction, self.layout, found=place.found, number=place.page)
        if place.kind == "item" and place.product is not None:
            return pages.item_page(instruction, self.layout, product=place.product, chosen=dict(place.chosen))
        if place.kind == "sub_page" and place.product is not None:
            return pages.sub_page(instruction, self.layout, product=place.product, name=place.sub_page)
        return pages.search_page(instruction, self.layout)

    def _buy(self, goal: Goal, place: _Place) -> Observation:
        assert place.product is not None
        price = exact_price(place.product, seed=self.shop.seed)
        earned = reward(goal, place.product, dict(place.chosen).values(), price=price)
        page = pages.done_page(earned)
        return Observation(page.text, allowed_actions=[], done=True, success=earned == 1.0, reward=earned)

    def _observe(self, *, valid: bool) -> Observation:
        return Observation(self._page.text[: self.max_chars], allowed_actions=self._page.allowed_actions, valid=valid)
