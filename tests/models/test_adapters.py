"""Versions of a student that trains adapters are the adapters alone, in every engine."""

import sys
import tempfile
from collections.abc import Hashable, Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="for want of the extra train")
pytest.importorskip("peft", reason="for want of the extra lora")
import torch

from divopd.errors import CheckpointError
from divopd.models.model_files import model_folder, tensor_shapes
from divopd.models.optimization import Lora
from divopd.models.policy import Response
from divopd.models.transformers_policy import TransformersPolicy
from divopd.models.vllm_adapters import Adapters, adapter_settings
from divopd.models.vllm_policy import VllmPolicy
from divopd.models.weights import copied_weights, named_tensors, streamed_kinds, streamed_weights
from divopd.run.checkpoints import load_weights, publish_weights, read_weights
from vllm_engines import give_back

LORA = Lora(rank=4, alpha=8)
PROMPT = [int(token) for token in np.random.default_rng(0).integers(4, 300, 60)]


def trained(*, seed: int = 1) -> TransformersPolicy:
    """A student whose adapters have learnt something."""
    policy = TransformersPolicy.load(model_folder("embedded:student"), lora=LORA)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            if parameter.requires_grad:
                parameter += 0.05 * torch.randn_like(parameter)
    return policy


def test_a_version_is_the_adapters_and_fills_the_same_base(tmp_path: Path) -> None:
    """As a file of a few per cent of the model; every other tensor stays, and the answers are those of the learner."""
    learner = trained()
    version = copied_weights(learner.model, None)
    assert all(".lora_" in name for name in version)
    assert {name: (str(t.dtype)[6:], tuple(t.shape)) for name, t in version.items()} == streamed_kinds(
        learner.model, None
    )
    assert all(torch.equal(t, version[name]) for name, t in streamed_weights(learner.model, None))
    publish_weights(tmp_path, 3, version)
    actor = TransformersPolicy.load(model_folder("embedded:student"), lora=LORA)
    load_weights(tmp_path / "000003", actor.model)
    for name, tensor in named_tensors(learner.model).items():
        assert torch.equal(tensor, named_tensors(actor.model)[name]), name
    spans = [[(1, len(PROMPT))]]
    assert np.array_equal(actor.score([PROMPT], spans)[0][0], learner.score([PROMPT], spans)[0][0])
    whole = TransformersPolicy.load(model_folder("embedded:student"))
    with pytest.raises(CheckpointError, match="is in the file, not in the model"):
        load_weights(tmp_path / "000003", whole.model)
    with pytest.raises(CheckpointError, match="is in the model, not in the file"):
        actor.fill_weights(dict(list(version.items())[1:]), source="half of it")


def test_adapters_of_another_model_are_refused() -> None:
    """Before vLLM sees them: by layer, by shape, by rank; and there is room for the rank."""
    folder = model_folder("embedded:student")
    version, shapes = copied_weights(trained().model, None), tensor_shapes(folder)
    name = next(iter(version))
    for wrong in (
        {name: version[name]},
        version | {name: version[name][:2]},
        {key.replace("layers.0", "layers.99"): tensor for key, tensor in version.items()},
        {},
    ):
        with pytest.raises(CheckpointError):
            Adapters(folder, LORA).take(wrong, shapes=shapes, source="a test")
    assert adapter_settings(Lora(rank=20))["max_lora_rank"] == 32


@pytest.fixture(scope="module", autouse=True)
def _what_engines_share() -> Iterator[None]:
    yield
    if "vllm" in sys.modules:
        give_back()


@pytest.fixture(scope="module")  # what it shares with other engines stays as long as the module
def acting() -> VllmPolicy:
    return VllmPolicy(model_folder("embedded:student"), dtype="float32", context=200, sequences=2, lora=LORA)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(find_spec("vllm") is None, reason="for want of vLLM")
def test_vllm_acts_with_the_adapters_of_a_version(acting: VllmPolicy, tmp_path: Path) -> None:
    """Of the newest one, and of the model itself before the first; the learner finds the log probabilities again.

    What is under way goes on with its own; folders of adapters that nobody acts with are gone.
    """
    base, learner = TransformersPolicy.load(model_folder("embedded:student")), trained()
    policy = acting

    def gap(reference: TransformersPolicy) -> float:
        [response] = policy.respond([PROMPT], temperature=1.0, max_tokens=12, seeds=[1])
        row = [*PROMPT, *response.ids]
        [[found]] = reference.score([row], [[(len(PROMPT), len(row))]])
        return float(np.abs(found - np.asarray(response.logprobs)).max())

    assert gap(base) < 1e-4
    for version in (1, 2):
        learner = trained(seed=version)
        publish_weights(tmp_path, version, copied_weights(learner.model, None))
        policy.fill_weights(read_weights(tmp_path / f"{version:06d}"), source="a version")
        assert gap(learner) < 1e-4
        assert gap(base) > 1e-3
    assert len(versions_on_disk()) == 1
    policy.add("older", PROMPT, temperature=1.0, max_tokens=12, seed=1)
    policy.step()
    third = trained(seed=3)
    publish_weights(tmp_path, 3, copied_weights(third.model, None))
    policy.fill_weights(read_weights(tmp_path / "000003"), source="a version")
    assert len(versions_on_disk()) == 2
    ended = list[tuple[Hashable, Response]]()
    while policy.pending:
        ended += policy.step()
    [(_, response)] = ended
    [[found]] = learner.score([[*PROMPT, *response.ids]], [[(len(PROMPT), len(PROMPT) + len(response.ids))]])
    assert float(np.abs(found - np.asarray(response.logprobs)).max()) < 1e-4
    assert gap(third) < 1e-4
    policy.fill_weights(read_weights(tmp_path / "000003"), source="a version")
    assert len(versions_on_disk()) == 1


def versions_on_disk() -> list[Path]:
    """The folders of adapters that vLLM was given."""
    return list(Path(tempfile.gettempdir()).glob("divopd-adapters-*/*"))
