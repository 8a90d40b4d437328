"""Checkpoints and published weights: safetensors and JSON in numbered folders (durable_folder.py), nothing pickled.

    runs/NAME/checkpoints/000123/   weights.safetensors  optimizer.safetensors  optimizer.json  random.json  state.json
    runs/NAME/weights/000123/       weights.safetensors

No model is touched before every digest, name, shape and type has been checked. With several ranks (FSDP2) every rank
calls the same function; tensors are gathered, and rank 0 writes.
"""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from divopd.errors import CheckpointError
from divopd.models.weights import (
    check_alike,
    distributed_like,
    fill,
    fill_weights,
    gathered,
    gathered_weights,
    kinds_of,
    named_tensors,
)
from divopd.run.durable_folder import (
    numbered_folders,
    numbered_path,
    refusal,
    verify,
    write_folder,
    write_hashed_folder,
)
from divopd.run.tensor_file import write_tensors

if TYPE_CHECKING:
    from torch import Tensor, nn, optim

WEIGHTS = "weights.safetensors"
CHECKPOINT_FILES = (WEIGHTS, "optimizer.json", "optimizer.safetensors", "random.json", "state.json")

__all__ = [
    "Checkpoint",
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
    weights = gathered_weights(model)
    tensors, settings = _flatten_optimizer(model, optimizer)

    def write(target: Path) -> None:
        _write_tensors(target / WEIGHTS, weights)
        _write_tensors(target / "optimizer.safetensors", tensors)
        for name, content in (("optimizer", settings), ("random", _random_state()), ("state", dict(state))):
            (target / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")

    _on_first_rank(lambda: write_folder(Path(folder), update, write, keep=keep))
    return numbered_path(Path(folder), update)


def load_checkpoint(path: Path | str, *, model: "nn.Module", optimizer: "optim.Optimizer") -> Checkpoint:
    """Fill model, optimizer and random state from a checkpoint; training goes on as if it had never stopped.

    A damaged checkpoint, or one of another model, raises a CheckpointError that names the file, says what differs and,
    for a damaged one, offers the previous; then nothing was filled.
    """
    path = Path(path)
    manifest = verify(path)
    for name in CHECKPOINT_FILES:
        if name not in manifest["files"]:
            raise refusal(path, f"{name} is missing; got published weights, expected a checkpoint")
    weights = _read_tensors(path)
    check_alike(kinds_of(weights), kinds_of(named_tensors(model)), source=f"{path}: {WEIGHTS}")
    settings, randomness, state = (_read_json(path / f"{name}.json") for name in ("optimizer", "random", "state"))
    optimizer_state = _unflatten_optimizer(path, settings, model, optimizer)
    fill(model, weights)
    optimizer.load_state_dict(optimizer_state)
    _set_random_state(randomness)
    return Checkpoint(path, manifest["number"], state)


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
    verify(path)
    return _read_tensors(Path(path))


def latest_checkpoint(folder: Path | str) -> Path | None:
    """The newest checkpoint (or published version) in a folder, or None. Loading it verifies it."""
    return max(numbered_folders(Path(folder)), key=lambda path: int(path.name), default=None)


# ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _write_tensors(file: Path, tensors: dict[str, "Tensor"]) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(tensors, file)
    except SafetensorError as error:  # a full disk arrives as one
        raise OSError(str(error)) from None


def _read_tensors(path: Path) -> dict[str, "Tensor"]:
    from safetensors.torch import load_file

    return load_file(path / WEIGHTS)


def _read_json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


# ── the optimizer: {"exp_avg/PARAMETER": tensor} and its settings with parameters by name ─────────────────────────


def _group_names(model: "nn.Module", optimizer: "optim.Optimizer") -> list[list[str]]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [[names[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups]


def _flatten_optimizer(model: "nn.Module", optimizer: "optim.Optimizer") -> tuple[dict[str, "Tensor"], list[Any]]:
    groups = _group_names(model, optimizer)
    names = [name for group in groups for name in group]
    content = optimizer.state_dict()
    tensors = {
        f"{field}/{names[index]}": gathered(tensor)
        for index, entry in content["state"].items()
        for field, tensor in entry.items()
    }
    settings = [{**group, "params": params} for group, params in zip(content["param_groups"], groups, strict=True)]
    return tensors, settings


def _unflatten_optimizer(
    path: Path, settings: list[dict[str, Any]], model: "nn.Module", optimizer: "optim.Optimizer"
) -> dict[str, Any]:
    from safetensors.torch import load_file

    groups = _group_names(model, optimizer)
    if [group["params"] for group in settings] != groups:
        raise CheckpointError(f"{path}: optimizer.json: other parameters or another order than this optimizer's")
    parameters = dict(model.named_parameters())
    index = {name: number for number, name in enumerate(name for group in groups for name in group)}
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in load_file(path / "optimizer.safetensors").items():
        field, name = key.split("/", 1)
        parameter = parameters[name]
        same = tensor.shape == parameter.shape  # AdamW's step is one number
        whole = distributed_like(tensor, parameter) if same else tensor
        state.setdefault(index[name], {})[field] = whole
    saved = [{key: tuple(v) if isinstance(v, list) else v for key, v in group.items()} for group in settings]
    numbered = [
        {**group, "params": [index[name] for name in names]} for group, names in zip(saved, groups, strict=True)
    ]
    return {"state": state, "param_groups": numbered}


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
