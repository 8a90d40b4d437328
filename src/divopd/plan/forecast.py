"""What a run will cost, from its configuration and a few rollouts of a random player: tokens, virtual time, bytes.

A random player fails nearly always, so its rollouts are long: these are figures of an unskilled student, from above.
"""

import random
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from divopd.config import Config
from divopd.environments import Environment
from divopd.environments.pool import environments_in, open_pool
from divopd.models.engine import ENGINES, cache_tokens
from divopd.models.model_files import ModelFacts
from divopd.models.packing import make_row, merge_rows
from divopd.plan.learner_memory import ADAM_BYTES, learner_bytes
from divopd.prompts import Codec, Conversation

ROLLOUTS = 4  # played to see how prompts grow
CHARACTERS_PER_TOKEN = 4
STORED_TOKEN_BYTES = (4, 22)  # of a prompt and of a response (payload.py)
CHECKPOINTS = 3  # two are kept, one is being written
RECENT_VERSIONS = 3  # kept besides those that are evaluated
WORKSPACE = 6 * 10**9  # of an engine on a GPU: kernels, graphs, logits of a scored prompt. Assumed, not measured
BYTES = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2}


class CharacterCodec:
    """Stands in for a tokenizer that is not there yet: four characters are a token."""

    def __init__(self) -> None:
        self.stop = 0
        self.open_system = self.open_user = self.open_user_first = self.open_response = self.close_response = [0]

    def text_ids(self, text: str) -> list[int]:
        return [0] * (len(text) // CHARACTERS_PER_TOKEN + 1)

    def response_ids(self, text: str) -> list[int]:
        return [*self.text_ids(text), 0]

    def adopted(self, ids: Sequence[int]) -> list[int]:
        return list(ids)


@dataclass(frozen=True)
class Sample:
    """Means over the rollouts of a random player."""

    turns: float
    response_tokens: float
    row_tokens: float  # prompt and response of one turn
    whole_tokens: float  # of a rollout, read once
    longest_prompt: int
    truncated_share: float
    scored_once: float = 0.0  # tokens of a rollout that a teacher reads, prefixes that turns share once
    own_scored_once: float | None = None  # the same if it reads its own prompts


def largest_sample(config: Config) -> Sample:
    """What the configuration allows at most: for an environment that cannot be played here."""
    prompt, response = config.prompts.max_prompt_tokens, config.explorer.max_response_tokens
    return Sample(
        turns=config.environment.horizon,
        response_tokens=response,
        row_tokens=prompt + response,
        whole_tokens=prompt + response,
        longest_prompt=prompt,
        truncated_share=0.0,
    )


def sample_rollouts(config: Config, codec: Any, tasks: Sequence[str], *, own: Codec | None = None) -> Sample:
    """Play the tasks with random actions, and measure prompts as the student will see them.

    `own` is the codec of a teacher that has prompts of its own.
    """
    rng = random.Random(0)
    rows: list[tuple[int, int]] = []
    ends: list[int] = []
    scored: list[list[int]] = []
    truncated = 0
    with ExitStack() as stack:
        part = config.environment
        pool = open_pool(part.name, part.settings, size=1, workers=part.workers, timeout_s=part.timeout_s)
        stack.callback(pool.close)
        [environment] = environments_in(pool)
        stack.callback(getattr(environment, "close", lambda: None))
        for task in tasks:
            readings, cut = _play(config, [codec, *([own] if own else [])], environment, task=task, rng=rng)
            lengths = [(len(prompt), len(response)) for prompt, response in readings[0]]
            rows += lengths
            ends.append(sum(lengths[-1]) if lengths else 0)
            scored.append([sum(s.tokens for s in merge_rows([make_row(*turn) for turn in r])) for r in readings])
            truncated += cut
    count = max(len(rows), 1)
    means = [sum(tokens) / len(tokens) for tokens in zip(*scored, strict=True)]
    return Sample(
        turns=len(rows) / max(len(tasks), 1),
        response_tokens=sum(response for _, response in rows) / count,
        row_tokens=sum(prompt + response for prompt, response in rows) / count,
        whole_tokens=sum(ends) / max(len(ends), 1),
        longest_prompt=max((prompt for prompt, _ in rows), default=0),
        truncated_share=truncated / count,
        scored_once=means[0] if means else 0.0,
        own_scored_once=means[1] if own and means else None,
    )


def _play(
    config: Config, codecs: Sequence[Codec], environment: Environment, *, task: str, rng: random.Random
) -> tuple[list[list[tuple[list[int], list[int]]]], int]:
    """Prompt and response of each turn as each codec writes them, and how many prompts of the first were cut."""
    style = config.prompts
    # a thought of a quarter of what is allowed: nobody knows before the student has answered
    thought = "x" * (config.explorer.max_response_tokens // 4 * CHARACTERS_PER_TOKEN)
    seen = environment.reset(task)
    conversations = [Conversation(style, codec, seen) for codec in codecs]
    readings: list[list[tuple[list[int], list[int]]]] = [[] for _ in codecs]
    cut = 0
    while not seen.done and len(readings[0]) < config.environment.horizon:
        action = rng.choice(seen.allowed_actions) if seen.allowed_actions else "look around"
        said = codecs[0].response_ids(style.render(action, thought=thought))[: config.explorer.max_response_tokens]
        cut += conversations[0].prompt().truncated
        for codec, conversation, reading in zip(codecs, conversations, readings, strict=True):
            reading.append((conversation.prompt().ids, codec.adopted(said)))
        seen = environment.step(action)
        for conversation in conversations:
            conversation.add(said, action, seen)
    return readings, cut


@dataclass(frozen=True)
class Forecast:
    """Rates and totals of a run on the virtual clock."""

    load: float  # turns that arrive for each that is trained
    seconds: float
    rollouts: float
    turns: float
    generated_tokens: float
    scored_tokens: float  # prompt and response of every row
    trained_tokens: float


def forecast(config: Config, sample: Sample) -> Forecast:
    """Follow the queue with mean values: rollouts arrive at one rate, updates drain them at another."""
    costs, size, updates = config.costs, config.composer.batch_size, config.learner.updates
    turns = max(sample.turns, 1.0)
    acting_s = turns * (costs.environment_step_s + sample.response_tokens * costs.generated_token_s)
    rollout_s = costs.rollout_s + acting_s + sample.whole_tokens * (costs.read_token_s + costs.scored_token_s)
    arriving = config.explorer.rollouts_in_flight / rollout_s * turns  # turns a second
    update_s = costs.update_s + size * sample.row_tokens * costs.trained_token_s
    load = arriving * update_s / size
    seconds = updates * max(update_s, size / arriving)
    if config.explorer.max_backlog is not None:  # explorers wait for the learner
        load = min(load, 1.0)
    made = updates * size * max(load, 1.0)
    return Forecast(
        load=load,
        seconds=seconds,
        rollouts=made / turns,
        turns=made,
        generated_tokens=made * sample.response_tokens,
        scored_tokens=made * sample.row_tokens,
        trained_tokens=updates * size * sample.row_tokens,
    )


def memory_by_device(
    config: Config, student: ModelFacts, teachers: Sequence[ModelFacts], *, longest: int
) -> dict[str, dict[str, int]]:
    """Bytes by device and purpose; `longest` is the longest prompt to expect. Teachers on servers are not given."""
    width = BYTES[config.student.dtype]
    live = config.clock == "live"
    tokens = longest + config.explorer.max_response_tokens
    apart = not live or config.evaluation.share is None  # evaluations are played beside the explorers' rollouts
    in_flight = config.explorer.rollouts_in_flight * config.explorer.processes
    in_flight += config.evaluation.in_flight if apart else 0
    copies = config.explorer.processes + apart if live else 1  # of explorers and of the evaluation
    needs: dict[str, dict[str, int]] = {
        config.student.device: {
            **_learner(config, student, tokens),
            "its copies": copies * student.parameters * width,
            **_in_order(config, student, copies=copies),
            "caches": in_flight * student.cache_bytes(tokens, width_bytes=width),
        }
    }
    if teachers:
        bytes_each = config.teacher.count * BYTES[config.teacher.dtype]
        needs.setdefault(config.teacher.device, {})["teacher"] = bytes_each * sum(t.parameters for t in teachers)
    return needs


def memory_by_actor(
    config: Config, student: ModelFacts, teachers: Sequence[ModelFacts], *, longest: int
) -> dict[str, dict[str, int]]:
    """Bytes of one actor of each role on a cluster, by purpose; arguments as above."""
    tokens = longest + config.explorer.max_response_tokens
    needs = {"learner": _learner(config, student, tokens)}
    if teachers:
        needs["teacher"] = teacher_parts(config, teachers)
    needs["explorer"] = _acting(config, student, tokens, rollouts=config.explorer.rollouts_in_flight)
    if config.evaluation.share is None:
        needs["evaluator"] = _acting(config, student, tokens, rollouts=config.evaluation.in_flight)
    return needs


def _acting(config: Config, student: ModelFacts, tokens: int, *, rollouts: int) -> dict[str, int]:
    """The student as it acts: what vLLM is told to keep for caches, or what transformers needs for these tokens."""
    if not ENGINES[config.student.engine].local:
        return engine_parts("student", [student], config, width_bytes=BYTES[config.learner.compute])
    width = BYTES[config.student.dtype]
    cache = rollouts * student.cache_bytes(tokens, width_bytes=width)
    weights = {"student": student.parameters * width, **_in_order(config, student, copies=1)}
    return {**weights, "caches": cache, **_workspace(config.student.device)}


def _in_order(config: Config, student: ModelFacts, *, copies: int) -> dict[str, int]:
    """What generation on a CPU keeps of the weights besides (models/fused.py)."""
    part = config.student
    ours = part.engine == "transformers" and part.device == "cpu" and part.dtype == "float32"
    return {"weights in oneDNN's order": copies * student.parameters * BYTES[part.dtype]} if ours else {}


def teacher_parts(config: Config, teachers: Sequence[ModelFacts]) -> dict[str, int]:
    """Every teacher of a teacher's process, each an engine of its own."""
    width, part = BYTES[config.teacher.dtype], config.teacher
    if not ENGINES[part.engine].local:
        return engine_parts("teacher", teachers, config, width_bytes=width)
    return {"teacher": width * sum(teacher.parameters for teacher in teachers), **_workspace(part.device)}


def engine_parts(name: str, models: Sequence[ModelFacts], config: Config, *, width_bytes: int) -> dict[str, int]:
    """Engines that keep as many keys and values as they are told to: those of all rollouts in flight."""
    context = config.prompts.max_prompt_tokens + config.explorer.max_response_tokens
    room = cache_tokens(context, config.explorer.rollouts_in_flight)
    part = config.teacher if name == "teacher" else config.student
    workspace = {what: size * part.tensor_parallel for what, size in _workspace(part.device).items()}
    return {
        name: width_bytes * sum(model.parameters for model in models),
        "caches": sum(model.cache_bytes(room, width_bytes=width_bytes) for model in models),
        **{what: size * len(models) for what, size in workspace.items()},
    }


def _workspace(device: str) -> dict[str, int]:
    return {} if device == "cpu" else {"workspace, assumed": WORKSPACE}


def _learner(config: Config, student: ModelFacts, longest_row: int) -> dict[str, int]:
    """One rank; a row is never split, however small the bound on tokens is. Rows that share tokens may score most."""
    learner = config.learner
    tokens = max(longest_row, min(learner.max_tokens, config.composer.batch_size * longest_row))
    parts = learner_bytes(
        student,
        ranks=learner.ranks // learner.nodes,
        tokens=tokens,
        scored=tokens,
        compute=learner.compute,
        recompute=learner.activations == "recompute",
        device=config.student.device,
        width_bytes=BYTES[config.student.dtype],
        trained=_trained_parameters(config, student),
    )
    return parts | _workspace(config.student.device)


def disk_bytes(config: Config, student: ModelFacts, sample: Sample, expected: Forecast) -> dict[str, int]:
    """Bytes that the run directory will hold, by what they are."""
    prompt = sample.row_tokens - sample.response_tokens
    row = STORED_TOKEN_BYTES[0] * prompt + STORED_TOKEN_BYTES[1] * sample.response_tokens
    return {"store": int(expected.turns * row), **model_bytes(config, student)}


def model_bytes(config: Config, student: ModelFacts) -> dict[str, int]:
    """Those of them that are known without playing: checkpoints and weights."""
    weights = student.parameters * BYTES[config.student.dtype]
    optimizer = _trained_parameters(config, student) * ADAM_BYTES
    evaluated = config.learner.updates // config.evaluation.every + 1
    kept = evaluated if config.weights.keep is None else min(config.weights.keep, evaluated)
    published = _trained_parameters(config, student) if config.clock == "live" else student.parameters
    stored = published * BYTES[config.weights_dtype or config.student.dtype]
    recent = RECENT_VERSIONS if config.weights_way == "folder" else 0
    return {
        "checkpoints": CHECKPOINTS * (weights + optimizer),
        "weights": (kept + recent) * stored,
        **({"weights for audits": _audited_versions(config) * weights} if config.audits.keep_last else {}),
    }


def _audited_versions(config: Config) -> int:
    """Versions kept for audits, the one that the learner holds among them; some may be counted twice, as evaluated."""
    return min(config.audits.keep_last + 1, config.learner.updates)


def _trained_parameters(config: Config, student: ModelFacts) -> int:
    lora = config.student.lora
    return student.parameters if lora is None else lora.rank * student.adapter_rows
