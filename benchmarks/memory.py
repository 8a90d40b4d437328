"""The forecast of a learner's memory against PyTorch's own FSDP2 memory tracker, for the paper's students.

The tracker (torch.distributed._tools) follows every allocation of two micro-batches of the learner's own forward and
backward pass, in the learner's own sharding, with fake tensors on a mesh of CPUs: nothing is computed, no weight and no
GPU is needed, and the sizes are those of the real model. AdamW's two moments are arithmetic: what the tracker says of
them depends on the optimizer's implementation. What CUDA's kernels and libraries take besides is unmeasured.

    divopd bench memory --json                                  the paper's students on 2, 4 and 8 ranks
    python benchmarks/memory.py Qwen2.5-7B-Instruct 2 10752 4   one row: student, ranks, tokens, layers
    python benchmarks/memory.py Qwen3-1.7B 2 2048 2 2048        the same with so many of the tokens scored
"""

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any, NamedTuple

from divopd.models.model_files import ModelFacts
from divopd.models.published import PUBLISHED, qwen_config
from divopd.plan.learner_memory import learner_bytes

TOKENS, SCORED = 10_752, 512  # of the longest row of the paper's settings: a prompt and its response


class Sizes(NamedTuple):
    students: tuple[str, ...]
    ranks: tuple[int, ...]
    tokens: int
    layers: int | None  # None: all of them


STUDENTS = ("Qwen2.5-1.5B-Instruct", "Qwen3-1.7B", "Qwen2.5-3B-Instruct", "Qwen3-4B", "Qwen2.5-7B-Instruct")
FULL = Sizes(STUDENTS, ranks=(2, 4, 8), tokens=TOKENS, layers=None)
QUICK = Sizes(("Qwen3-1.7B",), ranks=(2,), tokens=1024, layers=2)


def run(sizes: Sizes) -> dict[str, Any]:
    rows = [row for student in sizes.students for row in _rows(student, sizes)]
    worst = max(rows, key=lambda row: abs(row["forecast"] / row["tracker"] - 1))
    return {
        "bench": "memory",
        "ratio": worst["forecast"] / worst["tracker"],
        "unit": "bytes forecast a byte tracked, at the worst row; AdamW's moments in neither",
        "ours": worst["forecast"],
        "reference": worst["tracker"],
        "detail": {"rows": rows},
    }


def _rows(student: str, sizes: Sizes) -> list[dict[str, Any]]:
    """Each rank count in a process of its own: torch knows one world at a time."""
    rows = []
    for ranks in sizes.ranks:
        arguments = [student, str(ranks), str(sizes.tokens), str(sizes.layers or PUBLISHED[student].layers)]
        command = [sys.executable, "-W", "ignore", __file__, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the tracker ended with {done.returncode}: {done.stderr[-2000:]}")
        rows.append(json.loads(done.stdout.splitlines()[-1]))
    return rows


def compare(student: str, *, ranks: int, tokens: int, layers: int, scored: int = SCORED) -> dict[str, Any]:
    """Bytes of one rank at the worst moment: parameters and gradients as they stay, the rest, and both sums."""
    peak = track(student, ranks=ranks, tokens=tokens, layers=layers, scored=scored)
    facts = facts_of(student, layers)
    parts = learner_bytes(
        facts, ranks=ranks, tokens=tokens, scored=scored, compute="bfloat16", recompute=True, device="cuda"
    )
    ours = {"parameters": parts["student"], "gradients": parts["gradient"]}
    ours["activations"] = parts["gathered weights"] + parts["activations"]
    theirs = {"parameters": peak["Sharded Param"], "gradients": peak["Sharded Grad"]}
    theirs["activations"] = peak["Total"] - sum(theirs.values())
    return {
        "student": student,
        "ranks": ranks,
        "tokens": tokens,
        "layers": layers,
        "scored": scored,
        "forecast": sum(ours.values()),
        "tracker": sum(theirs.values()),
        "forecast_parts": ours,
        "tracker_parts": theirs,
        "AdamW, by arithmetic": parts["AdamW"],
        "peak": peak,
    }


def facts_of(student: str, layers: int) -> ModelFacts:
    """The facts of a student with fewer layers."""
    whole = PUBLISHED[student]
    layer = (whole.parameters - whole.embeddings - whole.hidden) // whole.layers
    return replace(whole, layers=layers, parameters=whole.parameters - (whole.layers - layers) * layer)


def track(student: str, *, ranks: int, tokens: int, layers: int, scored: int) -> dict[str, int]:
    """What the tracker saw at the peak, by its own names; two micro-batches, so that gradients are there.

    The mesh is one of CPUs, the chunks of logits are those of CUDA.
    """
    import torch
    import torch.distributed as dist
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from transformers import AutoModelForCausalLM

    from divopd.learner.torch_learner import shard
    from divopd.models.attention import Packed, register
    from divopd.models.logit_chunks import ON_CUDA
    from divopd.models.logprobs import Scorer
    from divopd.models.transformers_policy import checkpoint_activations

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    with FakeTensorMode():
        model = AutoModelForCausalLM.from_config(qwen_config(student, layers=layers), dtype=torch.float32)
        model.set_attn_implementation(register())
        checkpoint_activations(model)
        scorer = Scorer(model, chunks=ON_CUDA).train()
        shard(scorer, compute="bfloat16", mesh=mesh)
        tracker = FSDPMemTracker(scorer, torch.optim.AdamW(scorer.parameters()))
        ids, positions = torch.zeros(tokens, dtype=torch.long), torch.arange(tokens)
        index, targets = torch.arange(tokens - scored, tokens), torch.zeros(scored, dtype=torch.long)
        with tracker:
            for _ in range(2):
                scorer(ids, positions, Packed([tokens]), index, targets).sum().backward()
                tracker.reset_mod_stats()
        [peak] = tracker.get_tracker_snapshot("peak").values()
    return {str(getattr(name, "value", name)): size for name, size in peak.items()}


if __name__ == "__main__":
    name, *numbers = sys.argv[1:]
    ranks, tokens, layers, scored = map(int, (*numbers, SCORED)[:4])
    print(json.dumps(compare(name, ranks=ranks, tokens=tokens, layers=layers, scored=scored)))
