"""Layers that torch compiles: the same gradient, nothing else changed."""

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch

from divopd.errors import InputError
from divopd.learner.torch_learner import TorchLearner
from divopd.models.compiled_layers import require_compiler
from divopd.models.optimization import Optimization
from divopd.models.transformers_policy import TransformersPolicy
from token_rollouts import gradient, pool, rollout, tiny_model

WITHOUT = pytest.mark.skipif(shutil.which("g++") is None, reason="for want of g++")
pytestmark = pytest.mark.filterwarnings("ignore")  # torch's compiler warns of what torch itself does
LAYERS = 12  # more than torch compiles variants of one function


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mapping[str, Mapping[str, int]]]:
    """What torch counts of its work; nothing compiled before, in a folder of its own, and in this process alone."""
    from torch._dynamo.utils import counters
    from torch._inductor import config as inductor

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    torch.compiler.reset()
    counters.clear()
    with inductor.patch(compile_threads=1):
        yield counters
    torch.compiler.reset()


def learner(**settings: object) -> TorchLearner:
    model = tiny_model(torch.float32, num_hidden_layers=LAYERS)
    return TorchLearner(TransformersPolicy(model), Optimization(max_tokens=90, **settings))  # pyright: ignore[reportArgumentType]


@WITHOUT
@pytest.mark.slow
def test_compiled_layers_give_the_plain_gradient(compiler: Mapping[str, Mapping[str, int]]) -> None:
    """To rounding, with activations that are kept and with ones that are computed again; in bfloat16, too.

    Lengths differ from input to input, and layers are many: nothing is compiled for one of them.
    """
    plain, rounded = (learner(compute=compute) for compute in ("float32", "bfloat16"))
    one, two = (learner(compile=True, activations=kind) for kind in ("keep", "recompute"))
    three = learner(compile=True, compute="bfloat16")
    for turns in (pool(), pool(1), rollout("a", turns=7)):
        for each in (plain, rounded, one, two, three):
            each.gradient(turns)
        expected, usual = gradient(plain.policy.model), gradient(rounded.policy.model)
        for compiled in (one, two):
            torch.testing.assert_close(gradient(compiled.policy.model), expected, rtol=1e-4, atol=1e-5)
        apart = (gradient(three.policy.model) - expected).norm()
        assert apart < 2 * (usual - expected).norm() < 0.2 * expected.norm()
    assert compiler["stats"]["unique_graphs"] == 8  # a norm, before and after attention, feed-forward; for either type


@WITHOUT
@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
def test_what_needs_no_gradient_runs_as_it_did() -> None:
    """Scores and responses of a policy whose layers were compiled are the ones of before, to the bit."""
    plain, compiled = learner(), learner(compile=True)
    compiled.gradient(pool())
    rows = [[*turn.prompt_ids, *turn.response_ids] for turn in pool()]
    spans = [[(len(turn.prompt_ids), turn.tokens)] for turn in pool()]
    scores = [each.policy.score(rows, spans) for each in (plain, compiled)]
    for (one,), (other,) in zip(*scores, strict=True):
        assert one.tolist() == other.tolist()
    prompts = [list(turn.prompt_ids) for turn in pool()[:3]]
    asked = {"temperature": 1.0, "max_tokens": 9, "seeds": [1, 2, 3]}
    responses = [each.policy.respond(prompts, **asked) for each in (plain, compiled)]
    for one, other in zip(*responses, strict=True):
        assert (one.ids, one.logprobs.tolist()) == (other.ids, other.logprobs.tolist())


@WITHOUT
def test_compiled_code_lies_where_only_its_user_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the folder for small results, unless another one is named for it."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/another")
    learner(compile=True)
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/another"
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    monkeypatch.setenv("DIVOPD_CACHE", str(tmp_path / "mine"))
    learner(compile=True)
    place = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    assert place == tmp_path / "mine" / "compiled"
    assert place.stat().st_mode & 0o777 == 0o700


def test_a_machine_without_a_compiler_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, before anything runs; a GPU has Triton, of which nothing is asked."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(InputError, match="no no-such-compiler; install one"):
        require_compiler("cpu")
    require_compiler("cuda")
