"""TRL's IW-OPD with γ = 0, which is the paper's objective: its own `compute_loss`, clipping, fused AdamW. In .venv-trl.

The trainer is made without its constructor, which wants datasets, a tokenizer and a teacher that answers; its method
gets log probabilities of the teacher that came with the turns, and is told where the first response begins: it would
take the responses for the end of the sequence, which they are not in a whole rollout. Nothing else is patched.
`train()` is not run: what TRL's callbacks, logging and generation cost is not counted. Two ways: a row per turn, padded
to micro-batches of `max_tokens`; or whole rollouts, one at a time, with a mask.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import torch
from answering import answer, measured
from transformers import AutoModelForCausalLM
from trl.experimental.iw_opd import IWOPDTrainer

state: dict = {}


def about() -> dict:
    return {
        "patched": "no constructor; the teacher's answer came with the turns; the first response's place is told",
        "client": "IWOPDTrainer.compute_loss, backward, clip_grad_norm_, AdamW(fused=True)",
    }


def begin(model: str, way: str, max_tokens: int) -> None:
    torch.set_num_threads(1)
    student = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).train()
    trainer = object.__new__(IWOPDTrainer)
    trainer.model, trainer.temperature = student, 1.0
    trainer.use_teacher_server, trainer.distillation_objective = True, "iw_opd"
    trainer.iw_opd_gamma, trainer.iw_opd_epsilon = 0.0, 1e-8
    trainer._metrics = defaultdict(lambda: defaultdict(list))
    trainer.args = SimpleNamespace()
    trainer._raise_if_local_teacher_tokenizer_mismatch = lambda: None
    trainer._get_teacher_token_logprobs_from_server = lambda inputs, start: {
        "actual_logprobs": inputs["teacher"][:, start:]
    }
    trainer._compute_prompt_length = lambda inputs: inputs["prompts"].shape[1]
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-6, weight_decay=0.01, fused=True)
    state.update(trainer=trainer, model=student, optimizer=optimizer, way=way, max_tokens=max_tokens)


def update(turns: list[dict]) -> dict:
    return measured(lambda: _update(turns))


def memory(turns: list[dict]) -> float:
    """MB by which the process grows, at its largest, in its first update."""
    before = _peak_mb()
    _update(turns)
    return _peak_mb() - before


def _peak_mb() -> float:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def told() -> dict:
    """The gradient's norm of the last update."""
    return {"norm": state["norm"]}


def _update(turns: list[dict]) -> None:
    tokens = sum(len(turn["teacher"]) for turn in turns)
    for members in _rollouts(turns) if state["way"] == "rollouts" else _rows(turns):
        inputs = _inputs(members)
        state["trainer"].compute_loss(state["model"], inputs, num_items_in_batch=tokens).backward()
    state["norm"] = float(torch.nn.utils.clip_grad_norm_(state["model"].parameters(), 1.0))
    state["optimizer"].step()
    state["optimizer"].zero_grad()


def _rollouts(turns: list[dict]) -> list[list[list[dict]]]:
    by_rollout: dict[str, list[dict]] = {}
    for turn in turns:
        by_rollout.setdefault(turn["rollout"], []).append(turn)
    return [[members] for members in by_rollout.values()]


def _rows(turns: list[dict]) -> list[list[list[dict]]]:
    batches: list[list[list[dict]]] = []
    for turn in sorted(turns, key=lambda turn: len(turn["ids"])):
        if batches and (len(batches[-1]) + 1) * len(turn["ids"]) <= state["max_tokens"]:
            batches[-1].append([turn])
        else:
            batches.append([[turn]])
    return batches


def _inputs(rows: list[list[dict]]) -> dict:
    """One sequence a row: its longest turn holds the others."""
    longest = max(len(turn["ids"]) for members in rows for turn in members)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    there, labels = torch.zeros_like(ids), torch.full_like(ids, -100)
    teacher = torch.zeros(len(rows), longest)
    for n, members in enumerate(rows):
        whole = max(members, key=lambda turn: len(turn["ids"]))["ids"]
        ids[n, : len(whole)], there[n, : len(whole)] = torch.tensor(whole), 1
        for turn in members:
            here = slice(turn["start"], turn["start"] + len(turn["teacher"]))
            labels[n, here] = ids[n, here]
            teacher[n, here] = torch.tensor(turn["teacher"])
    first = [(row != -100).nonzero()[0].item() for row in labels]
    prompts = ids[:, : min(first)]
    return {"input_ids": ids, "attention_mask": there, "labels": labels, "teacher": teacher, "prompts": prompts}


answer({"about": about, "begin": begin, "update": update, "memory": memory, "told": told})
