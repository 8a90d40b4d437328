"""TRL's updates: IW-OPD with γ = 0, which is the paper's objective, and its asynchronous trainer. Runs in .venv-trl.

Both by TRL's own `compute_loss`, then backward, clipping and fused AdamW. `train()` is not run: what TRL's callbacks,
logging and generation cost is not counted.

IW-OPD is made without its constructor, which wants datasets, a tokenizer and a teacher that answers; its method
gets log probabilities of the teacher that came with the turns, and is told where the first response begins: it would
take the responses for the end of the sequence, which they are not in a whole rollout. Nothing else is patched. Two
ways: `rows`, a row per turn, padded to micro-batches of `max_tokens`; and `rollouts`, whole ones with a mask, one at a
time.

The asynchronous trainer, also without its constructor, takes whole rollouts with a mask from its own collator, several
packed into a row of at most `max_tokens` (`packed`) or one a row (`unpacked`). Attention is torch's instead of
FlashAttention, which a CPU does not have. Its objective is another one, the reverse KL of the sampled token against all
others together (β = 1 and a tail), at the same positions: it has no ratio of the sampled token alone.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from accelerate import Accelerator
from answering import answer, measured
from transformers import AutoModelForCausalLM
from trl.experimental.async_distillation import async_distillation_trainer as asynchronous
from trl.experimental.iw_opd import IWOPDTrainer
from trl.models.utils import _ForwardRedirection

state: dict = {}


def about() -> dict:
    return {
        "patched": "no constructor; the teacher's answer came with the turns; IW-OPD is told where the first response "
        "begins; the asynchronous trainer attends by torch instead of FlashAttention",
        "client": "compute_loss of IWOPDTrainer and AsyncDistillationTrainer, backward, clip_grad_norm_, "
        "AdamW(fused=True)",
    }


def begin(model: str, way: str, max_tokens: int) -> None:
    torch.set_num_threads(1)
    student = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="sdpa").train()
    trainer = _iw_opd(student) if way in ("rollouts", "rows") else _asynchronous()
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-6, weight_decay=0.01, fused=True)
    state.update(trainer=trainer, model=student, optimizer=optimizer, way=way, max_tokens=max_tokens)


def _iw_opd(student: torch.nn.Module) -> IWOPDTrainer:
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
    return trainer


def _asynchronous() -> asynchronous.AsyncDistillationTrainer:
    trainer = object.__new__(asynchronous.AsyncDistillationTrainer)
    trainer.accelerator, trainer._forward_redirection = Accelerator(cpu=True), _ForwardRedirection()
    trainer.args = SimpleNamespace(beta=1.0, teacher_temperature=1.0, add_tail_bucket=True)
    trainer._teacher_ids, trainer.current_gradient_accumulation_steps = ["default"], 1
    trainer._metrics = defaultdict(lambda: defaultdict(list))
    trainer._step_forward_tokens = trainer._step_trained_tokens = trainer._step_seq_len_weighted = 0.0
    trainer._step_samples = trainer._step_forward_s = 0.0
    return trainer


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
    """The gradient's norm of the last update, and how many tokens it was trained on."""
    return {"norm": state["norm"], "tokens": state["tokens"]}


def _update(turns: list[dict]) -> None:
    tokens = sum(len(turn["teacher"]) for turn in turns)
    if state["way"] in ("rollouts", "rows"):
        for members in _rollouts(turns) if state["way"] == "rollouts" else _rows(turns):
            inputs = _inputs(members)
            state["trainer"].compute_loss(state["model"], inputs, num_items_in_batch=tokens).backward()
        state["tokens"] = tokens
    else:
        collate = asynchronous.DataCollatorForRollout(pad_token_id=0)
        batches = [collate.torch_call([[group]]) for group in _groups(turns)]
        state["tokens"] = sum(float(inputs["global_n_tokens"][0]) for inputs in batches)
        for inputs in batches:
            state["trainer"].compute_loss(state["model"], inputs).backward()
    state["norm"] = float(torch.nn.utils.clip_grad_norm_(state["model"].parameters(), 1.0))
    state["optimizer"].step()
    state["optimizer"].zero_grad()


def _groups(turns: list[dict]) -> list[list[dict]]:
    """Rollouts that are packed into one row: as many as fit, in their order, as TRL's planner does; or one."""
    groups: list[list[dict]] = []
    for (members,) in _rollouts(turns):
        sample = _sample(members)
        filled = sum(len(one["input_ids"]) for one in groups[-1]) if groups else 0
        fits = groups and filled + len(sample["input_ids"]) <= state["max_tokens"]
        if state["way"] == "packed" and fits:
            groups[-1].append(sample)
        else:
            groups.append([sample])
    return groups


def _sample(members: list[dict]) -> dict:
    """A rollout as its queue holds it: the teacher's score of the sampled token at the positions of all responses."""
    ids = np.array(max(members, key=lambda turn: len(turn["ids"]))["ids"])
    mask, teacher_ids = np.zeros(len(ids), dtype=np.int64), np.full((len(ids), 1), -1)
    teacher = np.full((len(ids), 1), -np.inf, dtype=np.float32)
    for turn in members:
        here = slice(turn["start"], turn["start"] + len(turn["teacher"]))
        mask[here], teacher_ids[here, 0], teacher[here, 0] = 1, ids[here], turn["teacher"]
    return {
        "input_ids": ids, "completion_mask": mask, "teacher_topk_ids": teacher_ids, "teacher_topk_logprobs": teacher,
        "teacher_id": "default", "prompt_id": 0, "metrics": {},
    }  # fmt: skip


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
