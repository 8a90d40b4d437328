"""The tensors of a model by name: given away, compared, and filled into another model of the same kind.

With several ranks (FSDP2) every rank calls the same function: tensors are gathered, and the first rank has them whole.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from divopd.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor, nn


ADAPTER = ".lora_"  # in the name of a tensor of peft's adapters

Kinds = dict[str, tuple[str, tuple[int, ...]]]  # of tensors: type and shape, by name


def fill_weights(model: "nn.Module", tensors: Mapping[str, "Tensor"], *, source: str) -> None:
    """Fill a model; the weights of another one raise a CheckpointError, and then the model is as it was.

    A version that was published in bfloat16 fills a model in float32, too: every number of it is one there. Where
    adapters are trained a version may be the adapters alone, on the same base.
    """
    expected = named_tensors(model)
    if tensors.keys() == (adapters := published_tensors(model)).keys():
        expected = adapters
    got = {name: _kind_in(tensor, expected.get(name)) for name, tensor in tensors.items()}
    check_alike(got, kinds_of(expected), source=source)
    fill(model, tensors)


def _kind_in(tensor: "Tensor", target: "Tensor | None") -> str:
    """What a tensor is like once it fills the target."""
    import torch

    widened = target is not None and (tensor.dtype, target.dtype) == (torch.bfloat16, torch.float32)
    return _kind(tensor.dtype if target is None or not widened else target.dtype, tensor)


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


def published_tensors(model: "nn.Module") -> dict[str, "Tensor"]:
    """What a version is made of: all tensors, or the adapters alone, where these are what is trained."""
    tensors = named_tensors(model)
    return {name: tensor for name, tensor in tensors.items() if ADAPTER in name} or tensors


def gathered_weights(model: "nn.Module") -> dict[str, "Tensor"]:
    """All weights of a model on the CPU; with several ranks every one calls it, and the first has them whole."""
    return {name: gathered(tensor) for name, tensor in named_tensors(model).items()}


def copied_weights(model: "nn.Module", dtype: str | None) -> dict[str, "Tensor"]:
    """What a version is made of, as a copy that later updates leave as it is; fractions are in `dtype`, if one is said.

    They are rounded where they are, so that half as many bytes come from a GPU.
    """
    import torch

    wanted = None if dtype is None else getattr(torch, dtype)
    copies = {}
    for name, tensor in published_tensors(model).items():
        rounds = wanted is not None and tensor.is_floating_point()
        copies[name] = gathered(tensor.detach().to(wanted if rounds else tensor.dtype, copy=True))
    return copies


def streamed_weights(model: "nn.Module", dtype: str | None) -> Iterator[tuple[str, "Tensor"]]:
    """All tensors, one at a time, whole and where the model is; with several ranks every one goes through all."""
    import torch
    from torch.distributed.tensor import DTensor

    wanted = None if dtype is None else getattr(torch, dtype)
    for name, tensor in published_tensors(model).items():
        rounded = tensor.detach().to(wanted if wanted is not None and tensor.is_floating_point() else tensor.dtype)
        yield name, (rounded.full_tensor() if isinstance(rounded, DTensor) else rounded).contiguous()


def streamed_kinds(model: "nn.Module", dtype: str | None) -> Kinds:
    """Type and whole shape of what `streamed_weights` yields, in its order; nothing is gathered."""
    return {
        name: (dtype if dtype and t.is_floating_point() else str(t.dtype).removeprefix("torch."), tuple(t.shape))
        for name, t in published_tensors(model).items()
    }


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

    tensors = named_tensors(model)
    with torch.no_grad():
        for name in weights:
            tensor = tensors[name]
            tensor.copy_(distributed_like(weights[name], tensor))


def kinds_of(tensors: Mapping[str, "Tensor"]) -> dict[str, str]:
    return {name: _kind(tensor.dtype, tensor) for name, tensor in tensors.items()}


def _kind(dtype: object, tensor: "Tensor") -> str:
    return f"{dtype} {list(tensor.shape)}"
