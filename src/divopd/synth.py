"""Synthetic recordings from a stated queue model: see the allocation problem without any model or environment.

Explorers work independently; each plays one rollout after the other. A rollout starts with the newest policy version,
takes its own time and that of its turns, and enters the queue whole when it ends. The learner makes one update every
`update_seconds`. Successes are short and failures run on, so successes arrive first; prompts of long failures overflow;
disagreement is larger early in a rollout and in failures. Everything here is SYNTHETIC: it has the shape of the paper's
environments, not their content.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace
from math import exp
from random import Random

from divopd.turns import Rollout, Turn
from divopd.validity import with_valid_tokens

VOCABULARY = 1_000


@dataclass(frozen=True)
class QueueModel:
    """The numbers of the queue model. Times are in seconds of virtual time; only their ratios matter."""

    explorers: int  # rollouts in flight
    rollout_seconds: float  # reset, queueing and teacher scoring: what a rollout takes besides its turns
    turn_seconds: float  # generation and environment, for one turn
    update_seconds: float
    batch_size: int
    horizon: int
    tasks: int
    success_share: float
    success_turns: float  # mean; the spread is a third of it
    early_failure_share: float  # failures that end before the horizon (a wrong purchase, say)
    overflow_share: float  # failures whose prompt overflows at some depth past a third of the horizon
    disagreement_early: float  # nats per token at depth 0 of a failure
    disagreement_late: float  # nats per token it falls to
    disagreement_depth: float  # turns over which it falls by a factor e


PRESETS: dict[str, QueueModel] = {
    "alfworld": QueueModel(
        explorers=20, rollout_seconds=70.0, turn_seconds=0.6, update_seconds=51.0, batch_size=64,
        horizon=30, tasks=3_553,
        success_share=0.7, success_turns=7.0, early_failure_share=0.0, overflow_share=0.8,
        disagreement_early=0.5, disagreement_late=0.12, disagreement_depth=6.0,
    ),
    "webshop": QueueModel(
        explorers=28, rollout_seconds=110.0, turn_seconds=5.0, update_seconds=106.0, batch_size=64,
        horizon=15, tasks=6_410,
        success_share=0.45, success_turns=6.0, early_failure_share=0.4, overflow_share=0.25,
        disagreement_early=0.2, disagreement_late=0.06, disagreement_depth=3.0,
    ),
    "scienceworld": QueueModel(
        explorers=15, rollout_seconds=18.0, turn_seconds=0.25, update_seconds=15.0, batch_size=64,
        horizon=30, tasks=2_294,
        success_share=0.5, success_turns=11.0, early_failure_share=0.3, overflow_share=0.0,
        disagreement_early=0.7, disagreement_late=0.2, disagreement_depth=8.0,
    ),
}  # fmt: skip


def mean_turns(model: QueueModel) -> float:
    """The mean length of a rollout, successes and failures together."""
    early = (3 + model.horizon - 1) / 2
    failure = model.early_failure_share * early + (1 - model.early_failure_share) * model.horizon
    return model.success_share * model.success_turns + (1 - model.success_share) * failure


def load_of(model: QueueModel) -> float:
    """Arrival / drain: turns that arrive during one update, by turns that one update trains."""
    turns = mean_turns(model)
    rollouts_per_update = model.explorers * model.update_seconds / (model.rollout_seconds + turns * model.turn_seconds)
    return rollouts_per_update * turns / model.batch_size


def with_load(model: QueueModel, load: float) -> QueueModel:
    """The same environment and learner, with as many explorers as come nearest to this load."""
    return replace(model, explorers=max(1, round(load / load_of(model) * model.explorers)))


def synthesize(model: QueueModel, *, updates: int, seed: int) -> Iterator[Turn]:
    """Turns in arrival order, rollout by rollout, as far as these updates see them. The same seed, the same turns."""
    random = Random(f"divopd synth/{seed}")
    end = updates * model.update_seconds
    # explorers start spread over one rollout's time: a running system, not a start-up
    typical = model.rollout_seconds + mean_turns(model) * model.turn_seconds
    ready = [random.random() * typical for _ in range(model.explorers)]
    heapify(ready)
    finished: list[tuple[float, int, list[Turn]]] = []
    number = 0
    while ready[0] < end:
        start = ready[0]
        turns, seconds = _rollout(model, random, number=number, version=int(start / model.update_seconds))
        heapreplace(ready, start + seconds)
        finished.append((start + seconds, number, turns))
        number += 1
    for time, _, turns in sorted(finished, key=lambda entry: entry[:2]):
        if time < end:
            for turn in turns:
                yield replace(turn, available_at=int(time / model.update_seconds))


def _rollout(model: QueueModel, random: Random, *, number: int, version: int) -> tuple[list[Turn], float]:
    success = random.random() < model.success_share
    length, overflow = _shape(model, random, success=success)
    task = f"synthetic/{random.randrange(model.tasks)}"
    context = _tokens(random, 120)
    turns: list[Turn] = []
    for index in range(length):
        truncated = index >= overflow
        response = _tokens(random, random.randint(6, 14))
        student, teacher = _logprobs(model, random, depth=index, size=len(response), success=success)
        turn = Turn(
            rollout=f"synthetic-{number:06d}",
            turn=index,
            task=task,
            version=version,
            prompt_ids=list(context),
            prompt_truncated=truncated,
            response_ids=response,
            student_logprobs=student,
            teacher_logprobs=None if truncated else teacher,
            action_mask=[0 if truncated else 1] * len(response),
            reward=float(success),
            success=success,
            rollout_turns=length,
        )
        turns.append(turn)
        context += response + _tokens(random, random.randint(4, 10))
    acting = sum(random.uniform(0.6, 1.4) for _ in range(length)) * model.turn_seconds
    turns = list(with_valid_tokens(Rollout(turns[0].rollout, tuple(turns))).turns)
    return turns, acting + random.uniform(0.8, 1.2) * model.rollout_seconds


def _shape(model: QueueModel, random: Random, *, success: bool) -> tuple[int, int]:
    """The number of turns, and the depth from which on the prompt no longer fits."""
    if success:
        length = round(random.gauss(model.success_turns, model.success_turns / 3))
        return min(max(length, 2), model.horizon), model.horizon
    early = random.random() < model.early_failure_share
    length = random.randint(3, model.horizon - 1) if early else model.horizon
    overflows = random.random() < model.overflow_share
    return length, random.randint(model.horizon // 3, model.horizon - 1) if overflows else model.horizon


def _logprobs(
    model: QueueModel, random: Random, *, depth: int, size: int, success: bool
) -> tuple[list[float], list[float]]:
    decay = exp(-depth / model.disagreement_depth)
    gap = model.disagreement_late + (model.disagreement_early - model.disagreement_late) * decay
    gap *= 0.6 if success else 1.0
    student = [round(-random.expovariate(2.0), 4) for _ in range(size)]
    teacher = [round(min(0.0, value - random.gauss(gap, 0.3)), 4) for value in student]
    return student, teacher


def _tokens(random: Random, size: int) -> list[int]:
    return [random.randrange(VOCABULARY) for _ in range(size)]
