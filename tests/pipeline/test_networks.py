"""Ranks of one learner on two machines: each machine's ranks hold all weights, and only gradients go between them.

A machine is a network namespace of its own here: nothing but a cable of two virtual ends joins them.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="for want of the extra train")

from safetensors.torch import load_file  # noqa: E402

from rank_of_several import after_four_updates  # noqa: E402

SCRIPT = Path(__file__).parents[1] / "rank_of_several.py"
FIRST, SECOND = "10.77.31.1", "10.77.31.2"


def ip(*words: str) -> None:
    """iproute2, in words; what it says becomes the error."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


def why_no_networks() -> str:
    """Why namespaces cannot be made here; nothing if they can."""
    if shutil.which("ip") is None:
        return "there is no iproute2"
    try:
        with two_networks("divopd-try"):
            return ""
    except OSError as error:
        return f"network namespaces cannot be made: {error}"


@contextmanager
def two_networks(name: str) -> Iterator[list[list[str]]]:
    """Two namespaces that are joined by a cable and by nothing else; the words before a command that runs in each."""
    spaces = [f"{name}-{number}-{os.getpid()}" for number in (1, 2)]
    cable = f"v{os.getpid()}"
    try:
        for space in spaces:
            ip("netns", "add", space)
        ip(
            "link",
            "add",
            f"{cable}a",
            "netns",
            spaces[0],
            "type",
            "veth",
            "peer",
            "name",
            f"{cable}b",
            "netns",
            spaces[1],
        )
        for space, end, address in zip(spaces, "ab", (FIRST, SECOND), strict=True):
            ip("-n", space, "address", "add", f"{address}/30", "dev", f"{cable}{end}")
            for device in ("lo", f"{cable}{end}"):
                ip("-n", space, "link", "set", device, "up")
        yield [["ip", "netns", "exec", space] for space in spaces]
    finally:
        for space in spaces:
            subprocess.run(["ip", "netns", "delete", space], capture_output=True, check=False)


def run_ranks(where: list[list[str]], *, each: int, address: str, folder: Path) -> list[str]:
    """`each` ranks behind each of these words; what the ranks said, after they ended well."""
    helpers = os.pathsep.join([str(SCRIPT.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": helpers}
    ranks = []
    for rank in range(each * len(where)):
        machine = rank // each
        # the second machine sees no disk of the first; the file at which they meet stands for who starts them
        disk = folder / "checkpoints" if machine == 0 else folder / "a disk that is not there"
        words = [rank, each * len(where), len(where), address, folder / "meeting", disk, folder]
        command = [*where[machine], sys.executable, str(SCRIPT), *map(str, words)]
        ranks.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
        )
    try:
        said = [rank.communicate(timeout=300)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * len(ranks), "\n".join(said)
    return said


def check_as_one_rank(folder: Path) -> None:
    """Weights after four updates, and those after a checkpoint of three and one more update, are those of one rank."""
    plain = after_four_updates()
    for name in ("on", "resumed"):
        torch.testing.assert_close(load_file(folder / f"{name}.safetensors"), plain, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(bool(why_no_networks()), reason=why_no_networks())
def test_ranks_on_two_networks_train_as_one(tmp_path: Path) -> None:
    """Four ranks, two in each namespace: the update of one rank to 1e-5, before and after a checkpoint and a resume."""
    with two_networks("divopd") as where:
        said = run_ranks(where, each=2, address=FIRST, folder=tmp_path)
    check_as_one_rank(tmp_path)
    for text, end in zip(said, "aabb", strict=True):
        assert f"by v{os.getpid()}{end}\n" in text
    parts = {path.name for path in (tmp_path / "checkpoints" / "000002").glob("*.safetensors")}
    assert parts == {f"{kind}-{number}-of-2.safetensors" for kind in ("weights", "optimizer") for number in (1, 2)}
    assert not (tmp_path / "a disk that is not there").exists()


@pytest.mark.slow
def test_ranks_of_two_machines_train_as_one(tmp_path: Path) -> None:
    """The same on loopback, where namespaces cannot be made, with one rank a machine: nothing is shared out."""
    said = run_ranks([[], []], each=1, address="127.0.0.1", folder=tmp_path)
    check_as_one_rank(tmp_path)
    assert all("by lo\n" in text or "by None\n" in text for text in said)
