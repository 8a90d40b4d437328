"""The words of a text, for comparing what two splits of an environment talk about."""

import re

WORD = re.compile(r"[^\W\d_]{2,}")


def words_in(text: str) -> set[str]:
    """Its words of two letters or more in lower case; numbers are none."""
    return set(WORD.findall(text.lower()))
