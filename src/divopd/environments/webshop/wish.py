"""What the expert understands of an instruction, and how well a text or a list of options answers it."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from divopd.environments.webshop.search import words

_PRICE = re.compile(r",? and price lower than ([\d.]+) dollars$")
_OPTIONS = re.compile(r" with ((?:(?! with )[^,:])+: .*)$")
_NEXT_OPTION = re.compile(r", and (?=[^,:]+: )")
_OPENING = re.compile(
    r"^(?:find me|i am looking for|i'm looking for|i need|i want(?: to buy)?|show me)\s+", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Wish:
    """An instruction taken apart. A human's names no options: it has none here and is matched word by word."""

    instruction: str
    thing: str  # what is wanted, without options and price
    thing_words: tuple[str, ...]  # its words; the one that names the thing is there twice and so counts double
    options: dict[str, str]
    price_limit: float
    is_exact: (
        bool  # made from properties, so that the wanted product has every word; a human's words may be in no product
    )

    @property
    def query(self) -> str:
        return " ".join([self.thing, *self.options.values()])

    def coverage(self, text: str) -> float:
        """The share of the wish's words that a text contains."""
        present = set(_singulars(text))
        return sum(word in present for word in self.thing_words) / len(self.thing_words) if self.thing_words else 1.0

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
    name = _singulars(re.split(" with | for ", thing)[0])[-1:]
    return Wish(
        instruction=instruction,
        thing=thing,
        thing_words=(*_singulars(thing), *name),
        options={name: value for name, _, value in (part.partition(": ") for part in parts)},
        price_limit=float(price.group(1)) if price else float("inf"),
        is_exact=instruction.lower().startswith("find me "),
    )


def _singulars(text: str) -> list[str]:
    return [word[:-1] if len(word) > 3 and word.endswith("s") and word[-2] != "s" else word for word in words(text)]
