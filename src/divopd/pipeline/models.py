"""The student and the teachers of a run, loaded as its configuration says."""

from dataclasses import replace
from functools import cache, partial

from divopd.config import Config
from divopd.failures import FIRST
from divopd.models.engine import ENGINES, Engine, EngineWish, StudentEngine
from divopd.models.model_files import model_folder, read_model_facts
from divopd.models.openai_policy import OpenAIPolicy
from divopd.models.sglang_policy import SglangPolicy
from divopd.models.transformers_policy import TransformersPolicy
from divopd.pipeline.vocabularies import Vocabularies, is_server, teacher_of
from divopd.plan.fit import memory_share
from divopd.plan.forecast import BYTES, engine_parts
from divopd.teacher import Teachers


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
    wish = engine_wish(config, "student", part.model, dtype=dtype)
    return kind.load(
        replace(wish, forbidden=Vocabularies(config).forbidden, lora=part.lora, transfer=config.weights_backend)
    )


def engine_wish(config: Config, name: str, model: str, *, dtype: str) -> EngineWish:
    """With memory for the longest prompts and responses of all rollouts in flight, and no more than that."""
    folder, part = model_folder(model), config.teacher if name == "teacher" else config.student
    wish = EngineWish(
        folder=folder,
        dtype=dtype,
        device=part.device,
        context=config.prompts.max_prompt_tokens + config.explorer.max_response_tokens,
        sequences=config.explorer.rollouts_in_flight,
        seed=config.seed,
        tensor_parallel=part.tensor_parallel,
    )
    if ENGINES[part.engine].local:
        return wish
    needs = engine_parts(name, [read_model_facts(folder)], config, width_bytes=BYTES[dtype])
    return replace(wish, memory_share=memory_share(config, "explorer" if name == "student" else name, needs))


def load_teachers(config: Config) -> Teachers:
    """All teachers; a folder that several tasks name is loaded once, and a server is asked for nothing yet."""
    part, load = config.teacher, cache(partial(_load_teacher, config))
    default = _server(config, part.url, model=part.model) if part.url else load(part.model)
    others = {pattern: load(model) for pattern, model in part.by_task.items()}
    first = max(FIRST, config.explorer.rollouts_in_flight)
    return Teachers(default, others, Vocabularies(config).foreign, first)


def load_teacher(config: Config, role: str) -> Engine:
    """One of the teachers, by what messages call it."""
    part = config.teacher
    if role == "teacher":
        return _server(config, part.url, model=part.model) if part.url else _load_teacher(config, part.model)
    [model] = [model for pattern, model in part.by_task.items() if teacher_of(pattern) == role]
    return _load_teacher(config, model)


def _load_teacher(config: Config, model: str) -> Engine:
    part = config.teacher
    if is_server(model):
        return _server(config, model, model=None)
    return ENGINES[part.engine].load(engine_wish(config, "teacher", model, dtype=part.dtype))


def _server(config: Config, url: str, *, model: str | None) -> OpenAIPolicy:
    """A teacher behind a server; it is asked for nothing yet."""
    kind = {"openai": OpenAIPolicy, "sglang": SglangPolicy}[config.teacher.server]
    return kind(url, model=model, timeout_s=config.teacher.timeout_s)
