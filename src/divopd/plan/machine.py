"""What this machine has to give: free memory, free disk, cores."""

import os
import shutil
from pathlib import Path


def free_memory() -> int | None:
    """Bytes of memory that a new process could use; None where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        [available] = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    except (OSError, ValueError):
        return None
    limit = _container_limit()
    return available if limit is None else min(available, limit)


def _container_limit() -> int | None:
    """What the limit of a container leaves, if there is one: the machine's free memory is not its own."""
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = ((group / name).read_text(encoding="ascii").strip() for name in ("memory.max", "memory.current"))
        return None if limit == "max" else max(int(limit) - int(used), 0)
    except (OSError, ValueError):
        return None


def free_disk(folder: Path) -> int:
    """Bytes free where a folder is or would be made."""
    here = folder.absolute()
    while not here.exists():
        here = here.parent
    return shutil.disk_usage(here).free


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_bytes(amount: float) -> str:
    """1.5 GB, 20 MB: bytes for people."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if amount >= size:
            return f"{amount / size:.{1 if amount < 10 * size else 0}f} {unit}"
    return f"{amount / 1e3:.0f} kB"
