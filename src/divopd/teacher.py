"""The frozen teacher: it scores the student's own tokens, a rollout in one pass (SPEC §6.2), and the preflight."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from divopd.errors import AlignmentError
from divopd.explorer import Played, PlayedTurn
from divopd.models.policy import Policy
from divopd.turns import Rollout, Turn

TOLERANCE = 1e-3  # nats; rounding between two ways of reading the same tokens


def score_rollouts(teacher: Policy, played: Sequence[Played], *, ids: Sequence[str], version: int) -> list[Rollout]:
    """The student turns of each rollout as training rows, with the teacher's log probabilities of their tokens.

    Turns in which the teacher acted are no rows. A turn whose prompt was cut is not scored: it is a dead row. A rollout
    without a student turn is left out.
    """
    rows = [[turn for turn in rollout.turns if turn.actor == "student"] for rollout in played]
    scored = [[turn for turn in turns if not turn.prompt.truncated and turn.response.ids] for turns in rows]
    sequences = [[*turn.prompt.ids, *turn.response.ids] for turns in scored for turn in turns]
    spans = [
        [(len(turn.prompt.ids), len(s))] for s, turn in zip(sequences, (t for ts in scored for t in ts), strict=True)
    ]
    values = iter(teacher.score(sequences, spans))
    by_turn = {id(turn): next(values)[0] for turns in scored for turn in turns}
    return [
        _as_rollout(rollout, name, version=version, scores=by_turn)
        for rollout, name, turns in zip(played, ids, rows, strict=True)
        if turns
    ]


def _as_rollout(played: Played, name: str, *, version: int, scores: dict[int, np.ndarray]) -> Rollout:
    def row(index: int, turn: PlayedTurn) -> Turn:
        teacher = scores.get(id(turn))
        return Turn(
            rollout=name,
            turn=index,
            task=played.start.task,
            version=version,
            available_at=version,  # the store says when it really arrived
            prompt_ids=list(turn.prompt.ids),
            prompt_truncated=turn.prompt.truncated,
            response_ids=list(turn.response.ids),
            student_logprobs=turn.response.logprobs.tolist(),
            teacher_logprobs=None if teacher is None else teacher.tolist(),
            action_mask=[0 if turn.prompt.truncated else 1] * len(turn.response.ids),
            reward=played.reward,
            success=played.success,
            rollout_turns=len(played.turns),
        )

    return Rollout(name, tuple(row(i, turn) for i, turn in enumerate(played.turns) if turn.actor == "student"))


# ── preflight ─────────────────────────────────────────────────────────────────────────────────────────────────────


def check_vocabularies(student: Any, teacher: Any) -> None:
    """Both tokenizers must give every token the same id, special ones included; the message says what differs."""
    ours, theirs = student.get_vocab(), teacher.get_vocab()
    if ours != theirs:
        missing = sorted(set(ours) - set(theirs))[:3]
        moved = sorted(token for token in ours.keys() & theirs.keys() if ours[token] != theirs[token])[:3]
        detail = f"the teacher lacks {missing}" if missing else f"these have other ids: {moved}"
        if not missing and not moved:
            detail = f"the teacher also has {sorted(set(theirs) - set(ours))[:3]}"
        raise AlignmentError(
            f"student and teacher have different vocabularies ({len(ours)} and {len(theirs)} tokens; {detail}); "
            "use a teacher with the student's tokenizer"
        )
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if getattr(student, name) != getattr(teacher, name):
            raise AlignmentError(
                f"{name} is {getattr(student, name)} for the student and {getattr(teacher, name)} for the teacher; "
                "use a teacher with the student's special tokens"
            )


def check_alignment(student: Policy, *, prompt: Sequence[int], max_tokens: int) -> float:
    """Let the student score its own response as a teacher would; returns the largest difference.

    With teacher = student the advantage must be 0 everywhere, and a shift by one token must be seen. An AlignmentError
    says which of the two does not hold.
    """
    [response] = student.respond([prompt], temperature=1.0, max_tokens=max(max_tokens, 2), seeds=[0])
    whole, start = [*prompt, *response.ids], len(prompt)
    [[own]] = student.score([whole], [[(start, len(whole))]])
    worst = float(np.abs(own - response.logprobs).max())
    if worst > TOLERANCE:
        raise AlignmentError(
            f"the student's own score of its response differs from what it sampled by {worst:.3g} nats; expected at "
            f"most {TOLERANCE}: scoring and generation do not read the same tokens"
        )
    [[shifted]] = student.score([whole], [[(start - 1, len(whole) - 1)]])
    if np.abs(shifted - own).max() <= TOLERANCE:
        raise AlignmentError("scores shifted by one token look the same as the right ones; the model cannot be checked")
    return worst


def check_lengths(policy: Any, *, role: str, max_prompt_tokens: int, max_response_tokens: int) -> None:
    """The longest prompt and response must fit into the model's context."""
    longest, limit = max_prompt_tokens + max_response_tokens, policy.context_length
    if limit is not None and longest > limit:
        raise AlignmentError(
            f"the {role} reads at most {limit} tokens, but prompts of {max_prompt_tokens} and responses of "
            f"{max_response_tokens} may reach {longest}; lower prompts.max_prompt_tokens"
        )
