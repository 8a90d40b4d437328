"""The student and the teacher of a run, checked against each other before anything starts (SPEC §6.2)."""

from dataclasses import dataclass
from pathlib import Path

from divopd.config import Config, ModelPart
from divopd.models.policy import Policy
from divopd.models.transformers_policy import TransformersPolicy
from divopd.prompts import Codec
from divopd.teacher import check_alignment, check_lengths, check_vocabularies


@dataclass(frozen=True)
class Models:
    """What a run loads."""

    student: TransformersPolicy
    teacher: Policy
    codec: Codec


def model_folder(part: ModelPart) -> Path:
    """Where a model lies; an embedded one is built on first use and kept."""
    if not part.model.startswith("embedded:"):
        return Path(part.model)
    from divopd.embedded import embedded_model

    return embedded_model(part.model.removeprefix("embedded:"))


def load_student(config: Config) -> TransformersPolicy:
    part = config.student
    return TransformersPolicy.load(model_folder(part), dtype=part.dtype, device=part.device, lora=part.lora)


def load_teacher(config: Config) -> TransformersPolicy:
    part = config.teacher
    return TransformersPolicy.load(model_folder(part), dtype=part.dtype, device=part.device)


def load_models(config: Config) -> Models:
    """Load both and run the preflight; an AlignmentError says what does not fit."""
    student, teacher = load_student(config), load_teacher(config)
    codec = Codec(student.tokenizer)
    check_vocabularies(student.tokenizer, teacher.tokenizer)
    for role, policy in (("student", student), ("teacher", teacher)):
        check_lengths(
            policy,
            role=role,
            max_prompt_tokens=config.prompts.max_prompt_tokens,
            max_response_tokens=config.explorer.max_response_tokens,
        )
        check_alignment(policy, prompt=[*codec.open_user_first, *codec.open_response], max_tokens=8)
    return Models(student, teacher, codec)
