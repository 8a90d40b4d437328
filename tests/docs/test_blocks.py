"""The runner of the pages' blocks notices what is wrong on a page."""

from pathlib import Path

import pytest
from blocks import blocks_of, run_page


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "page.md"


def run(page: Path, text: str) -> None:
    page.write_text(text, encoding="utf-8")
    run_page([block for block in blocks_of(page) if block.runs])


def test_blocks_share_a_folder_and_names(page: Path) -> None:
    """A file that one block writes, the next one reads; names of Python stay."""
    run(
        page,
        "```python\n# made.py\nX = 2\n```\n\n```python\nimport made\nx = made.X\n```\n\n```bash\n"
        "cat made.py | head -1\n```\n\n```text\n# made.py\n```\n\n```python\nprint(x + 1)\n```\n\n```text\n3\n```\n",
    )


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("```python\n1 / 0\n```\n", "page.md:1: ZeroDivisionError"),
        ("```bash\ndivopd replay nothing.jsonl\n```\n", "page.md:1: `divopd replay nothing.jsonl` ended with 2"),
        ("```bash\nfalse | true\n```\n", "ended with 1"),
        ("```python\nprint(4)\n```\n\n```text\n5\n```\n", "it prints something else than the page shows"),
        ("```bash\necho one\necho two\n```\n\n```text\ntwo\none\n```\n", "it prints something else"),
        ("<!-- figures vary -->\n```bash\necho 12 rows\n```\n\n```text\n3.5 turns\n```\n", "it prints something else"),
    ],
)
def test_a_broken_block_is_named(page: Path, broken: str, said: str) -> None:
    """An error, a command that fails, output that is not on the page."""
    with pytest.raises(AssertionError) as error:
        run(page, broken)
    assert said in str(error.value)


def test_what_may_differ(page: Path) -> None:
    """Dots stand for any text, numbers for any numbers where that is said, blanks for any blanks."""
    run(page, "```bash\necho a  b c\necho x\necho last\n```\n\n```text\na b …\n…\nlast\n```\n")
    run(page, "<!-- figures vary -->\n```bash\necho 12.5 % of 30\n```\n\n```text\n7 % of 40\n```\n")


def test_output_and_errors_are_in_the_order_of_a_terminal(page: Path) -> None:
    """A command that is refused, and what comes after it."""
    run(page, "```bash\n(echo refused >&2; false) || echo then\n```\n\n```text\nrefused\nthen\n```\n")


def test_a_block_that_is_shown_only(page: Path) -> None:
    """With the reason before it."""
    run(page, "<!-- not run: needs a GPU of your own -->\n```bash\nfalse\n```\n")
