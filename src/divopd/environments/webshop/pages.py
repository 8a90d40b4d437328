"""The pages of the shop, as data: what is written on a page and what can be clicked.

A page is a list of visible strings, which the agent reads joined by ` [SEP] `, and the list of its clickables. Two
layouts: FULL is the original's text mode; SHORT says the same in fewer words for models with a short context: one line
a string, four results a page, the instruction on the first page only, no fixed headings, no rating and no reviews
(both are empty in the data), and a `*` before the chosen options.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from divopd.environments.webshop.catalogue import Product

SEPARATOR = " [SEP] "
SEARCH_ACTION = "search[<your query>]"  # how the search bar is listed among the allowed actions

BACK, PREVIOUS, NEXT, BUY = "Back to Search", "< Prev", "Next >", "Buy Now"
DESCRIPTION, FEATURES, REVIEWS = "Description", "Features", "Reviews"


@dataclass(frozen=True, slots=True)
class Layout:
    """How much a page says."""

    per_page: int
    headings: bool
    sub_pages: tuple[str, ...]
    chosen_mark: str
    separator: str


FULL = Layout(
    per_page=10, headings=True, sub_pages=(DESCRIPTION, FEATURES, REVIEWS), chosen_mark="", separator=SEPARATOR
)
SHORT = Layout(per_page=4, headings=False, sub_pages=(DESCRIPTION, FEATURES), chosen_mark="* ", separator="\n")


@dataclass(frozen=True, slots=True)
class Page:
    """What is written, and what can be clicked (as written in an action: lower case)."""

    strings: tuple[str, ...]
    clickables: tuple[str, ...] = ()
    has_search_bar: bool = False
    separator: str = SEPARATOR

    @property
    def text(self) -> str:
        return self.separator.join(self.strings)

    @property
    def allowed_actions(self) -> list[str]:
        return [SEARCH_ACTION] * self.has_search_bar + [f"click[{label}]" for label in self.clickables]


def strings_on(text: str) -> list[str]:
    """The visible strings of a page's text. No string holds a line break: product text has no control characters."""
    return text.split(SHORT.separator if SHORT.separator in text else FULL.separator)


def search_page(instruction: str, layout: Layout) -> Page:
    strings = ("WebShop", "Instruction:", instruction, "Search") if layout.headings else (instruction, "Search")
    return Page(strings, has_search_bar=True, separator=layout.separator)


def results_page(instruction: str, layout: Layout, *, found: Sequence[Product], number: int) -> Page:
    """Page `number` (from 1) of a search. A page past the last result is empty, and `Next >` is always there."""
    shown = found[(number - 1) * layout.per_page : number * layout.per_page]
    buttons = (BACK, PREVIOUS, NEXT) if number > 1 else (BACK, NEXT)
    place = f"Page {number} (Total results: {len(found)})" if layout.headings else f"Page {number}"
    rows = [text for product in shown for text in (product.id, product.title, product.price_tag)]
    return Page(
        (*_top(instruction, layout), buttons[0], place, *buttons[1:], *rows),
        clickables=_clickables(*buttons, *(product.id for product in shown)),
        separator=layout.separator,
    )


def item_page(instruction: str, layout: Layout, *, product: Product, chosen: Mapping[str, str]) -> Page:
    options: list[str] = []
    for name, values in product.options.items():
        options += [name, *(layout.chosen_mark + value if chosen.get(name) == value else value for value in values)]
    facts = [product.title, f"Price: {product.price_tag}"] + ["Rating: N.A."] * layout.headings
    return Page(
        (*_top(instruction, layout), BACK, PREVIOUS, *options, *facts, *layout.sub_pages, BUY),
        clickables=_clickables(BACK, PREVIOUS, *layout.sub_pages, BUY, *option_of_value(product)),
        separator=layout.separator,
    )


def sub_page(instruction: str, layout: Layout, *, product: Product, name: str) -> Page:
    """The page behind `Description`, `Features` or `Reviews` of a product."""
    texts = {
        DESCRIPTION: (product.description or "No Description",),
        FEATURES: tuple(bullet.strip() for bullet in product.bullets) or ("No Features",),
        REVIEWS: ("No reviews found",),
    }[name]
    return Page(
        (*_top(instruction, layout), BACK, PREVIOUS, *texts),
        clickables=_clickables(BACK, PREVIOUS),
        separator=layout.separator,
    )


def done_page(reward: float) -> Page:
    return Page(("Thank you for shopping with us!", "Your score (min 0.0, max 1.0)", f"{reward:.3f}"))


def option_of_value(product: Product) -> dict[str, str]:
    """Which option a click on a value sets. A value that two options share belongs to the later one, as it did."""
    return {value: name for name, values in product.options.items() for value in values}


def _top(instruction: str, layout: Layout) -> tuple[str, ...]:
    return ("Instruction:", instruction) if layout.headings else ()


def _clickables(*labels: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(label.lower() for label in labels))
