"""Models of the Hugging Face Hub by name: `owner/name@revision`, kept where the Hub's own client keeps them.

The revision must be said: without one a name means another model tomorrow; a commit never moves, a branch may. Of
weights only safetensors are taken, and nothing that could run. Commands that load models download them first
(`fetch_models`); everything else looks at what is here and asks nobody.

Tested with the real client against a small local server (HF_ENDPOINT); never run against the Hub itself.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from divopd.errors import InputError
from divopd.extras import require

HUB_NAME = re.compile(
    r"(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)@(?P<revision>[A-Za-z0-9][\w./-]*)", re.ASCII
)
WANTED = ["*.safetensors", "*.json", "*.jinja", "*.txt", "tokenizer.model"]  # weights, words, chat templates
UNWANTED = ["*/*", "consolidated*"]  # other formats of the same weights


def is_hub_name(model: str) -> bool:
    """Whether it names a model of the Hub and its revision; a folder of that name goes first."""
    return HUB_NAME.fullmatch(model) is not None and not Path(model).exists()


def snapshot(model: str) -> Path | None:
    """The folder of a model that was downloaded before, whole; None if it is not here. Asks nobody."""
    try:
        return _snapshot(model, only_here=True)
    except (OSError, ValueError, ModuleNotFoundError):
        return None


def fetch_models(models: Iterable[str]) -> list[Path]:
    """Download those that name a model of the Hub; what is here already is not loaded again, also without a network.

    An InputError tells why a model cannot be had; files that came before it stay, and the next attempt goes on there.
    """
    return [_fetch(model) for model in dict.fromkeys(models) if is_hub_name(model)]


def _fetch(model: str) -> Path:
    require("train")  # brings the Hub's client
    try:
        folder = _snapshot(model, only_here=False)
    except (OSError, ValueError) as error:  # its own errors are all one of these
        why = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise InputError(
            f"{model}: the Hub does not give it ({why.strip()}); check name and revision, log in with `hf auth login` "
            "if it is gated, or set the model to a folder"
        ) from None
    if not any(folder.glob("*.safetensors")):
        raise InputError(f"{model}: has no safetensors files at that revision; expected weights in that format alone")
    return folder


def _snapshot(model: str, *, only_here: bool) -> Path:
    from huggingface_hub import snapshot_download

    named = HUB_NAME.fullmatch(model)
    assert named is not None
    folder = snapshot_download(
        named["repository"],
        revision=named["revision"],
        allow_patterns=WANTED,
        ignore_patterns=UNWANTED,
        local_files_only=only_here,
    )
    return Path(folder)
