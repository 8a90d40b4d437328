"""The student and the teachers of a run, checked against each other before anything starts (SPEC §6.2)."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from divopd.config import Config, TeacherPart
from divopd.embedded import model_folder
from divopd.errors import AlignmentError, InputError
from divopd.models.model_files import load_tokenizer
from divopd.models.openai_policy import OpenAIPolicy
from divopd.models.transformers_policy import TransformersPolicy
from divopd.models.vllm_policy import VllmPolicy
from divopd.prompts import Codec
from divopd.teacher import ROUGH_TOLERANCE, TOLERANCE, Teachers, check_alignment, check_lengths, check_vocabularies

EXACT = ("float32", "float64")


@dataclass(frozen=True)
class Models:
    """What a run loads."""

    student: TransformersPolicy
    teachers: Teachers
    codec: Codec


def load_student(config: Config) -> TransformersPolicy:
    """The student as a learner trains it."""
    part = config.student
    return TransformersPolicy.load(model_folder(part.model), dtype=part.dtype, device=part.device, lora=part.lora)


def load_actor(config: Config) -> TransformersPolicy | VllmPolicy:
    """The student as it acts, in the engine that the config names; in vLLM with the learner's precision."""
    if config.student.engine == "transformers":
        return load_student(config)
    return _in_vllm(config, config.student.model, dtype=config.learner.compute)


def _in_vllm(config: Config, model: str, *, dtype: str) -> VllmPolicy:
    """With memory for the longest prompts and responses of all rollouts in flight."""
    context = config.prompts.max_prompt_tokens + config.explorer.max_response_tokens
    in_flight = config.explorer.rollouts_in_flight
    return VllmPolicy(model_folder(model), dtype=dtype, context=context, sequences=in_flight)


def load_teachers(config: Config) -> Teachers:
    """All teachers; a folder that several tasks name is loaded once, and a server is asked for nothing yet."""
    part = config.teacher

    @cache
    def load(model: str) -> OpenAIPolicy | TransformersPolicy | VllmPolicy:
        if is_server(model):
            return OpenAIPolicy(model, model=None, timeout_s=part.timeout_s)
        if part.engine == "vllm":
            return _in_vllm(config, model, dtype=part.dtype)
        return TransformersPolicy.load(model_folder(model), dtype=part.dtype, device=part.device)

    default = OpenAIPolicy(part.url, model=part.model, timeout_s=part.timeout_s) if part.url else load(part.model)
    return Teachers(default, {pattern: load(model) for pattern, model in part.by_task.items()})


def is_server(model: str) -> bool:
    """Whether a teacher is an address instead of a folder."""
    return model.startswith(("http://", "https://"))


def load_models(config: Config) -> Models:
    """Load all and run the preflight; an AlignmentError says what does not fit."""
    student, teachers = load_student(config), load_teachers(config)
    check_models(config, student, teachers)
    return Models(student, teachers, Codec(student.tokenizer))


def check_models(config: Config, student: TransformersPolicy | VllmPolicy, teachers: Teachers) -> None:
    """The preflight: every teacher reads the student's tokens as the student does."""
    codec = Codec(student.tokenizer)
    named: dict[str, Any] = {"student": student, "teacher": teachers.default}
    named |= {f"teacher of {pattern}": teacher for pattern, teacher in teachers.by_task.items()}
    for role, policy in named.items():
        if isinstance(policy, OpenAIPolicy):
            _check_server_vocabulary(policy, student.tokenizer, config.teacher, role=role)
        else:
            check_vocabularies(student.tokenizer, policy.tokenizer, role=role)
        check_lengths(
            policy,
            role=role,
            max_prompt_tokens=config.prompts.max_prompt_tokens,
            max_response_tokens=config.explorer.max_response_tokens,
        )
        dtype = config.student.dtype if role == "student" else config.teacher.dtype
        tolerance = TOLERANCE if dtype in EXACT and isinstance(policy, TransformersPolicy) else ROUGH_TOLERANCE
        prompt = [*codec.open_user_first, *codec.open_response]
        check_alignment(policy, role=role, prompt=prompt, max_tokens=8, tolerance=tolerance)


def _check_server_vocabulary(policy: OpenAIPolicy, student: Any, part: TeacherPart, *, role: str) -> None:
    """A server shows no tokenizer. If the model that it was asked for lies here too, its tokenizer does.

    In any case the server must know the student's last token.
    """
    if part.url and policy.url == part.url.rstrip("/") and (Path(part.model) / "tokenizer_config.json").is_file():
        check_vocabularies(student, load_tokenizer(Path(part.model)), role=role)
    last = max(student.get_vocab().values())
    try:
        policy.score([[last, last]], [[(1, 2)]])
    except InputError as error:
        raise AlignmentError(
            f"the {role} does not take token {last}, the last of the student's vocabulary ({error}); use a "
            "teacher with the student's tokenizer"
        ) from None
