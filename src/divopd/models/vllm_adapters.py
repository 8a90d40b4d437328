"""Versions that are adapters (LoRA), as vLLM takes them: a folder in peft's format, and a request that names it.

The engine's own weights stay. Every version is another adapter to vLLM, with a name of its own, so that nothing which
was read with an older one is used again. Folders of older ones go as soon as no request acts with them.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any
from weakref import finalize

from divopd.models.optimization import Lora
from divopd.models.weights import check_alike

if TYPE_CHECKING:
    from torch import Tensor

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM makes room for
BEFORE, NAME = "base_model.model.", ".default"  # what peft puts before and into names


def adapter_settings(lora: Lora) -> dict[str, Any]:
    """What vLLM is started with."""
    room = next((rank for rank in RANKS if rank >= lora.rank), lora.rank)
    return {"enable_lora": True, "max_loras": 1, "max_lora_rank": room}


class Adapters:
    """The adapters that an engine acts with; none before the first version, whose start is the model itself."""

    def __init__(self, model: Path, lora: Lora) -> None:
        self._model, self._lora = model, lora
        self._folder = Path(mkdtemp(prefix="divopd-adapters-"))
        finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._number = 0
        self._under_way: dict[str, int] = {}  # requests, and the number of what they act with
        self.request: Any = None

    def begin(self, request: str) -> None:
        """A request of this name acts with what is newest now; vLLM may read its folder until the request ends."""
        self._under_way[request] = self._number

    def end(self, request: str) -> None:
        del self._under_way[request]

    def take(self, weights: "Mapping[str, Tensor]", *, shapes: Mapping[str, list[int]], source: str) -> None:
        """Act with these from now on. `shapes` are the model's; adapters of another one raise a CheckpointError."""
        got = {name: str(list(tensor.shape)) for name, tensor in weights.items()}
        check_alike(got, self._expected(weights, shapes), source=source)
        from safetensors.torch import save_file
        from vllm.lora.request import LoRARequest

        self._number += 1
        path = self._folder / str(self._number)
        path.mkdir()
        save_file({name.replace(NAME, ""): tensor.contiguous() for name, tensor in weights.items()},
                  path / "adapter_model.safetensors")  # fmt: skip
        (path / "adapter_config.json").write_text(json.dumps(self._config(weights)), encoding="utf-8")
        self.request = LoRARequest(f"version-{self._number}", self._number, str(path))
        for number in {int(folder.name) for folder in self._folder.iterdir()} - {
            *self._under_way.values(),
            self._number,
        }:
            shutil.rmtree(self._folder / str(number))

    def _expected(self, weights: "Mapping[str, Tensor]", shapes: Mapping[str, list[int]]) -> dict[str, str]:
        """What the tensors are like that adapt these layers of the model."""
        layers = {name.partition(".lora_")[0] for name in weights}
        known = {layer: shapes.get(f"{layer.removeprefix(BEFORE)}.weight") for layer in layers}
        rank = self._lora.rank
        wanted = {
            f"{layer}.lora_{half}{NAME}.weight": str([rank, shape[1]] if half == "A" else [shape[0], rank])
            for layer, shape in known.items()
            if shape is not None
            for half in "AB"
        }
        return wanted or {"an adapter of a layer": "two tensors"}

    def _config(self, weights: "Mapping[str, Tensor]") -> dict[str, Any]:
        modules = {name.partition(".lora_")[0].rpartition(".")[2] for name in weights}
        return {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": str(self._model),
            "r": self._lora.rank,
            "lora_alpha": self._lora.alpha,
            "target_modules": sorted(modules),
            "bias": "none",
        }
