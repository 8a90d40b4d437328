"""An optimizer's state in a checkpoint: {"exp_avg/PARAMETER": tensor}, and settings with parameters by name."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from divopd.errors import CheckpointError
from divopd.run.tensor_parts import Part, PartFiles, copied_part, loaded_part

if TYPE_CHECKING:
    from torch import Tensor, nn, optim


def copied_optimizer(
    model: "nn.Module", optimizer: "optim.Optimizer", part: Part
) -> tuple[dict[str, "Tensor"], list[dict[str, Any]]]:
    """This rank's part of its tensors, copied to the CPU, and its settings."""
    groups = _group_names(model, optimizer)
    names = [name for group in groups for name in group]
    content = optimizer.state_dict()
    tensors = {
        f"{field}/{names[index]}": tensor
        for index, entry in content["state"].items()
        for field, tensor in entry.items()
    }
    settings = [{**group, "params": params} for group, params in zip(content["param_groups"], groups, strict=True)]
    return copied_part(tensors, part), settings


def check_groups(path: Path, settings: list[dict[str, Any]], model: "nn.Module", optimizer: "optim.Optimizer") -> None:
    """A CheckpointError if these are settings of another optimizer."""
    if [group["params"] for group in settings] != _group_names(model, optimizer):
        raise CheckpointError(f"{path}: optimizer.json: other parameters or another order than this optimizer's")


def restored_optimizer(
    files: PartFiles | None,
    kinds: dict[str, str],
    settings: list[dict[str, Any]],
    model: "nn.Module",
    optimizer: "optim.Optimizer",
    part: Part,
) -> dict[str, Any]:
    """What `load_state_dict` takes, as this rank holds it."""
    import torch

    groups = _group_names(model, optimizer)
    parameters = dict(model.named_parameters())
    index = {name: number for number, name in enumerate(name for group in groups for name in group)}
    state: dict[int, dict[str, Tensor]] = {}
    for key in sorted(kinds):  # in the same order on every rank
        field, name = key.split("/", 1)
        parameter = parameters[name]
        moment = kinds[key].endswith(f" {list(parameter.shape)}")  # AdamW's step is one number
        like, device = (parameter, parameter.device) if moment else (None, torch.device("cpu"))
        tensor = loaded_part(files, key, part, like=like, kind=kinds[key], device=device)
        state.setdefault(index[name], {})[field] = tensor
    saved = [{key: tuple(v) if isinstance(v, list) else v for key, v in group.items()} for group in settings]
    numbered = [
        {**group, "params": [index[name] for name in names]} for group, names in zip(saved, groups, strict=True)
    ]
    return {"state": state, "param_groups": numbered}


def _group_names(model: "nn.Module", optimizer: "optim.Optimizer") -> list[list[str]]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [[names[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups]
