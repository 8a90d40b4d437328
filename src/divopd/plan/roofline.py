"""How long an update takes at best on the machine that a configuration names: a roofline, stated and never measured.

A role is bound by products (peak) or by reading weights and caches (bandwidth), and reaches the same stated share of
either. What is not counted: publishing weights, evaluations, waiting for one another, communication.
"""

from dataclasses import dataclass

from divopd.config import Config
from divopd.models.model_files import ModelFacts
from divopd.plan.forecast import BYTES, Sample

FORWARD, BACKWARD = 2, 4  # products and sums for each parameter and token


@dataclass(frozen=True)
class Roofline:
    """Seconds that each role needs for one update's work, all its processes together."""

    seconds: dict[str, float]
    trained_tokens: float
    generated_tokens: float

    @property
    def bottleneck(self) -> str:
        return max(self.seconds, key=lambda role: self.seconds[role])

    @property
    def update_s(self) -> float:
        return self.seconds[self.bottleneck]


def roofline(config: Config, student: ModelFacts, teacher: ModelFacts | None, sample: Sample) -> Roofline | None:
    """None where the machine's peak and bandwidth are not said. A teacher behind a server is None and takes no time."""
    machine = config.machine
    if machine.peak_tflops is None or machine.bandwidth_gb_s is None:
        return None
    peak, bandwidth = machine.peak_tflops * 1e12, machine.bandwidth_gb_s * 1e9
    reached = Reached(peak * machine.efficiency, bandwidth * machine.efficiency)
    turns = config.composer.batch_size
    seconds = {"learner": turns * _trained_turn_s(config, student, sample, reached) / config.learner.ranks}
    seconds["explorers"] = turns / (config.explorer.processes * _played_turns_per_s(config, student, sample, reached))
    if teacher is not None:
        seconds["teachers"] = turns * _scored_turn_s(config, teacher, sample, reached) / config.teacher.count
    return Roofline(seconds, turns * sample.row_tokens, turns * sample.response_tokens)


@dataclass(frozen=True)
class Reached:
    """What one GPU does in a second: products and sums, bytes of its memory."""

    products: float
    read_bytes: float


def forward_products(model: ModelFacts, tokens: float, *, length: float) -> float:
    """Of so many tokens in rows of this length: those of the weights, and those of causal attention."""
    attention = 2 * FORWARD * model.layers * model.query_width * length / 2
    return tokens * (FORWARD * (model.parameters - model.embeddings) + attention)


def _trained_turn_s(config: Config, student: ModelFacts, sample: Sample, reached: Reached) -> float:
    """Of one rank alone. Every row is read whole here; rows that share a prefix are cheaper in truth."""
    again = FORWARD if config.learner.activations == "recompute" else 0
    passes = (FORWARD + BACKWARD + again) / FORWARD
    row = forward_products(student, sample.row_tokens, length=sample.row_tokens)
    head = FORWARD * sample.response_tokens * student.vocabulary * student.hidden
    return passes * (row + head) / reached.products


def _played_turns_per_s(config: Config, student: ModelFacts, sample: Sample, reached: Reached) -> float:
    """Of one explorer: its rollouts in flight write side by side; of a prompt only what is new is read."""
    width = BYTES[config.learner.compute]
    rollouts, engine_gpus = config.explorer.rollouts_in_flight, config.student.tensor_parallel
    cache = rollouts * student.cache_bytes(int(sample.row_tokens), width_bytes=width)
    token_s = (student.parameters * width + cache) / (reached.read_bytes * engine_gpus)
    new = max(sample.whole_tokens / max(sample.turns, 1.0), sample.response_tokens)
    read_s = rollouts * forward_products(student, new, length=sample.row_tokens) / (reached.products * engine_gpus)
    return rollouts / (config.costs.environment_step_s + read_s + sample.response_tokens * token_s)


def _scored_turn_s(config: Config, teacher: ModelFacts, sample: Sample, reached: Reached) -> float:
    """Of one teacher: a rollout is read once, prefixes that its turns share once."""
    once = sample.own_scored_once or sample.scored_once or sample.whole_tokens
    tokens = once / max(sample.turns, 1.0)
    return forward_products(teacher, tokens, length=sample.row_tokens) / (
        reached.products * config.teacher.tensor_parallel
    )


def words(found: Roofline, config: Config) -> list[str]:
    """For people: the speed, and on what it rests."""
    machine = config.machine
    parts = ", ".join(f"{role} {seconds:.1f} s" for role, seconds in found.seconds.items())
    return [
        f"at best {found.update_s:.1f} s an update ({parts}): the bottleneck is the {found.bottleneck}; "
        f"{found.trained_tokens / found.update_s:,.0f} tokens/s trained, "
        f"{found.generated_tokens / found.update_s:,.0f} tokens/s generated",
        f"a roofline, not measured: {machine.peak_tflops:,.0f} TFLOP/s and {machine.bandwidth_gb_s:,.0f} GB/s a GPU "
        f"({machine.source or 'no source is named'}), {machine.efficiency:.0%} of both reached; "
        f"{config.costs.environment_step_s:g} s an action (costs.environment_step_s); weights, evaluations and "
        "communication not counted",
    ]
