"""A decoder read in few calls says what its own layers say, whatever its family, with the weights that it has now."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    GemmaConfig,
    GemmaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from divopd.learner.torch_learner import TorchLearner
from divopd.models.attention import Branches, Packed, register
from divopd.models.fused import LARGE, FusedDecoder, Joined, Separate
from divopd.models.logprobs import hidden_states
from divopd.models.model_files import model_folder
from divopd.models.optimization import Lora, Optimization
from divopd.models.products import FEW_ROWS
from divopd.models.transformers_policy import TransformersPolicy
from token_rollouts import VOCABULARY, rollout, tiny_model

LENGTHS = [9, 1, 30]
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.2,
}
MODELS = {
    "Qwen3": tiny_model,
    "Qwen2, biases": lambda dtype: Qwen2ForCausalLM(Qwen2Config(**SIZES)).to(dtype),
    "Llama": lambda dtype: LlamaForCausalLM(LlamaConfig(**SIZES)).to(dtype),
    "Llama, all biases": lambda dtype: LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True)).to(
        dtype
    ),
    "Llama, stretched positions": lambda dtype: LlamaForCausalLM(
        LlamaConfig(**SIZES, rope_parameters={"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0})
    ).to(dtype),
    "Qwen2, a window": lambda dtype: Qwen2ForCausalLM(
        Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=5, max_window_layers=1)
    ).to(dtype),
}


def tokens() -> tuple[Tensor, Tensor]:
    ids = torch.randint(4, VOCABULARY, (sum(LENGTHS),), generator=torch.Generator().manual_seed(0))
    return ids, torch.cat([torch.arange(length) for length in LENGTHS])


def ready(model: Any) -> Any:
    model.eval()
    model.set_attn_implementation(register())
    return model


@pytest.mark.parametrize("projections", [Separate, Joined])
@pytest.mark.parametrize("family", MODELS)
@torch.no_grad()
def test_it_says_what_the_layers_say(family: str, projections: type[Separate] | type[Joined]) -> None:
    """To rounding; biases are drawn, because they begin as zeros."""
    torch.manual_seed(0)
    model = ready(MODELS[family](torch.float32))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.normal_()
    assert FusedDecoder.of(model) is not None
    own = hidden_states(model, *tokens(), Packed(LENGTHS))
    fused = FusedDecoder(model, projections)(*tokens(), Packed(LENGTHS))
    assert (own - fused).abs().max() < 2e-5 * own.abs().max()


@pytest.mark.parametrize("family", ["Qwen3", "Qwen2, a window"])
@pytest.mark.parametrize("earlier", [0, 6])
@pytest.mark.parametrize("asked", [[], [3, 39, 9, 3, 17], list(range(0, 40, 3))])
@torch.no_grad()
def test_the_last_layer_answers_what_it_is_asked(family: str, earlier: int, asked: list[int]) -> None:
    """In any order, twice too, also for rows that go on from others; it computes nothing more."""
    model = ready(MODELS[family](torch.float64))
    fused, index = FusedDecoder(model, Separate), torch.tensor(asked, dtype=torch.int64)
    (ids, positions), begun = tokens(), Branches([earlier], [])
    if earlier:
        fused(torch.arange(earlier), torch.arange(earlier), begun)
    before, positions = [begun.read] if earlier else [], positions + earlier
    whole, some = (Branches(LENGTHS, before) for _ in range(2))
    computed: list[int] = []
    model.model.layers[-1].mlp.down_proj.register_forward_hook(lambda _, args, out: computed.append(len(out)))
    said = fused.at(index, ids, positions, some)
    assert computed == [len(set(asked))]
    torch.testing.assert_close(said, fused(ids, positions, whole)[index], rtol=1e-9, atol=1e-12)
    assert all(torch.equal(a, b) for n in whole.read for a, b in zip(whole.read[n], some.read[n], strict=True))


def test_gradients_are_those_of_the_layers() -> None:
    """Exactly where it counts: in float64, of a whole batch."""
    model = tiny_model()
    turns = [*rollout("a", seed=1), *rollout("b", history="windowed", seed=2)]
    policies = [TransformersPolicy(copy.deepcopy(model)) for _ in range(2)]
    policies[1].scorer.fused = None
    norms = [TorchLearner(policy).gradient(turns).gradient_norm for policy in policies]
    assert norms[0] == pytest.approx(norms[1], rel=1e-12)
    for one, other in zip(*(policy.model.parameters() for policy in policies), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("hidden", [24, 256])
@torch.no_grad()
def test_joined_weights_follow_the_models(hidden: int) -> None:
    """Also where they lie in oneDNN's order: weights that are filled in place are the next ones that are read with."""
    model = ready(tiny_model(torch.float32, hidden_size=hidden, intermediate_size=300))
    assert (model.model.layers[0].mlp.gate_proj.weight.numel() >= LARGE) == (hidden == 256)
    fused = FusedDecoder(model, Joined)
    for factor in (1.0, 1.3):
        for parameter in model.parameters():
            parameter.mul_(factor)
        for lengths in ([5, 3], [FEW_ROWS + 40]):
            ids = torch.arange(sum(lengths)) % VOCABULARY
            positions = torch.cat([torch.arange(length) for length in lengths])
            own = hidden_states(model, ids, positions, Packed(lengths))
            said = fused(ids, positions, Packed(lengths))
            assert (own - said).abs().max() < 2e-5 * own.abs().max()


def test_other_models_keep_their_own_way() -> None:
    """Another family, adapters, weights elsewhere or autocast: the layers themselves are called."""
    other = ready(GemmaForCausalLM(GemmaConfig(**SIZES, head_dim=8)))
    assert FusedDecoder.of(other) is None
    strange = ready(tiny_model(torch.float32))
    strange.model.layers[1].mlp.act_fn = torch.nn.GELU()  # of the family by name, and yet not
    assert FusedDecoder.of(strange) is None
    plain = FusedDecoder.of(ready(tiny_model(torch.float32)))
    assert plain is not None
    with torch.autocast("cpu", torch.bfloat16):
        assert not plain.fits()
    assert FusedDecoder(ready(tiny_model(torch.float32)).to("meta"), Separate).fits() is False


def test_adapters_are_heard() -> None:
    """A model with adapters has layers of another kind."""
    pytest.importorskip("peft", reason="for want of the extra lora")
    policy = TransformersPolicy.load(model_folder("embedded:student"), lora=Lora(rank=2, alpha=4))
    assert policy.scorer.fused is None


def test_activations_that_are_computed_again_are_the_layers_own() -> None:
    """Recomputing works layer by layer, and so do shards and compiled parts: they are called then."""
    policy = TransformersPolicy(tiny_model())
    calls: list[int] = []
    policy.model.model.layers[0].register_forward_hook(lambda *_: calls.append(1))
    TorchLearner(policy, Optimization(activations="recompute")).gradient(rollout("a"))
    assert calls


def test_in_bfloat16_it_says_what_is_scored() -> None:
    """Generation and scoring round alike: they differ by what a sum in another order rounds to."""
    policy = TransformersPolicy(tiny_model(torch.bfloat16, hidden_size=64, head_dim=64))
    prompts = [(torch.arange(size) % VOCABULARY).tolist() for size in (140, 3, 9)]
    for prompt, said in zip(
        prompts, policy.respond(prompts, temperature=1.0, max_tokens=9, seeds=[1, 2, 3]), strict=True
    ):
        ((scored,),) = policy.score([[*prompt, *said.ids]], [[(len(prompt), len(prompt) + len(said.ids))]])
        assert abs(scored - said.logprobs).max() < 0.2
        assert abs(scored - said.logprobs).mean() < 0.05
