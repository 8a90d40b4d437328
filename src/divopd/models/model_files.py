"""What a model folder says about its model, without loading a weight."""

import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from os import SEEK_END
from pathlib import Path
from typing import Any

from divopd.errors import InputError, UnknownNameError
from divopd.models.hub import is_hub_name, snapshot

PREFIX = "embedded:"
SHIPPED = Path(__file__).parent / "embedded"
DEFAULT_ENVIRONMENT = "alfworld-small"  # whose models are meant by embedded:teacher and embedded:student
HUB_ID = re.compile(r"[A-Za-z0-9][\w-]*/(?P<name>[A-Za-z0-9][\w.-]*)", re.ASCII)
MAX_CONFIG_BYTES = 1_000_000
MAX_TOKENIZER_BYTES = 256 * 2**20  # of one file
MAX_SIZE = 2**31 - 1
ROOM = 4  # a configuration may ask for so many times the numbers that its files hold: heads are tied, packed, repeated
MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors format


@dataclass(frozen=True)
class ModelFacts:
    """The size and shape of a decoder. `adapter_rows` is the sum of inputs and outputs of its linear layers."""

    parameters: int
    layers: int
    hidden: int
    feed_forward: int
    cache_width: int  # keys and values of one token in one layer
    context_length: int | None
    vocabulary: int
    adapter_rows: int
    query_width: int  # queries of one token in one layer
    embeddings: int  # numbers in the embedding and in a head of its own
    normed_queries: bool  # queries and keys have norms, as in Qwen3

    def cache_bytes(self, tokens: int, *, width_bytes: int) -> int:
        """Keys and values of so many tokens."""
        return tokens * self.layers * self.cache_width * width_bytes


def read_model_facts(folder: Path) -> ModelFacts:
    """Facts from config.json and the headers of the safetensors files; InputError if the folder holds no model."""
    require_model(folder)
    tensors = tensor_shapes(folder)
    shapes = list(tensors.values())
    config = _read_config(folder)
    try:
        heads = config["num_attention_heads"]
        width = config.get("head_dim") or config["hidden_size"] // heads
        return ModelFacts(
            parameters=sum(prod(shape) for shape in shapes),
            layers=config["num_hidden_layers"],
            hidden=config["hidden_size"],
            feed_forward=config.get("intermediate_size") or 4 * config["hidden_size"],
            cache_width=2 * width * (config.get("num_key_value_heads") or heads),
            context_length=config.get("max_position_embeddings"),
            vocabulary=config["vocab_size"],
            adapter_rows=sum(sum(shape) for shape in shapes if len(shape) == 2 and config["vocab_size"] not in shape),
            query_width=width * heads,
            embeddings=sum(prod(shape) for shape in shapes if config["vocab_size"] in shape),
            normed_queries=any(".q_norm." in name for name in tensors),
        )
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise InputError(f"{folder / 'config.json'}: not the configuration of a decoder ({error!r})") from None


def model_folder(model: str) -> Path:
    """Where a model lies: `embedded:NAME` in the package, a downloaded `owner/name@revision` in the client's cache.

    Any other name is a folder's, which need not exist.
    """
    if is_hub_name(model):
        return snapshot(model) or Path(model)
    if not model.startswith(PREFIX):
        return Path(model)
    name = model.removeprefix(PREFIX)
    full = name if "/" in name else f"{DEFAULT_ENVIRONMENT}/{name}"
    known = sorted(f"{folder.parent.name}/{folder.name}" for folder in SHIPPED.glob("*/*"))
    if full not in known:
        raise UnknownNameError("embedded model", name, ["teacher", "student", *known])
    return SHIPPED / full


def require_model(folder: Path) -> None:
    """InputError if the folder holds no model; where the name may be one of the Hub, it says how to get the folder.

    Also one whose configuration is not that of its weights: it would be built before anybody looks at them.
    """
    _require_files(folder)
    config, shapes = _read_config(folder), tensor_shapes(folder)
    stored = sum(prod(shape) for shape in shapes.values())
    for needed, what in _needs(config):
        if needed > ROOM * max(stored, 1):
            raise InputError(
                f"{folder / 'config.json'}: {what} makes a model of at least {needed:,} numbers, but its safetensors "
                f"files hold {stored:,}; expected the configuration of these weights"
            )
    if (layers := _size(config, "num_hidden_layers")) > len(shapes):
        raise InputError(
            f"{folder / 'config.json'}: num_hidden_layers is {layers}, but the safetensors files hold {len(shapes)} "
            "tensors; expected the configuration of these weights"
        )


def _needs(config: dict[str, Any]) -> Iterator[tuple[int, str]]:
    """The least numbers that a model of this configuration has, as far as single keys tell."""
    hidden = max(_size(config, "hidden_size"), 1)
    for key in ("vocab_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"):
        yield hidden * _size(config, key), f"{key} × hidden_size"
    yield hidden, "hidden_size"


def _size(config: dict[str, Any], key: str) -> int:
    """A number of the configuration; 0 where it is left out."""
    value = config.get(key)
    if value is None:
        return 0
    if type(value) is not int or not 0 < value <= MAX_SIZE:
        raise InputError(f"{key} of a model is {str(value)[:40]}; expected a whole number from 1 to {MAX_SIZE:,}")
    return value


def _read_config(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_CONFIG_BYTES + 1)
        if len(content) > MAX_CONFIG_BYTES:
            raise ValueError(f"over {MAX_CONFIG_BYTES} bytes")
        config = json.loads(content)
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{file}: not the configuration of a decoder ({error!r})") from None
    if not isinstance(config, dict):
        raise InputError(f"{file}: not the configuration of a decoder (a {type(config).__name__})")
    return config


def _require_files(folder: Path) -> None:
    if not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
        raise InputError(
            f"{folder}: no model there; expected a folder with config.json and safetensors files, as save_pretrained "
            f"writes it{hub_advice(str(folder))}"
        )


def hub_advice(model: str) -> str:
    """How to get a model of the Hugging Face Hub, if the name looks like one of it; begins with a semicolon."""
    if is_hub_name(model):
        repository, _, revision = model.partition("@")
        return f"; it is not on this machine: hf download {repository} --revision {revision}"
    name = HUB_ID.fullmatch(model)
    if name is None or Path(model).parent.exists():
        return ""
    folder = f"models/{name['name']}"
    return (
        f"; if it is the name of a model on the Hugging Face Hub: hf download {model} --local-dir {folder}, then set "
        f"the model to {folder}; or say the revision: {model}@REVISION, which divopd downloads itself"
    )


def tensor_shapes(folder: Path) -> dict[str, list[int]]:
    """The shapes of a model's tensors by name, from the headers of its safetensors files alone."""
    return {name: shape for file in sorted(folder.glob("*.safetensors")) for name, shape in _shapes(file).items()}


def _shapes(file: Path) -> dict[str, list[int]]:
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > MAX_HEADER_BYTES:
                raise ValueError(f"a header of {length} bytes")
            header = json.loads(stream.read(length))
            whole = stream.seek(0, SEEK_END)
        tensors = {name: tensor for name, tensor in header.items() if name != "__metadata__"}
        ends = [tensor["data_offsets"][1] for tensor in tensors.values()]
        if any(type(end) is not int for end in ends) or 8 + length + max(ends, default=0) != whole:
            raise ValueError(f"it has {whole} bytes, and its header tells of {8 + length + max(ends, default=0)}")
        if any(type(n) is not int or n < 0 for tensor in tensors.values() for n in tensor["shape"]):
            raise ValueError("a shape that is none")
        return {name: tensor["shape"] for name, tensor in tensors.items()}
    except (OSError, ValueError, struct.error, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{file}: is no safetensors file, or not a whole one ({error}); copy it again") from None


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a model folder; no weights, no network, no remote code."""
    from transformers import AutoTokenizer

    check_tokenizer_size(folder)
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the libraries raise whatever a foreign file leads them to
        raise InputError(f"{folder}: transformers cannot load its tokenizer ({first_line(error)})") from None


def check_tokenizer_size(folder: Path) -> None:
    """InputError if a file that the tokenizer is read from is too large to be one."""
    for file in (*folder.glob("*.json"), *folder.glob("*.jinja"), *folder.glob("*.txt"), *folder.glob("*.model")):
        if file.stat().st_size > MAX_TOKENIZER_BYTES:
            raise InputError(f"{file}: has {file.stat().st_size:,} bytes; expected at most {MAX_TOKENIZER_BYTES:,}")


def first_line(error: BaseException) -> str:
    """What an error of a library says, in one line."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
