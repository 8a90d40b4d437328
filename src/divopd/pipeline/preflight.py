"""The preflight: every model of a run loaded once and checked, before anything starts (specification §6.2).

One engine at a time: the next one is loaded when the one before has given its memory back. An engine that is not
torch's gives it back for certain only with its process, so each of those has a process of its own.
"""

import gc
from dataclasses import dataclass

from divopd.config import Config
from divopd.errors import AlignmentError, InputError
from divopd.models.engine import ENGINES, Engine
from divopd.models.transformers_policy import TransformersPolicy
from divopd.pipeline.models import load_actor, load_student, load_teacher, load_teachers
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

STUDENT, TEACHER = "student", "teacher"


def stages(config: Config) -> list[list[str]]:
    """Who is checked by which process of the preflight; a model that several tasks share is checked once."""
    part = config.teacher
    models = {TEACHER: part.url or part.model}
    for pattern, model in part.by_task.items():
        if model not in models.values():
            models[teacher_of(pattern)] = model
    own = [STUDENT] if not ENGINES[config.student.engine].local else []
    own += [r for r, model in models.items() if not is_server(model) and not ENGINES[part.engine].local]
    together = [role for role in (STUDENT, *models) if role not in own]
    return [*([together] if together else []), *([role] for role in own)]


def check_stage(config: Config, number: int) -> None:
    """Load and check, one after the other, those of one process; an AlignmentError says what does not fit."""
    Vocabularies(config).check()
    for role in stages(config)[number]:
        check_engine(config, role, load_actor(config) if role == STUDENT else load_teacher(config, role))
        gc.collect()  # nobody holds the engine any more


@dataclass(frozen=True)
class Models:
    """What a run of one process loads."""

    student: TransformersPolicy
    teachers: Teachers


def load_models(config: Config) -> Models:
    """Load all and run the preflight; an AlignmentError says what does not fit."""
    student, teachers = load_student(config), load_teachers(config)
    check_models(config, student, teachers)
    return Models(student, teachers)


def check_models(config: Config, student: Engine, teachers: Teachers) -> None:
    """The same for models that are all loaded: every teacher reads the student's tokens as the student does."""
    Vocabularies(config).check()
    engines: dict[str, Engine] = {STUDENT: student, TEACHER: teachers.default}
    engines |= {teacher_of(pattern): teacher for pattern, teacher in teachers.by_task.items()}
    for role, engine in engines.items():
        check_engine(config, role, engine)


def check_engine(config: Config, role: str, engine: Engine) -> None:
    """One model, by what messages call it."""
    vocabularies = Vocabularies(config)
    shared, own = vocabularies.student_codec(), vocabularies.teacher_codecs()
    if engine.tokenizer is None:
        _check_hidden_vocabulary(vocabularies, engine, role=role)
    check_lengths(
        engine,
        role=role,
        max_prompt_tokens=config.prompts.max_prompt_tokens,
        max_response_tokens=config.explorer.max_response_tokens,
    )
    tolerance = TOLERANCE if engine.exact else ROUGH_TOLERANCE
    prompt = _first_prompt(own.get(role, shared))
    check_alignment(engine, role=role, prompt=prompt, max_tokens=8, tolerance=tolerance)
    if role != STUDENT and vocabularies.foreign:
        rollout = _one_turn(shared, next(iter(vocabularies.foreign)), prompt)
        scored = score_rollouts(engine, [rollout], foreign=vocabularies.foreign)
        check_masked(scored[0].turns, vocabularies.foreign, role=role)


def _first_prompt(codec: Codec) -> list[int]:
    return [*codec.open_user_first, *codec.open_response]


def _one_turn(codec: Codec, foreign: int, teacher_prompt: list[int]) -> Rollout:
    """A response of the student that holds an id which the teacher's tokenizer does not have."""
    ids = [*codec.text_ids("look around"), foreign, codec.stop]
    turn = Turn(
        "preflight",
        0,
        task="",
        version=0,
        prompt_ids=_first_prompt(codec),
        response_ids=ids,
        student_logprobs=[-1.0] * len(ids),
        action_mask=[1] * len(ids),
    )
    return Rollout("preflight", (turn,), teacher_prompts=(teacher_prompt,))


def _check_hidden_vocabulary(vocabularies: Vocabularies, engine: Engine, *, role: str) -> None:
    """A server shows no tokenizer; it must know the last token of the student's, or of its own if that is here."""
    ids, teacher = set(vocabularies.student.get_vocab().values()), vocabularies.roles[role]
    last = max(ids if teacher is None else ids & set(teacher.get_vocab().values()))
    try:
        engine.score([[last, last]], [[(1, 2)]])
    except InputError as error:
        raise AlignmentError(
            f"the {role} does not take token {last}, the last of the student's vocabulary ({error}); use a "
            "teacher with the student's tokenizer"
        ) from None
