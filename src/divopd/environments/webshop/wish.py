"""What the expert understands of an instruction, and how well a text or a list of options answers it."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from divopd.environments.webshop.search import words

_PRICE = re.compile(r",? and price lower than ([\d.]+) dollars$")
_OPTIONS = re.compile(r" with ((?:(?! with )[^,:])+: .*)$")
_NEXT_OPTION = re.compile(r", and (?=[^,:]+: )")
_LITERAL_WEIGHT = 0.4
_OPENING = re.compile(
    r"^(?:find me|i am looking for|i'm looking for|i need|i want(?: to buy)?|show me)\s+", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Wish:
    """An instruction taken apart. A human's names no options: it has none here and is matched word by word."""

    instruction: str
    thing: str  # what is wanted, without options and price
    thing_words: tuple[str, ...]  # its words; the one that names the thing is there twice and so counts double
    properties: tuple[str, ...]  # of an exact wish, as far as they can be told from the thing's name
    options: dict[str, str]
    price_limit: float
    is_exact: (
        bool  # made from properties, so that the wanted product has every word; a human's words may be in no product
    )

    def query(self, emphasis: int) -> str:
        """What to search for. Above 1, options are said so many times: they tell products apart better than words."""
        options = [f"{name} {value}" if emphasis > 1 else value for name, value in self.options.items()]
        return " ".join([self.thing, *(option for option in options for _ in range(emphasis))])

    def coverage(self, text: str) -> float:
        """How much of the wish a text says: the share of its words, and of its properties that are there literally."""
        present, lowered = set(_singulars(text)), text.lower()
        spoken = sum(word in present for word in self.thing_words) / len(self.thing_words) if self.thing_words else 1.0
        if not self.properties:
            return spoken
        literal = sum(part in lowered for part in self.properties) / len(self.properties)
        return (1 - _LITERAL_WEIGHT) * spoken + _LITERAL_WEIGHT * literal

    def can_be_met(self, offered: dict[str, list[str]]) -> bool:
        return all(value in offered.get(name, ()) for name, value in self.options.items())

    def choices(self, offered: dict[str, list[str]]) -> dict[str, str]:
        """The values to choose on an item page: the named ones, else those whose words all occur in the instruction."""
        if self.options:
            return {name: value for name, value in self.options.items() if value in offered.get(name, ())}
        best = {name: self._mentioned(values) for name, values in offered.items()}
        return {name: value for name, value in best.items() if value is not None}

    def _mentioned(self, values: Iterable[str]) -> str | None:
        spoken = set(words(self.instruction))
        return max((value for value in values if words(value) and set(words(value)) <= spoken), key=len, default=None)


def read_wish(instruction: str) -> Wish:
    """Takes an instruction apart; what does not look like options or a price limit belongs to the thing."""
    price = _PRICE.search(instruction)
    thing = instruction[: price.start()] if price else instruction
    named = _OPTIONS.search(thing)
    parts = _NEXT_OPTION.split(named.group(1)) if named else []
    thing = _OPENING.sub("", thing[: named.start()] if named else thing)
    # "slim fit, machine wash dress with long sleeve": the thing is the last word before " with " or " for "
    front, *behind = re.split(" with | for ", thing)
    name = _singulars(front)[-1:]
    is_exact = instruction.lower().startswith("find me ")
    return Wish(
        instruction=instruction,
        thing=thing,
        thing_words=(*_singulars(thing), *name),
        options={name: value for name, _, value in (part.partition(": ") for part in parts)},
        price_limit=float(price.group(1)) if price else float("inf"),
        properties=_properties(front, behind) if is_exact else (),
        is_exact=is_exact,
    )


def _properties(front: str, behind: list[str]) -> tuple[str, ...]:
    """ "slim fit, dry clean dress" and ["long sleeve, soft"] → slim fit, dry clean, long sleeve, soft.

    A property has two words, so the thing's name begins at the third of the last part.
    """
    parts = [part.strip().lower() for text in [front, *behind] for part in text.split(", ")]
    return tuple(" ".join(part.split()[:2]) for part in parts if part)


def _singulars(text: str) -> list[str]:
    return [word[:-1] if len(word) > 3 and word.endswith("s") and word[-2] != "s" else word for word in words(text)]
