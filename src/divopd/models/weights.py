"""The tensors of a model by name: given away, compared, and filled into another model of the same kind.

With several ranks (FSDP2) every rank calls the same function: tensors are gathered, and the first rank has them whole.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from divopd.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor, nn


def fill_weights(model: "nn.Module", tensors: Mapping[str, "Tensor"], *, source: str) -> None:
    """Fill a model; the weights of another one raise a CheckpointError, and then the model is as it was."""
    check_alike(kinds_of(tensors), kinds_of(named_tensors(model)), source=source)
    fill(model, tensors)


def check_alike(got: Mapping[str, str], expected: Mapping[str, str], *, source: str) -> None:
    """Both say by name what each tensor is like; a CheckpointError names the first difference."""
    for key in sorted(got.keys() ^ expected.keys()):
        known = "is in the file, not in the model" if key in got else "is in the model, not in the file"
        raise CheckpointError(f"{source}: tensor {key!r} {known}; load it into the model it was saved from")
    for key in got:
        if got[key] != expected[key]:
            raise CheckpointError(f"{source}: tensor {key!r} is {got[key]}, the model expects {expected[key]}")


def named_tensors(model: "nn.Module") -> dict[str, "Tensor"]:
    """Parameters and saved buffers, a tensor that two layers share (tied embeddings) once."""
    saved = model.state_dict().keys()
    return {n: t for n, t in (*model.named_parameters(), *model.named_buffers()) if n in saved}


def gathered_weights(model: "nn.Module") -> dict[str, "Tensor"]:
    """All weights of a model on the CPU; with several ranks every one calls it, and the first has them whole."""
    return {name: gathered(tensor) for name, tensor in named_tensors(model).items()}


def gathered(tensor: "Tensor") -> "Tensor":
    from torch.distributed.tensor import DTensor

    if not isinstance(tensor, DTensor):
        return tensor.detach().cpu().contiguous()
    whole = tensor.full_tensor().detach()  # of the shards of FSDP2; every rank takes part, the first writes
    return whole.cpu().contiguous() if tensor.device_mesh.get_rank() == 0 else whole.new_empty(0).cpu()


def distributed_like(whole: "Tensor", target: "Tensor") -> "Tensor":
    """The whole tensor on the device of the target, cut into shards as the target is."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(target, DTensor):
        return whole.to(target.device)
    return distribute_tensor(whole.to(target.device), target.device_mesh, target.placements)


def fill(model: "nn.Module", weights: Mapping[str, "Tensor"]) -> None:
    import torch

    with torch.no_grad():
        for name, tensor in named_tensors(model).items():
            tensor.copy_(distributed_like(weights[name], tensor))


def kinds_of(tensors: Mapping[str, "Tensor"]) -> dict[str, str]:
    return {name: f"{tensor.dtype} {list(tensor.shape)}" for name, tensor in tensors.items()}
