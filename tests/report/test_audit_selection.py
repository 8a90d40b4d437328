"""Utilization, selection and retention: small recordings whose figures can be counted by hand."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from divopd.audits.retention import audit_retention
from divopd.audits.selection import Rejected, audit_selection
from divopd.audits.subject import NO_CAP, Subject, depth_of, load_subject
from divopd.audits.utilization import audit_utilization
from divopd.cli import main
from divopd.composers import Settings
from divopd.errors import InputError
from divopd.replay import recording_of
from divopd.synth import PRESETS, synthesize
from divopd.turns import Turn, write_turns


def make_turn(rollout: str, turn: int, *, score: float, success: bool, version: int = 0, tokens: int = 2) -> Turn:
    """A turn whose disagreement is `score`."""
    return Turn(
        rollout,
        turn,
        f"task of {rollout}",
        version,
        available_at=version,
        prompt_ids=[1] * 3,
        response_ids=[2] * tokens,
        student_logprobs=[-1.0] * tokens,
        teacher_logprobs=[-1.0 - score / tokens] * tokens,
        action_mask=[1] * tokens,
        success=success,
        rollout_turns=1,
    )


@pytest.fixture
def two_rollouts(tmp_path: Path) -> Path:
    """At update 0 a failed rollout of six turns, of which turns 4 and 5 disagree most, then a success of two."""
    long = [make_turn("a", turn, score=float(turn), success=False) for turn in range(6)]
    short = [make_turn("b", turn, score=1.0, success=True) for turn in range(2)]
    write_turns(tmp_path / "turns.jsonl", long + short)
    return tmp_path / "turns.jsonl"


NUMBERS: dict[str, Any] = {"batch_size": 4, "cap": 2, "max_staleness": 0}


def test_utilization_counts_rollouts(two_rollouts: Path) -> None:
    """Four slots: arrival order gives all to the first rollout, coverage two to each; both could have been reached."""
    used = audit_utilization(load_subject(two_rollouts, **NUMBERS))
    assert used["vanilla"].utilization.never_selected == 0.5
    assert used[f"divopd-base{NO_CAP}"].utilization.never_selected == 0.5
    assert used["divopd"].utilization.never_selected == used["divopd"].utilization.unreachable == 0.0
    assert used["divopd"].utilization.gini == 0.0
    assert used["divopd"].effective_rollouts == pytest.approx(2)


def test_an_empty_batch_is_an_update(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Of five updates the last two count: one is empty, and one has a single rollout. In the table of a replay, too."""
    turns = [make_turn(name, 0, score=1.0, success=True) for name in "abc"]
    write_turns(tmp_path / "t.jsonl", [*turns, make_turn("d", 0, score=1.0, success=True, version=4)])
    used = audit_utilization(load_subject(tmp_path / "t.jsonl"))
    assert {(one.effective_rollouts, one.top1_share) for one in used.values()} == {(0.5, 0.5)}
    assert main(["replay", str(tmp_path / "t.jsonl"), "--method", "vanilla"]) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.split()[:1] == ["vanilla"]]
    assert line.split()[3:5] == ["0.5", "50.0%"]


def test_selection_sorts_by_depth_and_outcome(two_rollouts: Path) -> None:
    """Vanilla takes the failure's first four turns; with focus it gives its two deepest, the success its two."""
    audit = audit_selection(load_subject(two_rollouts, **NUMBERS))
    assert audit.pool_success_share == 0.25
    assert audit.stages["vanilla"].shares["< 2"] == {"failure": 0.5, "success": 0.0}
    assert audit.stages["vanilla"].shares["2–3"] == {"failure": 0.5, "success": 0.0}
    assert audit.stages["+ focus"].shares["4–5"] == {"failure": 0.5, "success": 0.0}
    assert audit.stages["+ focus"].shares["< 2"] == {"failure": 0.0, "success": 0.5}
    assert audit.stages["+ focus"].success_share == audit.stages["+ coverage"].success_share == 0.5


@given(st.lists(st.lists(st.floats(-1.9, 9), min_size=1, max_size=4), min_size=1, max_size=6), st.randoms())
def test_the_gate_preserves_the_disagreement_of_a_valid_turn(scores: list[list[float]], random: Random) -> None:
    """Mean s(u) of vanilla's rows / (1 - dead share) is that of gate-only's, where both come to the same turns.

    The paper's text to eq. 6, gate-variance; its example is 14.59 / (1 - 0.1471) = 17.11.
    """
    turns = [
        make_turn(f"r{update}", number, score=score, success=False, version=update)
        for update, rollout in enumerate(scores)
        for number, score in enumerate(rollout)
    ]
    cut = [replace(turn, prompt_truncated=random.random() < 0.4) for turn in turns]
    subject = Subject("made", Path("made"), recording_of(cut), Settings("divopd", batch_size=4), first=None, file=cut)
    vanilla, gate = (audit_selection(subject).stages[stage] for stage in ("vanilla", "+ gate"))
    dead = sum(turn.prompt_truncated for turn in cut) / len(cut)
    assert (vanilla.dead_share, gate.dead_share) == (pytest.approx(dead), 0)
    assert vanilla.effective_batch == pytest.approx(4 * (1 - dead))
    if dead < 1:
        assert vanilla.disagreement / (1 - dead) == pytest.approx(gate.disagreement, abs=1e-9)
        assert vanilla.valid_disagreement == pytest.approx(gate.valid_disagreement, abs=1e-9)


@pytest.mark.parametrize("preset", ["alfworld", "webshop"])
def test_every_rejected_row_is_truncated_failed_and_unscored(preset: str, tmp_path: Path) -> None:
    """As in the paper's ALFWorld buffers; and the gate preserves the mean disagreement of a valid turn."""
    write_turns(tmp_path / "t.jsonl", synthesize(PRESETS[preset], updates=20, seed=0))
    audit = audit_selection(load_subject(tmp_path / "t.jsonl"))
    assert audit.rejected.rows > 50
    assert (audit.rejected.truncated, audit.rejected.failed, audit.rejected.unscored) == (1, 1, 1)
    vanilla, gate = audit.stages["vanilla"], audit.stages["+ gate"]
    assert vanilla.disagreement / (1 - vanilla.dead_share) == pytest.approx(gate.disagreement, rel=0.02)


def test_what_a_run_rejects_was_cut_and_not_scored(models: Path, tmp_path: Path) -> None:
    """With prompts of at most 105 tokens some of a real run are cut; the random student fails everywhere."""
    pytest.importorskip("transformers", reason="for want of the extra train")
    from small_runs import config, train_small

    train_small(tmp_path / "run", config(models, prompts={"max_prompt_tokens": 105}, learner={"updates": 3}))
    audit = audit_selection(load_subject(tmp_path / "run"))
    assert 0 < audit.rejected.rows < len(load_subject(tmp_path / "run").turns)
    assert (audit.rejected.truncated, audit.rejected.failed, audit.rejected.unscored) == (1, 1, 1)


def test_rejected_rows_are_told_apart(tmp_path: Path) -> None:
    """One row truncated, of a success, scored; one of a failure without a scored token; the valid ones do not count."""
    made = make_turn("a", 0, score=1.0, success=True), make_turn("b", 0, score=1.0, success=False)
    rows = [
        *made,
        replace(made[0], turn=1, prompt_truncated=True),
        replace(made[1], turn=1, teacher_mask=[0, 0]),
        replace(made[1], turn=2, teacher_logprobs=None),
        replace(made[1], turn=3, action_mask=[0, 0], teacher_mask=[1, 0]),
    ]
    write_turns(tmp_path / "t.jsonl", rows)
    rejected = audit_selection(load_subject(tmp_path / "t.jsonl")).rejected
    assert rejected == Rejected(4, truncated=0.25, failed=0.75, unscored=0.5)


def test_retention_has_both_sides_of_a_first_selection(two_rollouts: Path) -> None:
    """Kept: turns 4 and 5 of one rollout, both of the other. Dropped: turns 0 to 3."""
    audit = audit_retention(load_subject(two_rollouts, **NUMBERS))
    assert (audit.rollouts, audit.dropped_share, audit.trained_later) == (2, 0.5, 0.0)
    assert (audit.kept.depth, audit.dropped.depth) == (2.5, 1.5)
    assert (audit.kept.disagreement, audit.dropped.disagreement) == (pytest.approx(11 / 4), pytest.approx(6 / 4))
    assert audit.kept.disagreement_per_token == pytest.approx((4 + 5 + 1 + 1) / 4 / 2)
    assert audit.dropped.by_depth == {"< 2": 2, "2–3": 2, "4–5": 0, "6–9": 0, "≥ 10": 0}


def test_a_dropped_turn_may_be_trained_later(tmp_path: Path) -> None:
    """With room for it at the next update, what was dropped is trained: the audit says so."""
    turns = [make_turn("a", turn, score=float(turn), success=True) for turn in range(4)]
    write_turns(tmp_path / "t.jsonl", [*turns, make_turn("b", 0, score=0.0, success=True, version=1)])
    audit = audit_retention(load_subject(tmp_path / "t.jsonl", batch_size=2, cap=2, max_staleness=2))
    assert audit.trained_later == 1.0
    assert (audit.kept.turns, audit.dropped.turns) == (2, 2)


def test_outcomes_must_be_known(tmp_path: Path) -> None:
    """A recording without outcomes is refused with a sentence that names the field."""
    write_turns(tmp_path / "t.jsonl", [make_turn("a", 0, score=1.0, success=None)])  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="'success'"):
        audit_selection(load_subject(tmp_path / "t.jsonl"))


def test_depths_are_those_of_the_paper() -> None:
    """<2, [2,4), [4,6), [6,10), ≥10."""
    assert [depth_of(turn) for turn in (0, 1, 2, 3, 4, 5, 6, 9, 10, 29)] == [
        *("< 2", "< 2", "2–3", "2–3", "4–5", "4–5", "6–9", "6–9", "≥ 10", "≥ 10")
    ]
