"""The student and the teachers of a run, checked against each other before anything starts (specification §6.2)."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from divopd.config import Config, ModelPart, TeacherPart
from divopd.errors import AlignmentError, InputError
from divopd.models.engine import ENGINES, Engine, EngineWish, StudentEngine
from divopd.models.model_files import load_tokenizer, model_folder
from divopd.models.openai_policy import OpenAIPolicy
from divopd.models.transformers_policy import TransformersPolicy
from divopd.prompts import Codec
from divopd.teacher import ROUGH_TOLERANCE, TOLERANCE, Teachers, check_alignment, check_lengths, check_vocabularies


@dataclass(frozen=True)
class Models:
    """What a run loads."""

    student: TransformersPolicy
    teachers: Teachers


def load_student(config: Config) -> TransformersPolicy:
    """The student as a learner trains it."""
    part = config.student
    return TransformersPolicy.load(
        model_folder(part.model), dtype=part.dtype, device=part.device, lora=part.lora, seed=config.seed
    )


def load_actor(config: Config) -> StudentEngine:
    """The student as it acts, in the engine that the config names."""
    part = config.student
    kind = ENGINES[part.engine]
    dtype = part.dtype if kind.local else config.learner.compute
    return kind.load(_wish(config, part, part.model, dtype=dtype))


def _wish(config: Config, part: ModelPart, model: str, *, dtype: str) -> EngineWish:
    """With memory for the longest prompts and responses of all rollouts in flight."""
    return EngineWish(
        folder=model_folder(model),
        dtype=dtype,
        device=part.device,
        context=config.prompts.max_prompt_tokens + config.explorer.max_response_tokens,
        sequences=config.explorer.rollouts_in_flight,
        lora=getattr(part, "lora", None),
        seed=config.seed,
    )


def load_teachers(config: Config) -> Teachers:
    """All teachers; a folder that several tasks name is loaded once, and a server is asked for nothing yet."""
    part = config.teacher

    @cache
    def load(model: str) -> Engine:
        if is_server(model):
            return OpenAIPolicy(model, model=None, timeout_s=part.timeout_s)
        return ENGINES[part.engine].load(_wish(config, part, model, dtype=part.dtype))

    default = OpenAIPolicy(part.url, model=part.model, timeout_s=part.timeout_s) if part.url else load(part.model)
    return Teachers(default, {pattern: load(model) for pattern, model in part.by_task.items()})


def is_server(model: str) -> bool:
    """Whether a teacher is an address instead of a folder."""
    return model.startswith(("http://", "https://"))


def load_models(config: Config) -> Models:
    """Load all and run the preflight; an AlignmentError says what does not fit."""
    student, teachers = load_student(config), load_teachers(config)
    check_models(config, student, teachers)
    return Models(student, teachers)


def check_models(config: Config, student: Engine, teachers: Teachers) -> None:
    """The preflight: every teacher reads the student's tokens as the student does."""
    codec = Codec(student.tokenizer)
    named: dict[str, Engine] = {"student": student, "teacher": teachers.default}
    named |= {f"teacher of {pattern}": teacher for pattern, teacher in teachers.by_task.items()}
    for role, engine in named.items():
        if engine.tokenizer is None:
            _check_hidden_vocabulary(engine, student.tokenizer, config.teacher, role=role)
        else:
            check_vocabularies(student.tokenizer, engine.tokenizer, role=role)
        check_lengths(
            engine,
            role=role,
            max_prompt_tokens=config.prompts.max_prompt_tokens,
            max_response_tokens=config.explorer.max_response_tokens,
        )
        tolerance = TOLERANCE if engine.exact else ROUGH_TOLERANCE
        prompt = [*codec.open_user_first, *codec.open_response]
        check_alignment(engine, role=role, prompt=prompt, max_tokens=8, tolerance=tolerance)


def _check_hidden_vocabulary(engine: Engine, student: Any, part: TeacherPart, *, role: str) -> None:
    """A server shows no tokenizer. If the model that it was asked for lies here too, its tokenizer does.

    In any case the server must know the student's last token.
    """
    if part.url and role == "teacher" and (Path(part.model) / "tokenizer_config.json").is_file():
        check_vocabularies(student, load_tokenizer(Path(part.model)), role=role)
    last = max(student.get_vocab().values())
    try:
        engine.score([[last, last]], [[(1, 2)]])
    except InputError as error:
        raise AlignmentError(
            f"the {role} does not take token {last}, the last of the student's vocabulary ({error}); use a "
            "teacher with the student's tokenizer"
        ) from None
