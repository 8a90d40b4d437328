"""The optional packages: which module comes with which extra of pyproject.toml."""

from importlib.util import find_spec

from divopd.errors import MissingExtraError

MODULES = {
    "plots": ("matplotlib",),
    "train": ("torch", "transformers", "tokenizers", "safetensors", "jinja2", "huggingface_hub"),
    "lora": ("peft",),
    "ray": ("ray",),
    "vllm": ("vllm",),
    "webshop": ("bm25s", "Stemmer", "rapidfuzz"),
    "scienceworld": ("scienceworld",),
    "alfworld": ("alfworld",),
    "gym": ("gymnasium",),
    "openenv": ("openenv",),
    "tensorboard": ("tensorboard",),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
    "trackio": ("trackio",),
    "gguf": ("gguf",),
}


def require(*extras: str) -> None:
    """A MissingExtraError at the first module that is not installed, before anything is begun that would need it."""
    for extra in extras:
        for module in MODULES[extra]:
            if find_spec(module) is None:
                raise MissingExtraError(module, extra)


def as_missing_extra(error: ModuleNotFoundError) -> MissingExtraError | None:
    """The same in a user's words, if the module is one that an extra brings."""
    module = (error.name or "").partition(".")[0]
    return next((MissingExtraError(module, extra) for extra, modules in MODULES.items() if module in modules), None)
