"""The parts of decoder layers compiled by torch, for passes that need gradients: what lies between products is fused.

A part is a norm, the feed-forward layer, or what comes before and after attention. Attention itself stays as it is: who
sees whom is said in Python (attention.py). All layers share what was compiled, and lengths are symbols in it: another
length compiles nothing again. The layers themselves are left alone, because there activations are computed again and
FSDP2 has its hooks. Passes without gradients run as ever, so that generation and scoring say what they said.
"""

import os
import shutil
from collections.abc import Callable
from typing import Any

import torch

from divopd.errors import InputError
from divopd.models.attention import keep_out_of_graphs
from divopd.remembered import remembered_file

FOLDER = "TORCHINDUCTOR_CACHE_DIR"  # torch's name for it; what the user has set counts


def compile_layers(model: Any) -> None:
    """Before weights are shared out; compiling takes its time in the first passes."""
    require_compiler(next(model.parameters()).device.type)
    _keep_code_to_ourselves()
    keep_out_of_graphs()
    for layer in model.get_decoder().layers:
        for part in layer.children():
            part.forward = _for_gradients(part.forward)


def _keep_code_to_ourselves() -> None:
    """Torch keeps what it compiled, and loads it again as code: by default from the folder that all users may write."""
    if FOLDER not in os.environ:
        place = remembered_file("compiled", "code").parent
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"learner.compile needs a folder for code, and {place} cannot be made ({error}); name "
                             f"another one in {FOLDER}") from None  # fmt: skip
        os.environ[FOLDER] = str(place)


def _for_gradients(plain: Callable[..., Any]) -> Callable[..., Any]:
    compiled = torch.compile(plain, dynamic=True)

    def forward(*args: Any, **kwargs: Any) -> Any:
        return (compiled if torch.is_grad_enabled() else plain)(*args, **kwargs)

    return forward


def require_compiler(device: str) -> None:
    """InputError without the compiler that torch wants on a CPU: it would say so in many lines, at the first update."""
    compiler = os.environ.get("CXX", "g++")
    if device == "cpu" and not shutil.which(compiler):
        raise InputError(
            f"learner.compile needs a C++ compiler on a CPU, and there is no {compiler}; install one, name it in CXX, "
            "or set learner.compile to false"
        )
