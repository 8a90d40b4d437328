"""Text of others on the terminal: environments, run names and tasks say what they like, and none of it is obeyed."""

import unicodedata

MAX_SHOWN = 20_000  # characters
_HARMFUL = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")  # control, format, half a surrogate pair, private, line separators


def printable(text: str) -> str:
    """Text that cannot steer a terminal: what is harmful is shown as an escape, what is too long is cut."""
    shown = text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]} […]"
    return "".join(letter if letter in "\n\t" or _is_harmless(letter) else _escape(letter) for letter in shown)


def _is_harmless(letter: str) -> bool:
    return unicodedata.category(letter) not in _HARMFUL


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")
