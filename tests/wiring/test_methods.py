"""What a method promises of exploring: who acts, and how deep a rollout may go."""

import json
from pathlib import Path

import pytest

from divopd import METHODS
from divopd.cli import main
from divopd.store import Store
from divopd.turns import TeacherTurn
from recorded_run import settings, train
from recording_teacher import RecordingTeacher
from wired_runs import WiredRuns, history
from word_model import HELP, ids_of, said

BOTH_CLOCKS = pytest.mark.parametrize("clock", ["simulated", "live"])
HELPED_CLOCKS = pytest.mark.parametrize("clock", ["simulated", pytest.param("live", marks=pytest.mark.slow)])


@HELPED_CLOCKS
def test_the_teacher_acts_for_a_stuck_student_after_the_warm_up(wired: WiredRuns, clock: str) -> None:
    """After `patience` turns without progress and for `takeover` turns; in rollouts of older versions never."""
    helped = set()
    for rows, one in wired.get("helped", clock).played():
        who = [HELP if action == HELP else "student" for action in one.actions]
        helped.add(HELP in who)
        assert who == ["student", "student", HELP if rows[0].version >= 1 else "student", "student"]
    assert helped == {False, True}


@HELPED_CLOCKS
def test_a_turn_in_which_the_teacher_acted_is_no_row(wired: WiredRuns, clock: str) -> None:
    """It keeps its place among the turns: the rows of a helped rollout are those of the other ones."""
    for rows, one in wired.get("helped", clock).played():
        assert [row.turn for row in rows] == [turn for turn, action in enumerate(one.actions) if action != HELP]
        assert {row.rollout_turns for row in rows} == {4}


@HELPED_CLOCKS
def test_the_run_keeps_the_turns_of_the_teacher(wired: WiredRuns, clock: str) -> None:
    """With their numbers, what was answered and what the room then said; rollouts without help have none."""
    run = wired.get("helped", clock).run
    with Store.open_read_only(run.folder) as store:
        kept = {
            rows[0].rollout: store.teacher_turns(rows[0].rollout) for rows, _ in wired.get("helped", clock).played()
        }
    for rows, one in wired.get("helped", clock).played():
        acted = [turn for turn, action in enumerate(one.actions) if action == HELP]
        answer = tuple(ids_of("help <end>"))
        assert kept[rows[0].rollout] == tuple(TeacherTurn(turn, answer, HELP, one.texts[turn + 1]) for turn in acted)
    assert {len(turns) for turns in kept.values()} == {0, 1}


@HELPED_CLOCKS
def test_a_teacher_that_acts_is_asked_as_the_student_is(wired: WiredRuns, clock: str) -> None:
    """With the history of the rollout, the explorer's temperature and limit, and a seed of its own for every turn."""
    recorded = wired.get("helped", clock)
    histories = [history(one, 2, limit=recorded.limit) for one in recorded.run.asked("train") if HELP in one.actions]
    acted = [request for request in recorded.teacher.acted if len(request["prompt"]) > 2]  # the preflight's is empty
    assert all(request["prompt"] in histories for request in acted)
    assert len(acted) >= len(histories) > 0
    assert {(request["temperature"], request["max_tokens"]) for request in acted} == {(0.7, recorded.limit)}
    assert len({request["seed"] for request in acted}) == len(acted)


@HELPED_CLOCKS
def test_the_teacher_never_acts_in_an_evaluation(wired: WiredRuns, clock: str) -> None:
    assert all(HELP not in one.actions for one in wired.get("helped", clock).run.asked("test"))


@BOTH_CLOCKS
def test_turnopd_has_no_recovery(wired: WiredRuns, clock: str) -> None:
    """Its students are stuck and nobody helps: every turn is a row."""
    for rows, one in wired.get("adaptive", clock).played():
        assert [row.turn for row in rows] == list(range(len(one.actions)))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_explores_and_composes_as_it_says(
    wired: WiredRuns, tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str
) -> None:
    """Only divopd-r lets the teacher of a stuck student act, only tcod-f2b cuts the first rollouts.

    A replay of the run with the configured composer makes the run's batches.
    """
    composer = {"batch_size": 6, "pool_multiplier": 3, "cap": 1, "max_staleness": 2, "max_pending_age": 0}
    changes = {"recovery": {"patience": 1, "takeover": 1}, "curriculum": {"growth": 99}, "composer": composer}
    changes |= {"learner": {"updates": 6}, "explorer": {"rollouts_in_flight": 6}}
    with RecordingTeacher(ids_of("help <end>")) as teacher:
        config = settings(wired.student, teacher=teacher.url, room="StuckRoom", method=method, seed=3, **changes)
        run = train(tmp_path / "run", config)
    assert run.code == 0
    asked = run.asked("train")
    early = [one for one in asked if one.published[0] < 3]  # turnopd looks for three versions before it cuts
    assert {len(one.actions) for one in early} == ({1} if method == "tcod-f2b" else {4})
    assert {one.actions.count(HELP) for one in asked} == ({1} if method == "divopd-r" else {0})
    capsys.readouterr()
    options = [f"--{name.replace('_', '-')}={value}" for name, value in composer.items()]
    assert main(["replay", str(run.folder), "--method", method, "--seed=3", "--json", *options]) == 0
    replayed = [json.loads(line)["selected"] for line in capsys.readouterr().out.splitlines()]
    assert replayed == [[list(row.key) for row in batch] for batch in run.batches()]


@pytest.mark.parametrize("clock", ["simulated", pytest.param("live", marks=pytest.mark.slow)])
def test_tcod_allows_a_turn_more_with_every_few_explorer_steps(wired: WiredRuns, clock: str) -> None:
    """min(1 + n // growth, horizon) turns, where n counts steps of 16 rollouts from 1 (specification §6.4).

    That is so whatever is in flight: here it is five rollouts.
    """
    recorded = wired.get("growing", clock)
    stored = len(recorded.run.rollouts())
    depths = [len(one.actions) for one in recorded.run.asked("train")]
    expected = [min(1 + (1 + number // 16) // 2, 3) for number in range(len(depths))]
    whole = len(depths) if clock == "simulated" else len(depths) - 5  # the last ones were in flight at the end
    assert depths[:whole] == expected[:whole]
    assert all(depth <= most for depth, most in zip(depths, expected, strict=True))
    assert min(whole, stored) > 48
    assert all(len(one.actions) == 3 for one in recorded.run.asked("test"))


@pytest.mark.parametrize("clock", ["simulated", pytest.param("live", marks=pytest.mark.slow)])
def test_tcod_b2f_begins_behind_ever_fewer_actions_of_the_expert(wired: WiredRuns, clock: str) -> None:
    """max(0, L - 1 - n // retreat) of the task's L expert actions are history, and what the student then says is rows.

    A task that the expert does not solve starts at its beginning. Rollouts go to the horizon; so do evaluations.
    """
    recorded = wired.get("retreating", clock)
    asked = recorded.run.asked("train")
    guides = [one for one in asked if set(one.actions) == {HELP} and len(one.actions) >= 4]
    assert {one.task: len(one.actions) for one in guides} == {f"train-{n}": 6 if n == 6 else 4 for n in range(7)}
    plays = [one for one in asked if one not in guides]
    rollouts = {int(name.lstrip("r")): rows for name, rows in recorded.run.rollouts().items()}
    seen = set()
    for number, rows in rollouts.items():
        one = plays[number]
        replayed = 0 if one.task == "train-6" else max(0, 4 - 1 - (1 + number // 4))
        seen.add(replayed)
        assert rows[0].task == one.task
        assert one.actions[:replayed] == [HELP] * replayed
        assert [row.turn for row in rows] == list(range(replayed, 6))
        assert [said(row.response_ids) for row in rows] == one.actions[replayed:]
        for row in rows:
            assert list(row.prompt_ids) == history(one, row.turn, limit=recorded.limit)
    assert seen == {2, 1, 0}
    assert all(HELP not in one.actions and len(one.actions) == 6 for one in recorded.run.asked("test"))


@BOTH_CLOCKS
def test_turnopd_cuts_rollouts_at_the_depth_of_its_probes(wired: WiredRuns, clock: str) -> None:
    """Probes of versions 0 to 2 end after two turns: so do later rollouts, which would go on, but those of version 8.

    In real time a probe may begin just when version 3 is published and then does not end: the depth may grow a little.
    """
    recorded = wired.get("adaptive", clock)
    horizon = recorded.config["environment"]["horizon"]
    depths: dict[int, set[int]] = {}
    for rows, one in recorded.played():
        if one.published[0] >= 3:
            depths.setdefault(rows[0].version, set()).add(len(one.actions))
    cut = set().union(*(found for version, found in depths.items() if version in (3, 4, 5, 6, 7)))
    if clock == "simulated":
        assert cut == {2}
        assert depths[8] == {horizon}
    else:
        assert cut
        assert max(cut) < horizon
