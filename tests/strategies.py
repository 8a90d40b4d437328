"""What hypothesis draws: turns, pools and short histories of a queue."""

from hypothesis import strategies as st

from divopd.composers import Candidate
from divopd.turns import Turn
from divopd.validity import Reason

ROLLOUTS = [f"r{i:02d}" for i in range(12)]
# few distinct values, so that ties happen
DISAGREEMENTS = st.sampled_from([-1.5, -0.25, 0.0, 0.5, 0.5000000001, 2.0, 7.25])


@st.composite
def candidates(draw: st.DrawFn, *, update: int = 5, max_size: int = 60) -> list[Candidate]:
    """A pool at one update: unique keys, some stale, some invalid, first seen at different updates."""
    keys = draw(st.lists(st.tuples(st.sampled_from(ROLLOUTS), st.integers(0, 20)), unique=True, max_size=max_size))
    pool = []
    for rollout, turn in keys:
        reason: Reason | None = draw(st.sampled_from([None, None, None, None, "misaligned"]))
        pool.append(
            Candidate(
                rollout,
                turn,
                task=f"task{int(rollout[1:]) % 4}",
                version=draw(st.integers(max(0, update - 4), update)),
                first_seen=draw(st.integers(max(0, update - 10), update)),
                reason=reason,
                disagreement=draw(DISAGREEMENTS) if reason is None else 0.0,
                tokens=draw(st.integers(1, 50)),
                valid_tokens=draw(st.integers(1, 10)) if reason is None else 0,
            )
        )
    return pool


def turn(rollout: str = "r", index: int = 0, *, gap: float = 0.5, size: int = 3, **changes: object) -> Turn:
    """A valid turn whose disagreement is `gap`, all of it on the first token; `changes` replace fields."""
    fields = {
        "rollout": rollout,
        "turn": index,
        "task": "t",
        "version": 0,
        "available_at": 0,
        "prompt_ids": [1, 2],
        "response_ids": [3] * size,
        "student_logprobs": [-0.5] * size,
        "teacher_logprobs": [-0.5 - gap] + [-0.5] * (size - 1),
        "action_mask": [1] * size,
    }
    return Turn(**{**fields, **changes})  # type: ignore[arg-type]


@st.composite
def recordings(draw: st.DrawFn, *, updates: int = 12) -> list[Turn]:
    """The turns of a short run in arrival order: whole rollouts, some with dead rows, versions behind by 0 to 4."""
    turns: list[Turn] = []
    number = 0
    for update in range(updates):
        for _ in range(draw(st.integers(0, 4))):
            version = max(0, update - draw(st.integers(0, 4)))
            for index in range(draw(st.integers(1, 9))):
                dead = draw(st.integers(0, 5)) == 0
                turns.append(
                    turn(
                        f"r{number:03d}",
                        index,
                        gap=draw(st.sampled_from([0.0, 0.25, 1.0, 3.0])),
                        version=version,
                        available_at=update,
                        prompt_truncated=dead,
                        task=f"task{number % 3}",
                    )
                )
            number += 1
    return turns
