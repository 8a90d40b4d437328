"""Text of others on the terminal: environments, servers, models and files say what they like, and none is obeyed."""

import sys
import unicodedata

MAX_SHOWN = 20_000  # characters
MAX_SAID = 4_000  # characters of a message of our own that quotes others
MAX_QUOTED = 300  # characters of such a quotation
_HARMFUL = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")  # control, format, half a surrogate pair, private, line separators


def printable(text: str, *, most: int = MAX_SHOWN) -> str:
    """Text that cannot steer a terminal: what is harmful is shown as an escape, what is too long is cut."""
    shown = text if len(text) <= most else f"{text[:most]} […]"
    return "".join(letter if letter in "\n\t" or _is_harmless(letter) else _escape(letter) for letter in shown)


def one_line(text: str, *, most: int = MAX_QUOTED) -> str:
    """The beginning of what others say, as a message of ours quotes it: on one line."""
    return printable(" ".join(text[: 4 * most].split()), most=most)


def said(message: object) -> str:
    """An error or a note as it is shown. Lines after the first are set in, so that none passes for another message."""
    first, *rest = printable(str(message), most=MAX_SAID).split("\n")
    return "\n".join([first, *(line if line.startswith("  ") else f"  {line}" for line in rest)])


def tell(message: object) -> None:
    """Say an error or a note on stderr, as every message of divopd is said."""
    print(f"divopd: {said(message)}", file=sys.stderr, flush=True)


def _is_harmless(letter: str) -> bool:
    return unicodedata.category(letter) not in _HARMFUL


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")
