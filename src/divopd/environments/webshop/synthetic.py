"""A made-up catalogue from a seed, for shopping without the official files.

Products look like the official ones in miniature: a title with a brand, one property and the kind of thing; a first
bullet and a description that search can see; a last bullet that it cannot; zero to two options; one price or a price
range. Products of a kind share properties, so a title alone often does not tell which one is wanted: some tasks are
three clicks long, others need a look at the features of several products. `kinds` bounds the vocabulary for small
models.
"""

import random
from dataclasses import dataclass

from divopd.environments.webshop.catalogue import Product
from divopd.environments.webshop.lexicon import BRANDS
from divopd.errors import InputError


@dataclass(frozen=True, slots=True)
class _Department:
    category: str
    path: str
    kinds: tuple[str, ...]
    properties: tuple[str, ...]
    options: dict[str, tuple[str, ...]]


_DEPARTMENTS = (
    _Department(
        category="fashion",
        path="Clothing, Shoes & Jewelry",
        kinds=("shirt", "jacket", "sweater", "dress", "hoodie", "skirt"),
        properties=(
            "machine wash",
            "slim fit",
            "long sleeve",
            "pure cotton",
            "button closure",
            "quick dry",
            "soft lining",
        ),
        options={"color": ("black", "white", "navy", "red", "green"), "size": ("small", "medium", "large", "tall")},
    ),
    _Department(
        category="electronics",
        path="Electronics",
        kinds=("speaker", "charger", "headset", "keyboard", "camera", "cable"),
        properties=(
            "high speed",
            "gold plated",
            "noise cancelling",
            "hands free",
            "water resistant",
            "dual band",
            "low power",
        ),
        options={"color": ("silver", "black", "blue", "pink"), "style": ("basic", "travel", "studio", "gaming")},
    ),
    _Department(
        category="beauty",
        path="Beauty & Personal Care",
        kinds=("lotion", "shampoo", "serum", "lipstick", "soap", "perfume"),
        properties=(
            "cruelty free",
            "long lasting",
            "dry skin",
            "natural oils",
            "alcohol free",
            "easy apply",
            "gentle foam",
        ),
        options={"scent": ("rose", "lavender", "citrus", "vanilla"), "size": ("sample", "regular", "family")},
    ),
    _Department(
        category="garden",
        path="Home & Kitchen",
        kinds=("table", "bookcase", "lamp", "mattress", "mirror", "chair"),
        properties=(
            "solid wood",
            "easy assembly",
            "space saving",
            "steel frame",
            "living room",
            "high density",
            "matte finish",
        ),
        options={"color": ("walnut", "white", "gray", "espresso"), "size": ("compact", "standard", "wide")},
    ),
    _Department(
        category="grocery",
        path="Grocery & Gourmet Food",
        kinds=("cookies", "tea", "granola", "crackers", "coffee", "almonds"),
        properties=(
            "gluten free",
            "low sugar",
            "dairy free",
            "high protein",
            "slow roasted",
            "whole grain",
            "fair trade",
        ),
        options={"flavor": ("cocoa", "honey", "ginger", "berry"), "quantity": ("single", "twin pack", "bulk box")},
    ),
)
KINDS = sum(len(department.kinds) for department in _DEPARTMENTS)


def make_catalogue(*, products: int = 300, kinds: int = 30, seed: int = 0) -> tuple[Product, ...]:
    """That many products of that many kinds of things; the same arguments give the same catalogue everywhere."""
    if not 1 <= kinds <= KINDS or not kinds <= products <= 99_999:
        raise InputError(
            f"a catalogue of {products} products of {kinds} kinds is not possible; "
            f"expected 1 to {KINDS} kinds and between that many and 99999 products"
        )
    # one kind of every department in turn, so that few kinds still come from several departments
    rows = zip(*(department.kinds for department in _DEPARTMENTS), strict=True)
    shelf = [place for row in rows for place in zip(_DEPARTMENTS, row, strict=True)][:kinds]
    draws = random.Random(f"webshop/{seed}")
    digits = len(str(products - 1))
    return tuple(
        _make_product(f"P{number:0{digits}d}", *shelf[number % kinds], draws=draws) for number in range(products)
    )


def _make_product(name: str, department: _Department, kind: str, *, draws: random.Random) -> Product:
    properties = draws.sample(department.properties, draws.choice((2, 3, 3, 4)))
    wanted = draws.sample(properties, draws.choice((1, 2, 2, 3)) if len(properties) > 2 else 1)
    shown, *rest = draws.sample(properties, len(properties))
    options = {
        option: tuple(sorted(draws.sample(department.options[option], draws.choice((2, 3)))))
        for option in sorted(draws.sample(sorted(department.options), draws.choice((0, 1, 2, 2))))
    }
    low = draws.randint(4, 90) + 0.99
    pricing = (low, low + draws.choice((5, 8))) if draws.random() < 0.1 else (low,)
    searchable, hidden = (rest[:-1], rest[-1:]) if len(rest) > 1 and draws.random() < 0.5 else (rest, [])
    return Product(
        id=name,
        title=f"{draws.choice(BRANDS)} {shown.title()} {kind.title()}",
        description=f"A {kind} by a small maker.",
        bullets=(_sentence(searchable, kind), _sentence(hidden, kind)),
        pricing=tuple(round(price, 2) for price in pricing),
        category=department.category,
        query=kind,
        product_category=f"{department.path} › {kind.title()}",
        options=options,
        attributes=tuple(properties),
        instruction=_instruction(wanted, kind),
        instruction_attributes=tuple(wanted),
    )


def _sentence(properties: list[str], kind: str) -> str:
    return f"{', '.join(properties)} {kind}" if properties else f"everyday {kind}"


def _instruction(wanted: list[str], kind: str) -> str:
    front, back = wanted[:2], wanted[2:]
    return f"Find me {', '.join(front)} {kind}" + (f" with {', '.join(back)}" if back else "")
