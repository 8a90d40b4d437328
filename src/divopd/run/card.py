"""The card of a run: what made it, on what, and when, so that a folder found later explains itself.

It is written once, when the run begins, and nothing of the run depends on it.
"""

import hashlib
import json
import os
import platform
import shlex
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from divopd.config import package_versions

PACKAGE = Path(__file__).parents[1]
PROGRAMS = ("divopd", "__main__.py")  # how Python names our command
GPUS = Path("/proc/driver/nvidia/gpus")  # read without waking CUDA, which a process that forks must not do


def write_card(file: Path) -> None:
    """Write the card of a run that begins now."""
    file.write_text(json.dumps(make_card(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def make_card() -> dict[str, Any]:
    """What is known of this process, this machine and this checkout; null where something is not known."""
    return {
        "command": command_line(sys.argv),
        "began": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "code": checkout(PACKAGE),
        "python": platform.python_version(),
        "versions": package_versions(),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "gpus": _gpus(),
    }


def command_line(argv: list[str]) -> str:
    """The command as a user types it."""
    program = Path(argv[0])
    name = "divopd" if program.name in PROGRAMS else str(program)
    return shlex.join([name, *argv[1:]])


def checkout(package: Path) -> dict[str, Any] | None:
    """The commit of divopd, whether its sources differ from it, and a digest of the locked versions.

    None for an installed package: also where the virtual environment lies in a checkout of something else.
    """
    root = package.parents[1]
    if package != root / "src" / "divopd" or not (root / ".git").exists():
        return None
    commit, changes = _git(root, "rev-parse", "HEAD"), _git(root, "status", "--porcelain", "--", "src")
    lock = root / "constraints.txt"
    return {
        "commit": commit,
        "changed": None if changes is None else bool(changes),
        "lock": hashlib.sha256(lock.read_bytes()).hexdigest()[:16] if lock.is_file() else None,
    }


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def _gpus() -> list[str]:
    """The names of NVIDIA's GPUs, one each."""
    files = sorted(GPUS.glob("*/information"))
    lines = (line for file in files for line in file.read_text(encoding="utf-8").splitlines())
    return [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
