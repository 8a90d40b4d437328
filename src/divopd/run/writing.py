"""How a checkpoint gets to the disk beside the training, and how its parts come together.

Each rank writes its part into CHECKPOINTS/.parts and says there, last, what it wrote or why it could not. The first
rank waits for all of them, moves the parts into the folder that it makes, and that is durable_folder.py's: whole or not
at all. What is left of ranks that were killed is deleted before the next ones write.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from divopd.errors import CheckpointError
from divopd.run.durable_folder import numbered_path
from divopd.run.tensor_file import write_tensors
from divopd.run.tensor_parts import Part

if TYPE_CHECKING:
    from torch import Tensor

PARTS = ".parts"
POLL_S = 0.05

Described = dict[str, dict[str, Any]]  # size and sha256 of files, as a manifest has them


class Writing:
    """Something that is being written by a thread."""

    def __init__(self, write: Callable[[], object]) -> None:
        self._ended: Future[None] = Future()
        Thread(target=self._go_on, args=(write,), name="checkpoint").start()

    def _go_on(self, write: Callable[[], object]) -> None:
        try:
            write()
        except BaseException as error:  # it is raised where somebody waits
            self._ended.set_exception(error)
        else:
            self._ended.set_result(None)

    @property
    def done(self) -> bool:
        """Whether it has ended, well or badly."""
        return self._ended.done()

    def wait(self) -> None:
        """Until it is on disk. What went wrong is raised here."""
        self._ended.result()


def write_text(file: Path, text: bytes) -> dict[str, Any]:
    """Write a small file; returns its size and sha256."""
    file.write_bytes(text)
    return {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}


def write_part(folder: Path, tensors: Mapping[str, Mapping[str, "Tensor"]], part: Part) -> Described:
    """Write this rank's part of each kind of tensors."""
    return {part.file(kind): write_tensors(folder / part.file(kind), held) for kind, held in tensors.items()}


def begin_parts(folder: Path, number: int) -> None:
    """Make the place for parts, empty. The first rank does it, while the others wait."""
    parts = folder / PARTS
    try:
        shutil.rmtree(parts, ignore_errors=True)
        parts.mkdir(parents=True)
    except OSError as error:
        raise CheckpointError(
            f"{numbered_path(folder, number)}: cannot be written ({error}); the older ones are untouched, make room "
            "and save again"
        ) from None


def hand_in_part(folder: Path, tensors: Mapping[str, Mapping[str, "Tensor"]], part: Part) -> None:
    """Write a part that is not the first one's, and say so; also if it cannot be written."""
    said: dict[str, Any] = {"failed": "its thread ended early"}
    try:
        said = {"written": write_part(folder / PARTS, tensors, part)}
    except OSError as error:
        said = {"failed": str(error)}
        for kind in tensors:  # on a full disk there must be room for a word
            (folder / PARTS / part.file(kind)).unlink(missing_ok=True)
    finally:
        partial = folder / PARTS / f".{part.number}"
        partial.write_text(json.dumps(said), encoding="utf-8")
        partial.rename(folder / PARTS / f"{part.number}.json")


def collect_parts(folder: Path, target: Path, part: Part) -> Described:
    """Move what the other ranks wrote into the target; an OSError says what one of them could not write."""
    written: Described = {}
    for number in range(1, part.of):
        word = folder / PARTS / f"{number}.json"
        while not word.exists():  # a rank that died takes this one with it
            time.sleep(POLL_S)
        said = json.loads(word.read_text(encoding="utf-8"))
        if "failed" in said:
            raise OSError(f"rank {number}: {said['failed']}")
        for name in said["written"]:
            (folder / PARTS / name).rename(target / name)
        written |= said["written"]
    if part.of > 1:
        shutil.rmtree(folder / PARTS)
    return written
