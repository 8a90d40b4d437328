"""What a purchase is worth: the original's formula.

reward = r_type · (matched attributes + matched options + [price within the limit]) / (attributes + options + 1)

One part needs a stand-in. The original asks spaCy's tagger which words of a title are nouns; its model is not on the
package registry. Here every word of a title counts as a noun unless it is a number, a function word, a frequent
adjective of shop titles, or has an adjective's ending. Titles are strings of nouns in which a tagger
calls most capitalised words proper nouns, so the rule errs on a few adjectives. It can only matter for a product
other than the wanted one, near the thresholds 0, 0.1 and 0.2 of the share of nouns; agreement with spaCy was not
measured.

Options are compared value with value, both reduced to a colour word. (The published scorer hands over (name, value)
pairs on the goal's side, so that an option such as `2005brown` can never match; that slip is not repeated.)
"""

import re
from collections.abc import Iterable
from functools import lru_cache

from divopd.environments.webshop.catalogue import Product
from divopd.environments.webshop.goals import Goal
from divopd.environments.webshop.lexicon import COLOURS, NOT_NOUNS, STOP_WORDS
from divopd.errors import MissingExtraError

_MATCH = 85  # a token_set_ratio above this is a match


_ADJECTIVE_ENDING = re.compile(r".{3,}(?:able|ible|ful|less|ous)$")  # long words only: a cable and a table are nouns
_TITLE_WORD = re.compile(r"[^\W\d_]\w*")


def reward(goal: Goal, bought: Product, chosen: Iterable[str], *, price: float) -> float:
    """The reward of buying that product at that price with the chosen option values: 0 to 1, 1 means success."""
    attributes = sum(_has_attribute(bought, attribute) for attribute in goal.attributes)
    chosen_colours = [_first_colour(value) for value in chosen]
    options = sum(any(_alike(mine, _first_colour(value)) for mine in chosen_colours) for value in goal.options)
    matched = attributes + options + (price <= goal.price_limit)
    return type_match(bought, goal.product) * matched / (len(goal.attributes) + len(goal.options) + 1)


def type_match(bought: Product, wanted: Product) -> float:
    """How much the bought thing is the kind of thing that was wanted: 1, 0.5, 0.1 or 0."""
    title_score = title_overlap(bought.title, wanted.title)
    shared = _category_parts(bought.product_category) & _category_parts(wanted.product_category)
    if title_score == 0:
        return 0.0
    if title_score < 0.1:
        return 0.1
    return 1.0 if bought.query == wanted.query or len(shared) >= 2 or title_score > 0.2 else 0.5


def title_overlap(bought: str, wanted: str) -> float:
    """The share of the wanted title's nouns that are in the bought title; 0.2 for a title without nouns."""
    wanted_nouns = _nouns(wanted)
    return len(set(wanted_nouns) & set(_nouns(bought))) / len(wanted_nouns) if wanted_nouns else 0.2


@lru_cache(maxsize=4096)
def _nouns(title: str) -> tuple[str, ...]:
    lowered = (word.lower() for word in _TITLE_WORD.findall(title))
    return tuple(word for word in lowered if len(word) > 1 and not _is_no_noun(word))


def _is_no_noun(word: str) -> bool:
    return word in STOP_WORDS or word in NOT_NOUNS or _ADJECTIVE_ENDING.search(word) is not None


def _category_parts(path: str) -> set[str]:
    return {part.strip() for part in path.split("›")}


def _has_attribute(product: Product, attribute: str) -> bool:
    if any(_alike(own, attribute) for own in product.attributes):
        return True
    return any(attribute in text.lower() for text in (product.title, " ".join(product.bullets), product.description))


def _first_colour(value: str) -> str:
    return next((colour for colour in COLOURS if colour in value), value)


@lru_cache(maxsize=65536)
def _alike(one: str, other: str) -> bool:
    """token_set_ratio as thefuzz computes it: Latin-1 accents dropped, lower case, rounded to a whole number."""
    try:
        from rapidfuzz import fuzz, utils
    except ImportError as error:
        raise MissingExtraError("WebShop's reward (rapidfuzz)", "webshop") from error
    plain = [re.sub(r"[\x80-\xff]", "", text) for text in (one, other)]
    return round(fuzz.token_set_ratio(plain[0], plain[1], processor=utils.default_process)) > _MATCH
