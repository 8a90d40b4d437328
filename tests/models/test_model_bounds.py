"""A model folder comes from somebody else: absurd numbers, cut files and templates without end are told in a line."""

import json
import shutil
import struct
from pathlib import Path

import pytest

from divopd.errors import AlignmentError, InputError
from divopd.models.model_files import load_tokenizer, read_model_facts, require_model
from divopd.models.transformers_policy import TransformersPolicy
from divopd.prompts import Codec
from divopd.prompts.template_bounds import is_plain

QWEN_LIKE = (
    "{%- if messages[0].role == 'system' %}{{- '<|see|>' + messages[0].content }}{%- endif %}"
    "{%- set ns = namespace(last=messages|length - 1) %}"
    "{%- for message in messages[::-1] %}{%- set ns.last = loop.index0 %}{%- endfor %}"
    "{%- for message in messages %}{%- if message.role == 'assistant' %}{{- '<|act|>' + message.content + '<|end|>' }}"
    "{%- elif message.role == 'user' %}{{- '<|see|>' + message.content|trim }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|act|>' }}{%- endif %}"
)


@pytest.fixture
def folder(models: Path, tmp_path: Path) -> Path:
    """A model that can be loaded, to be spoiled."""
    return shutil.copytree(models / "student", tmp_path / "model")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_hidden_layers", 10**9),
        ("num_hidden_layers", 10**30),
        ("num_hidden_layers", -1),
        ("num_hidden_layers", "many"),
        ("vocab_size", 2**31 - 1),
        ("hidden_size", 2**30),
        ("hidden_size", 0),
        ("intermediate_size", 10**9),
        ("num_attention_heads", 10**9),
        ("num_attention_heads", 0),
        ("head_dim", 2**31),
    ],
)
def test_absurd_numbers_are_refused_before_a_model_is_built(key: str, value: object, folder: Path) -> None:
    """By whoever reads or loads the folder: the file and the key are named."""
    file = folder / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    assert require_model(folder) is None
    file.write_text(json.dumps(config | {key: value}), encoding="utf-8")
    for read in (require_model, read_model_facts, TransformersPolicy.load):
        with pytest.raises(InputError, match=key):
            read(folder)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"a": ' * 10_000, b"x" * 2_000_000, b"\xff"])
def test_a_configuration_that_is_none(content: bytes, folder: Path) -> None:
    """Not JSON, not an object, too deep, too long."""
    (folder / "config.json").write_bytes(content)
    with pytest.raises(InputError, match=r"config\.json"):
        TransformersPolicy.load(folder)


@pytest.mark.parametrize("left", [0, 7, 8, 100, -1])
def test_cut_weights_are_told(left: int, folder: Path) -> None:
    """A download that broke off, at any place."""
    [file] = folder.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:left])
    for read in (require_model, read_model_facts, TransformersPolicy.load):
        with pytest.raises(InputError, match="not a whole one"):
            read(folder)


@pytest.mark.parametrize("shape", [[-1, 4], ["4"], [2**40, 2**40]])
def test_headers_that_lie_are_refused(shape: list, folder: Path) -> None:
    """Shapes that are none, or that the file has no room for."""
    [file] = folder.glob("*.safetensors")
    header = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 16]}}).encode()
    file.write_bytes(struct.pack("<Q", len(header)) + header + bytes(16))
    with pytest.raises(InputError):
        TransformersPolicy.load(folder)


@pytest.mark.parametrize("content", ["", "{}", '{"model": 1}', "[" * 100_000])
def test_a_tokenizer_that_is_none(content: str, folder: Path) -> None:
    """Whatever the library makes of it."""
    (folder / "tokenizer.json").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match="cannot load"):
        load_tokenizer(folder)


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 'x' * 10000000000 }}",
        "{% set ns = namespace(a='xx') %}{% for i in range(99) %}{% set ns.a = ns.a + ns.a %}{% endfor %}{{ ns.a }}",
        "{{ '%9999999999d' % 1 }}",
        "{{ 'x' * 1000000 }}",
        "{" * 200_000,
    ],
    ids=["loops", "product", "doubling", "width", "long", "source"],
)
def test_templates_without_end_are_stopped(template: str, folder: Path) -> None:
    """In time and memory, as an AlignmentError that speaks of the chat template."""
    tokenizer = load_tokenizer(folder)
    tokenizer.chat_template = template
    with pytest.raises(AlignmentError, match=r"the chat template (takes|has)"):
        Codec(tokenizer)


@pytest.mark.parametrize(
    "template",
    [
        "{{ 1 / 0 }}",
        "{{ messages[99].content }}",
        "{{ raise_exception('no') }}",
        "{% if %}",
        "{{ ''.__class__.mro() }}",
    ],
)
def test_templates_that_break_are_told(template: str, folder: Path) -> None:
    """Whatever they raise is no traceback."""
    tokenizer = load_tokenizer(folder)
    tokenizer.chat_template = template
    with pytest.raises(AlignmentError, match="the chat template"):
        Codec(tokenizer)


def test_real_templates_pass(folder: Path) -> None:
    """The embedded one without a process of its own, one with loops and assignments after it was tried in one."""
    tokenizer = load_tokenizer(folder)
    assert is_plain(tokenizer.chat_template)
    assert not is_plain(QWEN_LIKE)
    first = Codec(tokenizer)
    tokenizer.chat_template = QWEN_LIKE
    assert Codec(tokenizer).open_response == first.open_response
