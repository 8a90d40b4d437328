"""The list of lines for GPUs that no test has entered: what is on it, and that the page's lines are in the code."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from gpu_lines import BEGIN, END, PAGE, lines_for_gpus  # noqa: E402

SOURCE = '''"""About cuda, in words."""
def place(device, gpu):
    """It may be cuda."""
    if device == "cuda":
        count()
    size = 1 if gpu else 2
    return size


def attend(device):
    look()
    if device != "cuda":
        return None
    import flash
    return flash
'''


def test_lines_for_gpus_are_those_that_speak_of_them_or_stand_under_such_a_condition() -> None:
    """So is what comes after one that leaves. Words in docstrings do not count; two halves on one line are said."""
    found = [(line.number, line.where, line.half) for line in lines_for_gpus(SOURCE, file="a.py")]
    assert found == [
        (4, "place", False), (5, "place", False), (6, "place", True),
        (12, "attend", False), (13, "attend", False), (14, "attend", False), (15, "attend", False),
    ]  # fmt: skip


def test_the_page_lists_lines_that_are_in_the_code() -> None:
    """A line that was changed since must be looked at again."""
    listed = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip().splitlines()[2:]
    assert listed
    for row in listed:
        file, _, text, *_ = [cell.strip().strip("`") for cell in row.replace("\\|", "§").split(" | ")]
        assert text.replace("§", "|") in (ROOT / "src/divopd" / file.lstrip("| `")).read_text(encoding="utf-8"), row
