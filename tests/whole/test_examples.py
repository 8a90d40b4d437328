"""The examples run as their first lines say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow  # twelve seconds of a core
def test_the_whole_method_in_one_file() -> None:
    """Two updates of examples/loop.py: batches of 32 turns, no rollout above the cap in the first pass, two exams."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / "loop.py", "2"], capture_output=True, text=True, check=True, timeout=240
    )
    first, *updates, last = done.stdout.splitlines()
    assert re.fullmatch(r"before: \d+ % of 40 tasks", first)
    assert re.fullmatch(r"after:  \d+ % of 40 tasks", last)
    assert [line.partition(":")[0] for line in updates] == ["update 1", "update 2"]
    assert all("32 turns of 8 rollouts" in line for line in updates)
