"""The forecast of a learner's memory against PyTorch's own FSDP2 memory tracker (benchmarks/memory.py)."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="for want of the extra train")
pytest.importorskip("transformers", reason="for want of the extra train")

from divopd.models.logit_chunks import ON_CPU, ON_CUDA
from divopd.models.published import PUBLISHED, qwen_config
from divopd.plan.learner_memory import learner_bytes

FILE = Path(__file__).parents[2] / "benchmarks" / "memory.py"
STUDENTS = ("Qwen2.5-1.5B-Instruct", "Qwen3-1.7B", "Qwen2.5-3B-Instruct", "Qwen3-4B", "Qwen2.5-7B-Instruct")


def compared(student: str, *, ranks: int, layers: int, tokens: int = 10_752, scored: int = 512) -> dict[str, Any]:
    numbers = map(str, (ranks, tokens, layers, scored))
    command = [sys.executable, "-W", "ignore", str(FILE), student, *numbers]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def assert_near(row: dict[str, Any]) -> None:
    """Parameters and gradients to the rounding of shards, activations and the sum within 10 %."""
    ours, theirs = row["forecast_parts"], row["tracker_parts"]
    assert ours["parameters"] == pytest.approx(theirs["parameters"], rel=0.01)
    assert ours["gradients"] == pytest.approx(theirs["gradients"], rel=0.01)
    assert ours["activations"] == pytest.approx(theirs["activations"], rel=0.10)
    assert row["forecast"] == pytest.approx(row["tracker"], rel=0.10)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("student", STUDENTS)
def test_the_forecast_agrees_with_the_tracker(student: str, ranks: int) -> None:
    """The students of all six settings, each with four of its layers: all of them are `divopd bench memory`."""
    assert_near(compared(student, ranks=ranks, layers=4))


@pytest.mark.slow
@pytest.mark.parametrize(("tokens", "scored"), [(400, 400), (1024, 1024), (4096, 4096), (10_752, 10_752)])
@pytest.mark.parametrize("student", ["Qwen3-1.7B", "Qwen2.5-7B-Instruct"])
def test_so_it_does_where_logits_weigh_more_than_layers(student: str, tokens: int, scored: int) -> None:
    """Logits in chunks of the size for CUDA, one and many, kept and computed again; heads of both kinds."""
    assert_near(compared(student, ranks=2, layers=2, tokens=tokens, scored=scored))


@pytest.mark.parametrize("student", STUDENTS)
def test_published_shapes_are_those_of_real_configurations(student: str) -> None:
    """The parameters of a model that transformers makes, without memory for them, are counted exactly."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(qwen_config(student, layers=PUBLISHED[student].layers))
    assert sum(parameter.numel() for parameter in model.parameters()) == PUBLISHED[student].parameters


def test_fewer_layers_are_counted_exactly() -> None:
    """The facts of a model with some of its layers, which the comparison is made of."""
    spec = importlib.util.spec_from_file_location("memory_bench", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    whole = PUBLISHED["Qwen3-4B"]
    assert module.facts_of("Qwen3-4B", whole.layers) == whole
    two = module.facts_of("Qwen3-4B", 2)
    assert two.layers == 2
    assert whole.parameters - two.parameters == 34 * (two.parameters - whole.embeddings - whole.hidden) // 2


def test_ranks_share_what_stays_and_not_what_passes() -> None:
    """Weights, gradient and moments are divided; activations are each rank's own, recomputing saves most of them."""
    student = PUBLISHED["Qwen2.5-7B-Instruct"]

    def parts(**changes: Any) -> dict[str, int]:
        usual: dict[str, Any] = {"ranks": 2, "tokens": 10_752, "scored": 512, "device": "cuda"}
        usual |= {"compute": "bfloat16", "recompute": True}
        return learner_bytes(student, **usual | changes)

    two, eight = parts(), parts(ranks=8)
    for name in ("student", "gradient", "AdamW"):
        assert two[name] == pytest.approx(4 * eight[name], rel=1e-6)
    assert (two["activations"], two["gathered weights"]) == (eight["activations"], eight["gathered weights"])
    assert parts(recompute=False)["activations"] > 8 * two["activations"]
    assert parts(compute="float32")["activations"] > 1.5 * two["activations"]
    assert parts(ranks=1)["gathered weights"] == 2 * student.parameters  # autocast's copies


def test_larger_chunks_of_logits_are_counted() -> None:
    """A short input of which all is scored: on CUDA up to four chunks of 268 MB wait, on a CPU as many of 34 MB."""
    student = PUBLISHED["Qwen3-1.7B"]
    on = {
        device: learner_bytes(
            student, ranks=2, tokens=4096, scored=4096, compute="bfloat16", recompute=True, device=device
        )["activations"]
        for device in ("cpu", "cuda")
    }
    assert on["cuda"] - on["cpu"] == 4 * (ON_CUDA.kept - ON_CPU.kept)
