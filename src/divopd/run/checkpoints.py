"""Checkpoints and published weights: safetensors and JSON in numbered folders (durable_folder.py), nothing pickled.

    runs/NAME/checkpoints/000123/   weights.safetensors  optimizer.safetensors  optimizer.json  random.json  state.json
    runs/NAME/weights/000123/       weights.safetensors

No model is touched before every digest, name, shape and type has been checked. With several ranks (FSDP2) every rank
calls the same functions and writes and reads its own part of the tensors (tensor_parts.py); rank 0 makes one folder of
the parts, and resumes may have more ranks or fewer.
"""

import json
import random
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from divopd.errors import CheckpointError
from divopd.models.weights import check_alike, fill_weights, kinds_of, named_tensors
from divopd.run.agreed import from_first_rank
from divopd.run.durable_folder import numbered_folders, numbered_path, refusal, verify, write_hashed_folder
from divopd.run.optimizer_state import check_groups, copied_optimizer, restored_optimizer
from divopd.run.tensor_file import write_tensors
from divopd.run.tensor_parts import copied_part, count_parts, fill_part, opened, part_files, part_of
from divopd.run.writing import Writing, begin_parts, collect_parts, hand_in_part, write_part, write_text

if TYPE_CHECKING:
    from torch import Tensor, nn, optim

WEIGHTS = "weights.safetensors"
TEXTS = ("optimizer.json", "random.json", "state.json")
CHECKPOINT_FILES = (WEIGHTS, "optimizer.safetensors", *TEXTS)  # of one rank

__all__ = [
    "Checkpoint",
    "Writing",
    "begin_checkpoint",
    "latest_checkpoint",
    "load_checkpoint",
    "load_weights",
    "publish_weights",
    "read_weights",
    "save_checkpoint",
    "verify",
]


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint gives back besides the model, the optimizer and the random state that it filled."""

    path: Path
    update: int
    state: dict[str, Any]


def save_checkpoint(
    folder: Path | str,
    *,
    update: int,
    model: "nn.Module",
    optimizer: "optim.Optimizer",
    state: Mapping[str, Any],
    keep: int = 2,
) -> Path:
    """Save all that a resume needs as FOLDER/UPDATE; `state` is the composer's (and the run's), JSON types only.

    When it returns, the checkpoint is on disk and verified, and only then were all but the newest `keep` deleted. When
    it raises, the older ones are as they were.
    """
    saving = begin_checkpoint(folder, update=update, model=model, optimizer=optimizer, state=state, keep=keep)
    _on_first_rank(saving.wait)
    return numbered_path(Path(folder), update)


def begin_checkpoint(
    folder: Path | str,
    *,
    update: int,
    model: "nn.Module",
    optimizer: "optim.Optimizer",
    state: Mapping[str, Any],
    keep: int = 2,
) -> "Writing":
    """As `save_checkpoint`, but returns once everything is copied to the CPU: a thread writes the copy.

    With several ranks the first one's thread ends when the folder is whole, the others' when their part is written.
    """
    folder, part = Path(folder), part_of(model)
    tensors = {"weights": copied_part(named_tensors(model), part)}
    tensors["optimizer"], settings = copied_optimizer(model, optimizer, part)
    said = {"optimizer": settings, "random": _random_state(), "state": dict(state)}
    texts = {f"{name}.json": json.dumps(content).encode() for name, content in said.items()}
    if part.of > 1:
        _on_first_rank(lambda: begin_parts(folder, update))

    def write(target: Path) -> dict[str, dict[str, Any]]:
        written = {name: write_text(target / name, text) for name, text in texts.items()}
        return written | write_part(target, tensors, part) | collect_parts(folder, target, part)

    def write_all() -> None:
        if part.is_written and part.number == 0:
            write_hashed_folder(folder, update, write, keep=keep)
        elif part.is_written:
            hand_in_part(folder, tensors, part)

    return Writing(write_all)


def load_checkpoint(path: Path | str, *, model: "nn.Module", optimizer: "optim.Optimizer") -> Checkpoint:
    """Fill model, optimizer and random state from a checkpoint; training goes on as if it had never stopped.

    A damaged checkpoint, or one of another model, raises a CheckpointError that names the file, says what differs and,
    for a damaged one, offers the previous; then nothing was filled.
    """
    path = Path(path)
    part = part_of(model)
    said = from_first_rank(lambda: _checked(path, model, optimizer))
    with ExitStack() as stack:
        weights, moments = (
            stack.enter_context(opened(path, kind, said["parts"])) if part.is_read else None
            for kind in ("weights", "optimizer")
        )
        optimizer_state = restored_optimizer(moments, said["moments"], said["optimizer"], model, optimizer, part)
        fill_part(weights, model, part)
    optimizer.load_state_dict(optimizer_state)
    _set_random_state(said["random"])
    return Checkpoint(path, said["number"], said["state"])


def _checked(path: Path, model: "nn.Module", optimizer: "optim.Optimizer") -> dict[str, Any]:
    """All that a checkpoint says in words, once nothing is wrong with it: its files are whole, and of such a model."""
    manifest = verify(path)
    parts = count_parts(manifest["files"], "weights")
    for name in (*part_files("weights", parts), *part_files("optimizer", parts), *TEXTS):
        if name not in manifest["files"]:
            raise refusal(path, f"{name} is missing; got published weights, expected a checkpoint")
    with opened(path, "weights", parts) as weights, opened(path, "optimizer", parts) as moments:
        check_alike(weights.kinds(), kinds_of(named_tensors(model)), source=f"{path}: {WEIGHTS}")
        kinds = moments.kinds()
    said = {name.removesuffix(".json"): _read_json(path / name) for name in TEXTS}
    check_groups(path, said["optimizer"], model, optimizer)
    return said | {"number": manifest["number"], "parts": parts, "moments": kinds}


def publish_weights(
    folder: Path | str, version: int, weights: Mapping[str, "Tensor"], *, keep: int | None = None
) -> None:
    """Write the weights of a policy version as FOLDER/VERSION for the explorers, whole or not at all.

    They are hashed while they are written; whoever loads them verifies them. `keep` deletes all but that many of the
    newest versions, after the new one is there; None keeps all.
    """

    def write(target: Path) -> dict[str, dict[str, Any]]:
        return {WEIGHTS: write_tensors(target / WEIGHTS, weights)}

    write_hashed_folder(Path(folder), version, write, keep=keep)


def load_weights(path: Path | str, model: "nn.Module") -> None:
    """Fill a model with the weights of a published version or of a checkpoint.

    Damaged weights, or those of another model, raise a CheckpointError; then the model is as it was.
    """
    fill_weights(model, read_weights(path), source=f"{path}: {WEIGHTS}")


def read_weights(path: Path | str) -> dict[str, "Tensor"]:
    """The weights of a published version or of a checkpoint; damaged ones raise a CheckpointError."""
    path = Path(path)
    with opened(path, "weights", count_parts(verify(path)["files"], "weights")) as files:
        return {name: files.whole(name) for name in files.kinds()}


def latest_checkpoint(folder: Path | str) -> Path | None:
    """The newest checkpoint (or published version) in a folder, or None. Loading it verifies it."""
    return max(numbered_folders(Path(folder)), key=lambda path: int(path.name), default=None)


# ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _read_json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


# ── random state, ranks ───────────────────────────────────────────────────────────────────────────────────────────


def _random_state() -> dict[str, Any]:
    import numpy as np
    import torch

    kind, keys, *rest = np.random.get_state(legacy=True)
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {
        "python": random.getstate(),
        "numpy": [kind, np.asarray(keys).tolist(), *rest],
        "torch": torch.get_rng_state().numpy().tobytes().hex(),
        "cuda": [state.numpy().tobytes().hex() for state in cuda],
    }


def _set_random_state(saved: Mapping[str, Any]) -> None:
    import numpy as np
    import torch

    def tensor(text: str) -> "Tensor":
        return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)

    version, keys, gauss = saved["python"]
    random.setstate((version, tuple(keys), gauss))
    np.random.set_state(tuple(saved["numpy"]))
    torch.set_rng_state(tensor(saved["torch"]))
    if len(saved["cuda"]) == (torch.cuda.device_count() if torch.cuda.is_available() else 0):
        torch.cuda.set_rng_state_all([tensor(state) for state in saved["cuda"]])


def _on_first_rank(write: Callable[[], object]) -> None:
    """Write on rank 0 while the others wait; a failure there is an error on every rank."""
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        write()
        return
    failure: CheckpointError | None = None
    if dist.get_rank() == 0:
        try:
            write()
        except CheckpointError as error:
            failure = error
    device = "cpu" if "gloo" in str(dist.get_backend()) else "cuda"
    failed = torch.tensor(0 if failure is None else 1, device=device)
    dist.broadcast(failed, src=0)
    if failed.item():
        raise failure or CheckpointError("rank 0 could not write the folder; its own message says why")
