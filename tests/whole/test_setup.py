"""What `make setup` says while it installs, with a script in the place of Python and its pip."""

import subprocess
from pathlib import Path

INSTALL = Path(__file__).parents[2] / "scripts" / "install"
# says a line, waits for a file (20 s at most: exit code 4), and fails as pip may
PIP = """#!/usr/bin/env bash
echo 'Requirement already satisfied: numpy'
echo '  Downloading torch-2.13.0.whl.metadata (30 kB)'
echo '  Downloading torch-2.13.0.whl (526.6 MB)'
for _ in {1..200}; do [ ! -e SEEN ] || exit 3; sleep 0.1; done
exit 4
"""


def test_a_download_is_told_when_it_begins(tmp_path: Path) -> None:
    """One line for the download and none for what is there; pip's exit code is that of the whole."""
    python = tmp_path / "python"
    python.write_text(PIP.replace("SEEN", f"'{tmp_path}/seen'"), encoding="utf-8")
    python.chmod(0o755)
    with subprocess.Popen([INSTALL, python, "torch"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "  Downloading torch-2.13.0.whl (526.6 MB)\n"
        (tmp_path / "seen").touch()
        assert process.stdout.read() == ""
    assert process.returncode == 3
