"""Two ranks under torchrun make the update that one makes."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor

from divopd.learner.torch_learner import TorchLearner
from divopd.models.optimization import Optimization
from divopd.models.transformers_policy import TransformersPolicy
from token_rollouts import pool, tiny_model

BATCHES = [pool(0), pool(1), pool(2)[:4]]  # the last has less work than two ranks want


def train(learner: TorchLearner) -> torch.Tensor:
    """Three updates; loss, gradient norm and KL per token of each."""
    done = [learner.update(turns) for turns in BATCHES]
    return torch.tensor([[f.loss, f.gradient_norm, f.learner_kl_per_token] for f in done], dtype=torch.float64)


def make_learner(*, tied: bool, activations: Literal["keep", "recompute"] = "keep") -> TorchLearner:
    model = tiny_model(torch.float32, tie_word_embeddings=tied)
    return TorchLearner(TransformersPolicy(model), Optimization(lr=1e-3, max_tokens=90, activations=activations))


def gradient(learner: TorchLearner) -> dict[str, torch.Tensor]:
    """Of one batch, whole, in float32."""
    learner.gradient(BATCHES[0])
    named = learner.policy.model.named_parameters()
    whole = {name: p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad for name, p in named}
    return {name: grad.float().clone() for name, grad in whole.items()}


ROUNDING: dict[str, dict[str, Any]] = {
    "kept": {"activations": "keep"},
    "recomputed": {"activations": "recompute"},
    "compiled": {"activations": "recompute", "compile": True},
}


def make_rounding_learner(kind: str) -> TorchLearner:
    settings = Optimization(max_tokens=90, compute="bfloat16", **ROUNDING[kind])
    return TorchLearner(TransformersPolicy(tiny_model(torch.float32)), settings)


def run_rank(target: str) -> None:
    """What torchrun starts: train as one of several ranks, and let the first write the whole weights."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    for tied in (False, True):
        learner = make_learner(tied=tied, activations="recompute" if tied else "keep")
        figures = train(learner)
        weights = {name: p.full_tensor().clone() for name, p in learner.policy.model.named_parameters()}
        if learner.rank == 0:
            save_file({**weights, "figures": figures}, f"{target}/{tied}.safetensors")
    for kind in ROUNDING:
        learner = make_rounding_learner(kind)
        whole = gradient(learner)
        kinds = {parameter.dtype for parameter in learner.parameters}
        assert kinds == {torch.float32}, kinds
        if learner.rank == 0:
            save_file(whole, f"{target}/{kind}.safetensors")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_ranks_give_the_update_of_one(tmp_path: Path) -> None:
    """Weights after three updates and the figures of each agree to 1e-5, with a shared head and without.

    The ranks with the shared head recompute their activations; the one does not. With products in bfloat16 the
    gradient of two ranks is as near to the plain one as that of one rank, also where their layers are compiled.
    """
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    helpers = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": helpers,
        "TMPDIR": str(tmp_path),
    }  # compiled code lies there

    done = subprocess.run(
        [*torchrun, __file__, str(tmp_path)], capture_output=True, text=True, timeout=900, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for tied in (False, True):
        learner = make_learner(tied=tied)
        figures = train(learner)
        sharded = load_file(tmp_path / f"{tied}.safetensors")
        torch.testing.assert_close(sharded.pop("figures"), figures, rtol=1e-5, atol=1e-5)
        for name, parameter in learner.policy.model.named_parameters():
            torch.testing.assert_close(sharded[name], parameter.detach(), rtol=1e-5, atol=1e-5)
    plain = gradient(TorchLearner(TransformersPolicy(tiny_model(torch.float32)), Optimization(max_tokens=90)))
    autocast = gradient(make_rounding_learner("kept"))
    for kind in ROUNDING:
        # products in bfloat16 by FSDP2: as near to float32 as autocast on one rank is, to a factor of two
        rounded = load_file(tmp_path / f"{kind}.safetensors")
        usual = distance(autocast, plain)
        assert usual / 10 < distance(rounded, plain) < 2 * usual < 0.1


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Of two gradients, relative to the second."""
    assert one.keys() == other.keys()
    apart = sum((one[name] - other[name]).square().sum() for name in other)
    return float((apart / sum(grad.square().sum() for grad in other.values())) ** 0.5)


if __name__ == "__main__":
    run_rank(sys.argv[1])
