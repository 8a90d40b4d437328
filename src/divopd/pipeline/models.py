"""The student and the teachers of a run, checked against each other before anything starts (specification §6.2)."""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from divopd.config import Config, ModelPart
from divopd.errors import AlignmentError, InputError
from divopd.failures import FIRST
from divopd.models.engine import ENGINES, Engine, EngineWish, StudentEngine
from divopd.models.model_files import model_folder
from divopd.models.openai_policy import OpenAIPolicy
from divopd.models.transformers_policy import TransformersPolicy
from divopd.pipeline.vocabularies import Vocabularies, is_server, teacher_of
from divopd.prompts import Codec
from divopd.teacher import (
    ROUGH_TOLERANCE,
    TOLERANCE,
    Teachers,
    check_alignment,
    check_lengths,
    check_masked,
    score_rollouts,
)
from divopd.turns import Rollout, Turn


@dataclass(frozen=True)
class Models:
    """What a run loads."""

    student: TransformersPolicy
    teachers: Teachers


def load_student(config: Config) -> TransformersPolicy:
    """The student as a learner trains it."""
    part, forbidden = config.student, Vocabularies(config).forbidden
    return TransformersPolicy.load(
        model_folder(part.model),
        dtype=part.dtype,
        device=part.device,
        lora=part.lora,
        seed=config.seed,
        forbidden=forbidden,
    )


def load_actor(config: Config) -> StudentEngine:
    """The student as it acts, in the engine that the config names."""
    part = config.student
    kind = ENGINES[part.engine]
    dtype = part.dtype if kind.local else config.learner.compute
    return kind.load(replace(_wish(config, part, part.model, dtype=dtype), forbidden=Vocabularies(config).forbidden))


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
    others = {pattern: load(model) for pattern, model in part.by_task.items()}
    first = max(FIRST, config.explorer.rollouts_in_flight)
    return Teachers(default, others, Vocabularies(config).foreign, first)


def load_models(config: Config) -> Models:
    """Load all and run the preflight; an AlignmentError says what does not fit."""
    student, teachers = load_student(config), load_teachers(config)
    check_models(config, student, teachers)
    return Models(student, teachers)


def check_models(config: Config, student: Engine, teachers: Teachers) -> None:
    """The preflight: every teacher reads the student's tokens as the student does."""
    vocabularies = Vocabularies(config)
    vocabularies.check()
    shared, own = vocabularies.student_codec(), vocabularies.teacher_codecs()
    engines: dict[str, Engine] = {"student": student, "teacher": teachers.default}
    engines |= {teacher_of(pattern): teacher for pattern, teacher in teachers.by_task.items()}
    for role, engine in engines.items():
        if engine.tokenizer is None:
            _check_hidden_vocabulary(engine, student.tokenizer, vocabularies.roles[role], role=role)
        check_lengths(
            engine,
            role=role,
            max_prompt_tokens=config.prompts.max_prompt_tokens,
            max_response_tokens=config.explorer.max_response_tokens,
        )
        tolerance = TOLERANCE if engine.exact else ROUGH_TOLERANCE
        prompt = _first_prompt(own.get(role, shared))
        check_alignment(engine, role=role, prompt=prompt, max_tokens=8, tolerance=tolerance)
        if role != "student" and teachers.foreign:
            rollout = _one_turn(student, _first_prompt(shared), prompt)
            check_masked(
                score_rollouts(engine, [rollout], foreign=teachers.foreign)[0].turns, teachers.foreign, role=role
            )


def _first_prompt(codec: Codec) -> list[int]:
    return [*codec.open_user_first, *codec.open_response]


def _one_turn(student: Engine, prompt: list[int], teacher_prompt: list[int]) -> Rollout:
    """A response of the student as a row that a teacher can score."""
    [response] = student.respond([prompt], temperature=1.0, max_tokens=64, seeds=[0])
    turn = Turn(
        "preflight",
        0,
        task="",
        version=0,
        prompt_ids=prompt,
        response_ids=response.ids,
        student_logprobs=response.logprobs.tolist(),
        action_mask=[1] * len(response.ids),
    )
    return Rollout("preflight", (turn,), teacher_prompts=(teacher_prompt,))


def _check_hidden_vocabulary(engine: Engine, student: Any, teacher: Any | None, *, role: str) -> None:
    """A server shows no tokenizer; it must know the last token of the student's, or of its own in `teacher`."""
    ids = set(student.get_vocab().values())
    last = max(ids if teacher is None else ids & set(teacher.get_vocab().values()))
    try:
        engine.score([[last, last]], [[(1, 2)]])
    except InputError as error:
        raise AlignmentError(
            f"the {role} does not take token {last}, the last of the student's vocabulary ({error}); use a "
            "teacher with the student's tokenizer"
        ) from None
