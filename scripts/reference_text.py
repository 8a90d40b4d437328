"""Markdown for the pages that scripts/reference.py writes."""

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; a `|` inside a cell is told apart from those between cells."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def flat(text: str) -> str:
    """A docstring as one line."""
    return " ".join(text.split())


def prose(text: str) -> str:
    """A docstring as paragraphs."""
    return "\n\n".join(flat(part) for part in text.strip().split("\n\n"))


def first_sentence(text: str) -> str:
    """The first paragraph of a docstring."""
    return flat(text.split("\n\n")[0])


def code(text: str) -> str:
    """A block that shows how something is written, and is not run."""
    return f"```text\n{text}\n```"


def page(*parts: str) -> str:
    """Parts with an empty line between them."""
    return "\n\n".join(part for part in parts if part) + "\n"
