"""Audits: small recordings whose figures can be counted by hand, and whole runs through the command line."""

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_processes import make_rollout

from divopd.audits.cost import audit_cost
from divopd.audits.kinds import audit_kinds
from divopd.audits.retention import audit_retention
from divopd.audits.selection import Rejected, audit_selection
from divopd.audits.stability import correlation, spearman, top_k_overlap
from divopd.audits.subject import NO_CAP, Subject, depth_of, load_subject
from divopd.audits.table import AUDITS
from divopd.audits.timing import audit_time, time_of
from divopd.audits.utilization import audit_uncapped, audit_utilization
from divopd.cli import main
from divopd.composers import Settings
from divopd.errors import InputError
from divopd.methods import make_composer
from divopd.replay import journal_replay, recording_of
from divopd.report.runs import utilization_so_far
from divopd.store import Store
from divopd.store.views import StoreViews
from divopd.synth import PRESETS, synthesize
from divopd.turns import Turn, write_turns
from doubles.small_records import make_update_record
from fake_runs import make_run


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
    subject = Subject("made", Path("made"), cut, recording_of(cut), Settings("divopd", batch_size=4))
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


def test_five_audits_are_light() -> None:
    """Utilization, selection, retention, cost and time import neither torch nor anything that draws or prints."""
    code = (
        "import sys, divopd.audits.table\n"
        "import divopd.audits.utilization, divopd.audits.selection, divopd.audits.retention, divopd.audits.cost\n"
        "import divopd.audits.timing\n"
        "heavy = {'torch', 'transformers', 'matplotlib', 'rich', 'pydantic'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_depths_are_those_of_the_paper() -> None:
    """<2, [2,4), [4,6), [6,10), ≥10."""
    assert [depth_of(turn) for turn in (0, 1, 2, 3, 4, 5, 6, 9, 10, 29)] == [
        *("< 2", "< 2", "2–3", "2–3", "4–5", "4–5", "6–9", "6–9", "≥ 10", "≥ 10")
    ]


def test_rank_statistics() -> None:
    """Spearman sees order only and shares ranks among equals; the overlap compares sets."""
    rising = np.array([1.0, 2.0, 3.0, 40.0])
    assert spearman(rising, np.exp(rising)) == pytest.approx(1)
    assert spearman(rising, -rising) == pytest.approx(-1)
    assert spearman(np.array([1.0, 1.0, 2.0]), np.array([5.0, 5.0, 9.0])) == pytest.approx(1)
    assert correlation(np.ones(3), rising[:3]) == 0
    assert top_k_overlap(np.array([3.0, 2.0, 1.0]), np.array([1.0, 2.0, 3.0]), 2) == 0.5


def test_tasks_that_name_no_kind_are_one_kind(tmp_path: Path) -> None:
    """Without a stored configuration a task's name says its kind; names without a / are no kinds of their own."""
    with Store.create(tmp_path / "store.db", synchronous="NORMAL") as store:
        for number, task in enumerate(("7-3", "7-4", "9-1", "boil/2", "boil/3")):
            store.put(make_rollout(f"r{number}", task=task))
    assert {kind: counted.rollouts for kind, counted in audit_kinds(tmp_path).items()} == {"all": 3, "boil": 2}


@pytest.mark.parametrize("name", ["utilization", "selection", "retention"])
def test_a_recording_is_audited_from_the_command_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """A table, a JSON file of the same figures, and a picture; --json prints the figures."""
    pytest.importorskip("matplotlib", reason="for want of the extra plots")
    write_turns(tmp_path / "t.jsonl", synthesize(PRESETS["alfworld"], updates=8, seed=0))
    arguments = ["audit", name, str(tmp_path / "t.jsonl"), "--out", str(tmp_path / "out"), "--batch-size", "16"]
    assert main(arguments) == 0
    assert name in capsys.readouterr().out
    written = json.loads((tmp_path / "out" / f"{name}.json").read_text(encoding="utf-8"))
    assert (tmp_path / "out" / f"{name}.png").stat().st_size > 10_000
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == written["t.jsonl"]


def test_audits_say_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """A recording has no weights, no fates and no clock; a wrong name is told the nearest one."""
    write_turns(tmp_path / "t.jsonl", synthesize(PRESETS["alfworld"], updates=3, seed=0))
    path = str(tmp_path / "t.jsonl")
    for arguments, sentence in (
        (["cost", path], "no fates and no clock"),
        (["kinds", path], "nothing starves"),
        (["time", path], "no clock"),
        (["retenton", path], "did you mean 'retention'?"),
        (["selection", str(tmp_path / "none")], "no such run or recording"),
        (["selection", path, "--cap", "few"], "--cap is 'few'"),
        (["selection", path, "--first", "0"], "--first is '0'; expected a number, 1 or more"),
        (["selection", path, "--first", "few"], "--first is 'few'; expected a number, 1 or more"),
        (["ledger", path, "--first", "2"], "the ledger is checked whole"),
        (["cost", path, "--first", "2"], "cost counts what a whole run did"),
        (["kinds", path, "--first", "2"], "kinds counts what a whole run did"),
        (["selection", path, "--uncapped", path], "expected `audit utilization` of one run"),
        (["utilization", path, "--uncapped", str(tmp_path / "none")], "no such run or recording"),
    ):
        assert main(["audit", *arguments]) == 2
        assert sentence in capsys.readouterr().err
    pytest.importorskip("torch", reason="for want of the extra train")
    for name in ("stability", "geometry"):
        assert main(["audit", name, path]) == 2
        assert "no weights of a policy version" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["utilization", "selection", "retention"])
def test_the_first_updates_are_a_recording_that_ends_there(name: str, tmp_path: Path) -> None:
    """What arrived later is not there, and nothing is selected later; more than there are is all of them."""
    turns = list(synthesize(PRESETS["alfworld"], updates=12, seed=0))
    write_turns(tmp_path / "whole.jsonl", turns)
    write_turns(tmp_path / "begin.jsonl", [turn for turn in turns if turn.available_at < 7])

    def audited(file: str, **changes: Any) -> dict[str, Any]:
        return AUDITS[name](tmp_path / file, {"batch_size": 16, **changes}, lambda _: None)

    assert audited("whole.jsonl", first=7) == audited("begin.jsonl") != audited("whole.jsonl")
    assert audited("whole.jsonl", first=99) == audited("whole.jsonl")


def test_the_schedule_of_turnopd_is_that_of_the_whole_run(tmp_path: Path) -> None:
    """Looking at fewer updates does not make the run a shorter one."""
    write_turns(tmp_path / "t.jsonl", synthesize(PRESETS["alfworld"], updates=12, seed=0))
    assert load_subject(tmp_path / "t.jsonl", first=7).settings.total_updates == 12


def uncapped_run(folder: Path, method: str = "divopd", *, cap: int | None = None) -> Path:
    turns = list(synthesize(PRESETS["alfworld"], updates=9, seed=1))
    journal_replay(turns, make_composer(method, batch_size=16, cap=cap), updates=9, run=folder)
    return folder


def test_divopd_without_a_cap_has_a_row_from_its_own_run(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """The figures of that run, whole, in the table of another; the bound of the table stays that of the audited run."""
    pytest.importorskip("matplotlib", reason="for want of the extra plots")
    write_turns(tmp_path / "t.jsonl", synthesize(PRESETS["alfworld"], updates=8, seed=0))
    uncapped = uncapped_run(tmp_path / "uncapped")
    arguments = ["audit", "utilization", str(tmp_path / "t.jsonl"), "--first", "6", "--batch-size", "4"]
    arguments += ["--out", str(tmp_path / "out")]
    assert main([*arguments, "--json"]) == 0
    without = json.loads(capsys.readouterr().out)
    assert main([*arguments, "--json", "--uncapped", str(uncapped)]) == 0
    audited = json.loads(capsys.readouterr().out)
    own = audited.pop("divopd, no cap, own run")
    assert audited == without
    with StoreViews.open(uncapped) as store:
        tallies = store.rollout_tallies(available_before=9)
        expected = utilization_so_far(tallies, store.journal(0).settings, updates=9)
    assert own["utilization"] == asdict(expected)
    assert main([*arguments, "--uncapped", str(uncapped)]) == 0
    out = capsys.readouterr().out
    assert "divopd, no cap, own run" in out
    bound = without["vanilla"]["utilization"]["unreachable"]
    assert f"no composer below {bound:.1%}" in " ".join(out.split())
    assert f"{bound:.1%}" != f"{expected.unreachable:.1%}"


@pytest.mark.parametrize(("method", "cap"), [("divopd", 4), ("divopd-base", None)])
def test_another_run_is_not_taken_for_an_uncapped_one(tmp_path: Path, method: str, cap: int | None) -> None:
    run = uncapped_run(tmp_path / "run", method, cap=cap)
    with pytest.raises(InputError, match=f"a run of {method} with cap {cap or 'none'}; expected one of divopd without"):
        audit_uncapped(run)


@pytest.fixture(scope="module")
def small_run(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run of random models, eight updates with an evaluation every four."""
    pytest.importorskip("transformers", reason="for want of the extra train")
    from small_runs import config, train_small

    folder = tmp_path_factory.mktemp("audited") / "run"
    train_small(folder, config(models, learner={"updates": 8}, evaluation={"every": 4}))
    return folder


@pytest.mark.parametrize(
    "name", ["utilization", "selection", "retention", "stability", "geometry", "cost", "time", "kinds"]
)
def test_a_run_is_audited(name: str, small_run: Path, capsys: pytest.CaptureFixture) -> None:
    """Every audit works on a run and leaves its files in the run's folder."""
    pytest.importorskip("matplotlib", reason="for want of the extra plots")
    assert main(["audit", name, str(small_run)]) == 0
    assert "run" in capsys.readouterr().out
    assert (small_run / "audits" / f"{name}.json").is_file()
    assert (small_run / "audits" / f"{name}.png").stat().st_size > 10_000


def test_kinds_of_tasks_add_up(small_run: Path) -> None:
    """Shares of turns and rows sum to one; kinds are those of the evaluation; every rollout is counted once."""
    kinds = audit_kinds(small_run)
    assert sum(kind.arrived for kind in kinds.values()) == pytest.approx(1)
    assert sum(kind.trained for kind in kinds.values()) == pytest.approx(1)
    assert any(kind.success_rate is not None for kind in kinds.values())
    with Store.open_read_only(small_run) as store:
        assert sum(kind.rollouts for kind in kinds.values()) == len({turn.rollout for turn in store.stored_turns()})


def test_the_cost_of_a_run_adds_up(small_run: Path) -> None:
    """Scored tokens by fate sum to all; the learner's two kinds of seconds to the clock; explorers have theirs."""
    audit = audit_cost(small_run)
    assert sum(audit.scored_by_fate.values()) == audit.scored_tokens
    assert audit.scored_by_fate["trained"] + audit.scored_by_fate["dead"] == audit.trained_tokens
    assert audit.learner_s + audit.waited_s == pytest.approx(audit.elapsed_s)
    assert audit.explorer_s is not None
    assert audit.explorer_s > audit.learner_s / 10
    assert 0 <= audit.never_trained_share < 1


def test_dead_rows_cost_and_are_not_trained(tmp_path: Path) -> None:
    """Vanilla's dead rows are whole rows of an update's cost; the ratio of scored to trained counts valid tokens."""
    run = make_run(tmp_path / "run", method="vanilla")
    with Store.open_read_only(run) as store:
        turns = list(store.stored_turns())
    rows = [turn for turn in turns if turn.fate.kind == "trained"]
    dead = [turn for turn in rows if turn.reason is not None]
    assert dead
    audit = audit_cost(run)
    assert audit.scored_by_fate["dead"] == sum(turn.tokens for turn in dead)
    assert audit.scored_by_fate["trained"] == sum(turn.tokens for turn in rows) - sum(turn.tokens for turn in dead)
    assert audit.trained_tokens == sum(turn.tokens for turn in rows)
    scored, trained = (sum(turn.valid_tokens for turn in some) for some in (turns, rows))
    assert audit.scored_per_trained == pytest.approx(scored / trained)
    assert audit.never_trained_share == pytest.approx(1 - trained / scored)
    [kind] = audit_kinds(run).values()
    assert kind.used == len({t.rollout for t in rows if t.reason is None}) / kind.rollouts
    assert kind.used < len({turn.rollout for turn in rows}) / kind.rollouts


def test_on_the_virtual_clock_an_update_takes_what_its_tokens_cost(small_run: Path) -> None:
    """Seconds lie on the line of `costs`, one second and 2e-5 a token; updates and waits make up the whole clock."""
    audit = audit_time(small_run)
    assert audit.correlation == pytest.approx(1)
    assert audit.step_s == [pytest.approx(1 + 2e-5 * tokens) for tokens in audit.tokens]
    assert audit.constant_share == pytest.approx(1 / fmean(audit.step_s))
    assert audit.estimate_s == pytest.approx(audit.elapsed_s)
    assert set(audit.stages_s) == {"pack", "forward", "backward", "step"}
    assert audit.measured_correlation is not None


def test_seconds_are_compared_with_tokens_and_with_the_clock() -> None:
    """Three updates by hand: 6, 12 and 9 seconds for 100, 300 and 200 tokens, and 9 of 39 seconds are neither."""
    base = make_update_record(0)
    assert base.learner is not None
    made = [
        replace(
            base,
            update=update,
            elapsed_s=13.0 * (update + 1),
            waited_s=1.0,
            batch=replace(base.batch, tokens=tokens),
            learner=replace(base.learner, seconds={"forward": forward, "backward": 0.5}),
            spent=replace(base.spent, learner_s=learner_s),
        )
        for update, (tokens, learner_s, forward) in enumerate(((100, 6.0, 0.3), (300, 18.0, 0.2), (200, 27.0, 0.1)))
    ]
    audit = time_of(made)
    assert (audit.tokens, audit.step_s) == ([100, 300, 200], [6.0, 12.0, 9.0])
    assert audit.correlation == pytest.approx(1)
    assert audit.measured_correlation == pytest.approx(-0.5)
    assert audit.constant_share == pytest.approx(3 / 9)
    assert (audit.estimate_s, audit.elapsed_s) == (30.0, 39.0)
    assert audit.difference == pytest.approx(-9 / 39)
    assert audit.stages_s == {"forward": pytest.approx(0.6), "backward": pytest.approx(1.5)}
    assert time_of([base, replace(base, update=1)]).correlation is None  # equally many tokens tell nothing


def test_nothing_has_changed_at_lag_zero(small_run: Path) -> None:
    """Recomputed with the weights that generated them, disagreements are the cached ones: same ranks, same turns."""
    from divopd.audits.stability import audit_stability

    zero, one = audit_stability(load_subject(small_run), lags=(0, 2)).lags
    assert zero.spearman == pytest.approx(1, abs=1e-3)
    assert zero.probability_gap < 1e-5
    assert one.probability_gap > 10 * zero.probability_gap


def test_the_oracle_projects_furthest(small_run: Path) -> None:
    """In its own sketch no selection of as many turns beats the oracle; base's expectation is a mean over draws."""
    from divopd.audits.geometry import EXPECTED_BASE, LINEUP, ORACLE, audit_geometry

    audit = audit_geometry(load_subject(small_run), updates=3)
    assert [one.update for one in audit.updates] == [5, 6, 7]
    for one in audit.updates:
        for against in (one.composers, one.rollout_mean):
            best = against[ORACLE].projection
            assert all(against[name].projection <= best + 1e-4 for name in (*LINEUP, EXPECTED_BASE))
            assert -1.001 <= min(a.cosine for a in against.values()) <= 1.001
        assert 0 <= one.dropped_turns < 1
    assert any(one.composers["divopd"] != one.rollout_mean["divopd"] for one in audit.updates)
    assert audit.oracle_ratio >= 1
    assert 0 <= audit.swapped_pairs <= 15


def test_geometry_is_that_of_the_last_eight_updates(small_run: Path, models: Path, tmp_path: Path) -> None:
    """Not of the evaluated versions; a run without the weights before its last updates is refused with what it has."""
    from divopd.audits.geometry import audit_geometry
    from small_runs import config, train_small

    assert [one.update for one in audit_geometry(load_subject(small_run), size=4).updates] == list(range(8))
    train_small(tmp_path / "run", config(models, learner={"updates": 3}, audits={"keep_last": 1}))
    assert [one.update for one in audit_geometry(load_subject(tmp_path / "run"), updates=2, size=4).updates] == [2]
    train_small(tmp_path / "none", config(models, learner={"updates": 3}, audits={"keep_last": 0}))
    with pytest.raises(InputError, match=r"last 2 updates .* versions 0, 3, .* audits\.keep_last"):
        audit_geometry(load_subject(tmp_path / "none"), updates=2, size=4)


def test_the_kept_weights_are_those_from_which_the_updates_started(small_run: Path) -> None:
    """The gradient of every journalled batch at the kept weights has the norm that the learner recorded."""
    from divopd.audits.run_policy import RunPolicy
    from divopd.learner.torch_learner import TorchLearner

    policy = RunPolicy(small_run)
    with Store.open_read_only(small_run) as store:
        for update, record in store.update_records().items():
            student, batch = policy.at(update), store.batch(update)
            figures = TorchLearner(student).gradient(batch.turns, batch.weights)
            assert record.learner is not None
            assert figures.gradient_norm == pytest.approx(record.learner.gradient_norm, rel=1e-4)


def test_the_expectation_of_base_is_the_mean_of_its_draws() -> None:
    """Over many seeds the mean gradient of divopd-base comes to Σ n_r/B ḡ_r (the paper's coverage identity)."""
    torch = pytest.importorskip("torch", reason="for want of the extra train")
    from divopd.audits.geometry import expected_base
    from divopd.composers import candidate_of
    from divopd.methods import make_composer

    sizes = {"a": 5, "b": 2, "c": 3}
    turns = [
        make_turn(name, turn, score=float(turn), success=True) for name, size in sizes.items() for turn in range(size)
    ]
    pool = [candidate_of(turn, first_seen=0) for turn in turns]
    gradients = torch.randn(len(pool), 6, generator=torch.Generator().manual_seed(0))
    row = {c.key: place for place, c in enumerate(pool)}
    means = []
    for seed in range(400):
        composer = make_composer("divopd-base", batch_size=6, cap=2, seed=seed)
        selected = composer.decide(pool, update=0).selected
        means.append(gradients[[row[c.key] for c in selected]].mean(0))
    draws = torch.stack(means)
    error = draws.std(0) / 400**0.5
    assert torch.all((draws.mean(0) - expected_base(pool, selected, gradients)).abs() < 4.5 * error)
