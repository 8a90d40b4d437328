"""Equations of the paper are cited by number and label, `eq. 2, learning-need`, and the two belong together.

The numbers are those of the printed paper, where every labelled equation counts from 1 on, appendices included.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EQUATIONS = {
    "opd-adv": 1,  # the advantage of a token
    "learning-need": 2,  # s(u)
    "opd-loss": 3,
    "opd-gradient": 4,
    "score-loss-equivalence": 5,
    "gate-variance": 6,
    "coverage-estimand": 7,
    "focus-estimand": 8,
}
CITATION = re.compile(r"\b(?:eqs?\.|equations?(?= \d)) ?(?P<number>\d+)?(?:, (?P<label>[a-z]+(?:-[a-z]+)+))?", re.I)
FOLDERS = ("src", "tests", "examples", "benchmarks", "scripts")


def wrong_citations(text: str) -> list[str]:
    """The citations of equations that do not name a number and the label that belongs to it."""
    return [
        found[0].strip()
        for found in CITATION.finditer(text)
        if found["number"] is None or EQUATIONS.get(found["label"] or "") != int(found["number"])
    ]


@pytest.mark.parametrize("folder", FOLDERS)
def test_equations_are_cited_by_their_own_numbers(folder: str) -> None:
    """In every Python file of the project."""
    files = [file for file in (ROOT / folder).rglob("*.py") if file != Path(__file__)]
    assert files
    wrong = {str(file.relative_to(ROOT)): wrong_citations(file.read_text(encoding="utf-8")) for file in files}
    assert not {file: found for file, found in wrong.items() if found}


def test_a_wrong_number_is_noticed() -> None:
    """Also a missing label, a missing number, and a label that the paper does not have."""
    assert not wrong_citations("by eq. 2, learning-need. Eq. 3, opd-loss, says")
    for text in ("(eq. 3)", "eq. 3, learning-need", "Eq. opd-loss", "equation 1", "eq. 1, opd-advantage"):
        assert wrong_citations(text), text


def test_every_equation_is_cited_where_it_is_computed() -> None:
    """So that a reader of the paper finds its code by searching for the label."""
    cited = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "src").rglob("*.py"))
    assert not [label for label in EQUATIONS if label not in cited]
