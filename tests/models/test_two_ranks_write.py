"""Ranks that write together: one of them does it, and all know whether it went well."""

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("torch", reason="for want of the extra train")

SCRIPT = Path(__file__).with_name("two_ranks.py")


class Ended(NamedTuple):
    """The two folders, and what both ranks said of each."""

    good: Path
    bad: Path
    said: list[list[str]]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Two ranks save into a folder that can be made, and into one that cannot."""
    place = tmp_path_factory.mktemp("ranks")
    good, bad = place / "checkpoints", place / "in-the-way"
    bad.write_text("a file is in the way")
    command = [sys.executable, str(SCRIPT), str(place / "meeting"), str(good), str(bad)]
    ranks = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=120, check=True)
    lines = [line.partition(" ") for line in ranks.stdout.splitlines()]
    return Ended(good, bad, [[said for rank, _, said in lines if rank == wanted] for wanted in "01"])


def test_both_ranks_know_that_it_is_written(ended: Ended) -> None:
    assert [lines[0] for lines in ended.said] == ["saved", "saved"]
    assert (ended.good / "000003" / "weights.safetensors").is_file()


def test_both_ranks_know_that_it_could_not_be_written(ended: Ended) -> None:
    """The one that tried says why, the other one who knows it."""
    first, second = (lines[1] for lines in ended.said)
    assert first.startswith(f"{ended.bad / '000003'}: cannot be written")
    assert second == "rank 0 could not write the folder; its own message says why"
