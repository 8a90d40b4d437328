"""The places of the virtual clock at which rollouts are in flight, and how long a rollout takes by the stated costs."""

import random
from dataclasses import asdict, dataclass
from typing import Any

from divopd.config import Costs
from divopd.explorer import Played
from divopd.pipeline.turn_by_turn import Begun, begun_from_json
from divopd.turns import Rollout, TeacherTurn, turn_from_json, turn_to_json


@dataclass(frozen=True)
class Slot:
    """One place for a rollout in flight: when its rollout ends, and what will then enter the queue.

    Where versions go by turn and it has not ended yet, it is `begun`, and `ends_at` is when its next turn begins.
    """

    ends_at: float = 0.0
    rollout: Rollout | None = None
    generated_tokens: int = 0
    begun: Begun | None = None


def seconds_of(played: Played, costs: Costs) -> float:
    """Virtual seconds from the start of a rollout to its arrival in the queue, without jitter."""
    whole = len(played.turns[-1].prompt.ids) + len(played.turns[-1].response.ids) if played.turns else 0
    own = played.turns[-1].teacher_prompt if played.turns else None
    acting = played.generated_tokens * costs.generated_token_s + len(played.turns) * costs.environment_step_s
    more = 0 if own is None else len(own.ids) - len(played.turns[-1].prompt.ids)  # that the teacher reads
    reading = whole * (costs.read_token_s + costs.scored_token_s) + more * costs.scored_token_s
    return costs.rollout_s + acting + reading


def spread(seed: int, number: int) -> float:
    """From -1 to 1, the same for the same rollout of the same seed whatever the method is."""
    return random.Random(f"jitter {seed} {number}").uniform(-1, 1)


def slot_to_json(slot: Slot) -> list[Any]:
    turns = None if slot.rollout is None else [turn_to_json(turn) for turn in slot.rollout.turns]
    taught = [] if slot.rollout is None else [asdict(turn) for turn in slot.rollout.teacher_turns]
    return [slot.ends_at, turns, slot.generated_tokens, taught, slot.begun and slot.begun.to_json()]


def slot_from_json(data: list[Any]) -> Slot:
    ends_at, turns, generated_tokens, *more = data
    begun = begun_from_json(more[1]) if len(more) > 1 and more[1] else None
    rows = tuple(turn_from_json(turn, where="checkpoint") for turn in turns or ())
    kept = more[0] if more else []  # checkpoints of before have no turns of the teacher
    taught = tuple(TeacherTurn(**turn | {"response_ids": tuple(turn["response_ids"])}) for turn in kept)
    return Slot(ends_at, Rollout(rows[0].rollout, rows, taught) if rows else None, generated_tokens, begun)
