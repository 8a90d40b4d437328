"""The evaluation of version 0, played once and remembered: it is the same for all methods and runs.

Version 0 is the student as it lies in its folder. What its evaluation depends on is put into a key: weights, tasks,
how they are played, which tokens may be said, the code of this package, the versions of others and the kind of
processor. Only where all of it is known is anything remembered: not with data that somebody else may change, not with
adapters or another engine.
"""

import hashlib
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from divopd.config import Config, package_versions
from divopd.environments import find_entry
from divopd.evaluation import Exam
from divopd.models.engine import ENGINES
from divopd.models.model_files import model_folder
from divopd.models.policy import Policy
from divopd.records import EvaluationRecord, decode_evaluation, encode_evaluation
from divopd.remembered import keep, key_of, recall, remembered_file

KIND = "first-evaluations"
CODE = (
    "environments",
    "models",
    "prompts",
    "evaluation.py",
    "explorer.py",
    "player.py",
    "recovery.py",
)  # what an evaluation runs
COMPILED_OR_WEIGHTS = (".pyc", ".safetensors")


def evaluate_version(
    config: Config,
    exam: Exam,
    policy: Policy,
    *,
    version: int,
    forbidden: Sequence[int],
    recalled: Callable[[str], None],
    progress: Callable[[int, int], None] = lambda done, of: None,
    heed: Callable[[], None] = lambda: None,
) -> EvaluationRecord:
    """Play the exam with a policy that holds this version. Version 0 is played only if nobody has done so before.

    `forbidden`: the ids that the policy never samples. `recalled` hears a sentence when it was not played, `progress`
    how many of the tasks are over while it is. `heed` is called where an environment is waited for.
    """
    file = first_evaluation_file(config, exam, forbidden) if version == 0 else None
    known = recall_evaluation(file, recalled=recalled) if file else None
    if known is not None:
        return known
    played = exam.play(policy, progress=progress, heed=heed)
    record = exam.record(played, version=version)
    if file and not any(rollout.failure for rollout in played.rollouts):
        keep(file, encode_evaluation(record))
    return record


def recall_evaluation(file: Path, *, recalled: Callable[[str], None]) -> EvaluationRecord | None:
    """What is remembered in this file, if it can be read; `recalled` hears a sentence about it."""
    kept = recall(file)
    try:
        known = None if kept is None else decode_evaluation(kept)
    except ValueError:
        known = None
    if known is not None:
        recalled(f"version 0 was evaluated before and is not played again ({file})")
    return known


def first_evaluation_file(config: Config, exam: Exam, forbidden: Sequence[int]) -> Path | None:
    """Where the evaluation of version 0 is remembered; None if something that it depends on is not known."""
    student, environment = config.student, config.environment
    known = find_entry(environment.name).self_contained and not environment.settings  # which may name data
    if not known or student.lora is not None or not ENGINES[student.engine].local:
        return None
    facts: dict[str, Any] = {
        "student": _digest(sorted(file for file in model_folder(student.model).iterdir() if file.is_file())),
        "dtype": student.dtype,
        "device": student.device,
        "threads": config.threads,
        "environment": environment.name,
        "tasks": exam.tasks,
        "horizon": exam.horizon,
        "in_flight": exam.in_flight,  # in other company a response may be rounded differently
        "prompts": asdict(config.prompts),
        "temperature": exam.acting.temperature,
        "max_response_tokens": exam.acting.max_response_tokens,
        "seed": exam.acting.seed,
        "forbidden": sorted(forbidden),  # by the teacher's tokenizer
        "code": _code_digest(),
        "versions": package_versions(),
        "machine": _machine(student.device),
    }
    return remembered_file(KIND, key_of(facts))


@cache
def _code_digest() -> str:
    """Of the modules that play an evaluation: what they remember is forgotten when one of them changes."""
    package = Path(__file__).parent
    files = [file for name in CODE for file in sorted((package / name).rglob("*")) or [package / name]]
    return _digest(file for file in files if file.is_file() and file.suffix not in COMPILED_OR_WEIGHTS)


def _digest(files: Iterable[Path]) -> str:
    """Of the names and contents of files."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            digest.update(f"{file.name} {hashlib.file_digest(stream, 'sha256').hexdigest()}".encode())
    return digest.hexdigest()[:16]


def _machine(device: str) -> list[str]:
    """Processors of another kind round differently."""
    import torch

    if device.startswith("cuda"):
        return [torch.cuda.get_device_name(device)]
    return [platform.machine(), torch.backends.cpu.get_cpu_capability()]
