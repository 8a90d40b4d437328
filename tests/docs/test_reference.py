"""docs/reference is what the code says, and the checker of links finds what leads nowhere."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from check_links import broken_links  # noqa: E402
from reference import EXAMPLE_TURN, FOLDER, PAGES, made, out_of_date  # noqa: E402

from divopd.turns import read_turns  # noqa: E402
from divopd.validity import why_invalid  # noqa: E402


def test_the_committed_pages_are_up_to_date() -> None:
    """`make docs` would change none of them."""
    assert out_of_date() == [], "run `make docs` and commit docs/reference"


def test_a_page_of_before_is_noticed(tmp_path: Path) -> None:
    """One line more, one page less: each is named."""
    for name in PAGES:
        (tmp_path / name).write_text(made(name), encoding="utf-8")
    assert out_of_date(tmp_path) == []
    (tmp_path / "cli.md").write_text(made("cli.md") + "\n", encoding="utf-8")
    (tmp_path / "api.md").unlink()
    assert out_of_date(tmp_path) == ["cli.md", "api.md"]


def test_the_line_of_the_recording_format_is_a_recording(tmp_path: Path) -> None:
    """It has every field, is read back, and passes the gate."""
    text = (FOLDER / "recordings.md").read_text(encoding="utf-8").partition("```json\n")[2].partition("```")[0]
    (tmp_path / "one.jsonl").write_text(text, encoding="utf-8")
    [turn] = read_turns(tmp_path / "one.jsonl")
    assert turn.key == EXAMPLE_TURN.key
    assert why_invalid(turn) is None
    assert all(value is not None for value in json.loads(text).values())


@pytest.mark.parametrize(
    ("link", "wrong"),
    [
        ('<a href="two.html#here">', None),
        ('<a href="#mine"><p id="mine">', None),
        ('<a href="https://example.org/x">', None),
        ('<a href="gone.html">', "there is no such file"),
        ('<a href="two.html#gone">', "no anchor 'gone'"),
        ('<a href="#gone">', "no anchor 'gone'"),
        ('<img src="gone.png">', "there is no such file"),
        ('<script src="https://example.org/x.js">', "does not open offline"),
        ('<link rel="stylesheet" href="//example.org/x.css">', "does not open offline"),
    ],
)
def test_a_broken_link_is_found(tmp_path: Path, link: str, wrong: str | None) -> None:
    """A file or an anchor that is not there, and whatever would be loaded from elsewhere."""
    (tmp_path / "one.html").write_text(f"<p>{link}", encoding="utf-8")
    (tmp_path / "two.html").write_text('<h1 id="here">', encoding="utf-8")
    found = broken_links(tmp_path)
    assert (found == []) if wrong is None else (len(found) == 1 and wrong in found[0]), found
