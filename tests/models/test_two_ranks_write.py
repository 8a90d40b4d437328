"""Ranks that write together: one of them does it, and all know whether it went well."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="for want of the extra train")

SCRIPT = Path(__file__).with_name("one_of_two_ranks.py")


def ended(folder: Path, meeting: Path) -> list[str]:
    """What both ranks say at their end."""
    commands = [[sys.executable, str(SCRIPT), str(rank), str(meeting), str(folder)] for rank in range(2)]
    ranks = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    try:
        return [rank.communicate(timeout=120)[0].strip() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


def test_both_ranks_know_that_it_is_written(tmp_path: Path) -> None:
    assert ended(tmp_path / "checkpoints", tmp_path / "meeting") == ["saved", "saved"]
    assert (tmp_path / "checkpoints" / "000003" / "weights.safetensors").is_file()


def test_both_ranks_know_that_it_could_not_be_written(tmp_path: Path) -> None:
    """The one that tried says why, the other one who knows it."""
    (tmp_path / "checkpoints").write_text("a file is in the way")
    first, second = ended(tmp_path / "checkpoints", tmp_path / "meeting")
    assert first.startswith(f"{tmp_path / 'checkpoints' / '000003'}: cannot be written")
    assert second == "rank 0 could not write the folder; its own message says why"
