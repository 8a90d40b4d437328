"""Turns for the queue of another framework, and the batches that `divopd replay` composes from the same turns."""

import json
from collections.abc import Iterable
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path
from struct import pack, unpack

from divopd.cli import main
from divopd.composers.composer import candidate_of
from divopd.metrics import batch_figures
from divopd.synth import PRESETS, synthesize, with_load
from divopd.turns import Turn, group_into_rollouts, write_turns

BATCH_SIZE = 16
UPDATES = 8
WARM = 4  # updates of the recording that become one, so that the first batch is full, too


def recorded_turns(seed: int = 0) -> list[Turn]:
    """A queue with twice as many turns as are trained, some of them invalid; every batch of it is full.

    Rollouts are named as Trinity-RFT names them, and log probabilities are those of float32, as tensors have them.
    """
    model = with_load(PRESETS["alfworld"], 2 * BATCH_SIZE / PRESETS["alfworld"].batch_size)
    turns = synthesize(model, updates=UPDATES + WARM, seed=seed)
    rollouts = group_into_rollouts(turns)
    return [
        replace(
            turn,
            rollout=f"0/{number}/0",
            task=f"0/{number}",
            version=max(0, turn.version - WARM),
            available_at=max(0, turn.available_at - WARM),
            student_logprobs=_single(turn.student_logprobs),
            teacher_logprobs=_single(turn.teacher_logprobs),
        )
        for number, rollout in enumerate(rollouts)
        for turn in rollout.turns
    ]


def _single(values: Iterable[float] | None) -> list[float] | None:
    return None if values is None else [unpack("f", pack("f", value))[0] for value in values]


def replayed(turns: list[Turn], folder: Path, method: str) -> list[dict]:
    """What `divopd replay --json` says of these turns, an object an update."""
    write_turns(folder / "turns.jsonl", turns)
    batches = replay_of(folder / "turns.jsonl", method)
    assert all(len(batch["selected"]) == BATCH_SIZE for batch in batches), "a framework would wait here"
    assert sum(batch["stale"] for batch in batches), "nothing is stale: a wrong number of the update would not be seen"
    return batches


def replay_of(recording: Path, method: str) -> list[dict]:
    """The same of a file, which may be the one that a pool has recorded."""
    said = StringIO()
    settings = ["--method", method, "--batch-size", str(BATCH_SIZE), "--updates", str(UPDATES), "--json"]
    with redirect_stdout(said):
        assert main(["replay", str(recording), *settings]) == 0
    return [json.loads(line) for line in said.getvalue().splitlines()]


def figures_of(turns: list[Turn], selected: list[list], *, update: int) -> dict[str, float]:
    """The figures of a batch, from the turns themselves."""
    whole = {turn.key: turn for turn in turns}
    rows = [candidate_of(whole[rollout, turn], first_seen=update) for rollout, turn in selected]
    return asdict(batch_figures(rows, update=update))
