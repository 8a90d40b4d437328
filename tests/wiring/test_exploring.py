"""What explorers and teachers are told (tasks, prompts, weights, draws), and that rows are what they then did."""

from collections.abc import Sequence

import pytest
import torch
from transformers import LlamaForCausalLM

from divopd.turns import Turn
from recording_rooms import Room
from recording_teacher import some_logprobs
from wired_runs import WiredRuns, history
from word_model import END, WORDS, likelihood, load_model, logprobs

BOTH_CLOCKS = pytest.mark.parametrize("clock", ["simulated", "live"])
HELPED_LIVE = pytest.param("helped", "live", marks=pytest.mark.slow)  # seven processes: half a minute of a core
ADAPTIVE_AND_HELPED = pytest.mark.parametrize(
    ("name", "clock"), [("adaptive", "simulated"), ("adaptive", "live"), ("helped", "simulated"), HELPED_LIVE]
)
LIVE_IS_SLOW = pytest.mark.parametrize("clock", ["simulated", pytest.param("live", marks=pytest.mark.slow)])
CLOSE = 1e-4  # nats; an update moves log probabilities by much more


def gap(row: Sequence[float] | None, model: LlamaForCausalLM, turn: Turn) -> float:
    """The largest difference between the log probabilities in a row and those of a fresh pass."""
    fresh = logprobs(model, turn.prompt_ids, turn.response_ids).detach()
    return (fresh - torch.tensor(row, dtype=torch.float64)).abs().max().item()


@pytest.mark.parametrize(
    ("name", "clock"),
    [
        ("adaptive", "simulated"),
        ("adaptive", "live"),
        ("seldom", "simulated"),
        ("turning", "simulated"),
        pytest.param("turning", "live", marks=pytest.mark.slow),
    ],
)
def test_a_rows_version_is_that_of_the_weights_that_made_it(wired: WiredRuns, name: str, clock: str) -> None:
    """A fresh pass of the published weights of its version finds its log probabilities again; of others it does not."""
    run = wired.get(name, clock).run
    turns = run.turns()
    versions = {turn.version for turn in turns}
    assert len(versions) >= 3
    for version in versions:
        model = load_model(wired.student, run.weights(version))
        gaps: dict[int, list[float]] = {}
        for turn in turns:
            gaps.setdefault(turn.version, []).append(gap(turn.student_logprobs, model, turn))
        assert max(gaps.pop(version)) < CLOSE
        assert min(max(others) for others in gaps.values()) > 100 * CLOSE


def test_a_rollout_that_outlasts_its_weights_keeps_the_version_of_its_start(wired: WiredRuns) -> None:
    """On the live clock newer weights were there before its first turn: all of its rows are of those at its reset."""
    played = wired.get("adaptive", "live").played()
    assert any(one.published[-1] > one.published[0] for _, one in played)
    assert all(row.version <= one.published[0] for rows, one in played for row in rows)


@LIVE_IS_SLOW
def test_weights_change_within_a_rollout(wired: WiredRuns, clock: str) -> None:
    """Where versions go by turn, a rollout that outlasts its weights goes on with newer ones, never with older."""
    rollouts = wired.get("turning", clock).run.rollouts().values()
    versions = [[turn.version for turn in turns] for turns in rollouts]
    assert sum(len(set(one)) > 1 for one in versions) >= 2
    assert all(one == sorted(one) for one in versions)


def test_explorers_get_every_version_that_the_sync_interval_names(wired: WiredRuns) -> None:
    """Every second one here; at each moment the newest of them."""
    played = wired.get("seldom").played()
    assert {row.version for rows, _ in played for row in rows} == {0, 2, 4}
    assert all(row.version == one.published[0] // 2 * 2 for rows, one in played for row in rows)


@ADAPTIVE_AND_HELPED
def test_a_prompt_is_all_that_was_seen_and_said(wired: WiredRuns, name: str, clock: str) -> None:
    """Token by token: what the room said and the responses before, also those in which a teacher acted."""
    recorded = wired.get(name, clock)
    for rows, one in recorded.played():
        for row in rows:
            assert list(row.prompt_ids) == history(one, row.turn, limit=recorded.limit)
            assert not row.prompt_truncated


@pytest.mark.parametrize("name", ["still", "still vanilla"])
def test_a_prompt_that_does_not_fit_is_cut_and_said_to_be(wired: WiredRuns, name: str) -> None:
    """It keeps its end, its row is marked and has no token that counts, and the teacher is not asked about it."""
    recorded = wired.get(name)
    most = recorded.config["prompts"]["max_prompt_tokens"]
    seen = set()
    for rows, one in recorded.played():
        for row in rows:
            whole = history(one, row.turn, limit=recorded.limit)
            seen.add(row.prompt_truncated)
            assert row.prompt_truncated == (len(whole) > most)
            assert len(row.prompt_ids) <= most
            assert whole[-len(row.prompt_ids) :] == list(row.prompt_ids)
            assert any(row.action_mask or ()) != row.prompt_truncated
            assert (row.teacher_logprobs is None) == row.prompt_truncated
    assert seen == {False, True}


@pytest.mark.parametrize(("name", "alive"), [("still", True), ("still vanilla", False), ("focused", False)])
def test_only_methods_without_a_gate_train_dead_rows(wired: WiredRuns, name: str, alive: bool) -> None:
    """A gated method trains no row whose prompt was cut, and says that it is invalid."""
    run = wired.get(name).run
    dead = [sum(row.prompt_truncated for row in batch) for batch in run.batches()]
    assert [run.metrics("update")[update]["learner"]["dead_rows"] for update in range(len(dead))] == dead
    assert (sum(dead) == 0) == alive
    assert (run.fates()["invalid"] > 0) == alive


@BOTH_CLOCKS
def test_the_teacher_scores_the_tokens_of_the_student(wired: WiredRuns, clock: str) -> None:
    """The log probabilities of a row are the teacher's, of this response after this prompt."""
    teacher = load_model(wired.teacher)
    for row in wired.get("adaptive", clock).run.turns():
        assert gap(row.teacher_logprobs, teacher, row) < CLOSE


@LIVE_IS_SLOW
def test_a_teacher_behind_a_url_is_asked_for_exactly_the_rows(wired: WiredRuns, clock: str) -> None:
    """Every row with its prompt is (the beginning of) what it was asked, and its answers are what the rows hold."""
    recorded = wired.get("helped", clock)
    for rows in recorded.run.rollouts().values():
        for row in rows:
            ids = [*row.prompt_ids, *row.response_ids]
            assert any(asked[: len(ids)] == ids for asked in recorded.teacher.scored)
            assert row.teacher_logprobs == pytest.approx(some_logprobs(ids)[len(row.prompt_ids) :])


@pytest.mark.parametrize(("name", "clock"), [("still", "simulated"), ("adaptive", "live")])
def test_responses_end_by_themselves_or_at_their_limit(wired: WiredRuns, name: str, clock: str) -> None:
    """Shorter than explorer.max_response_tokens only with the stop token, which is part of the row."""
    recorded = wired.get(name, clock)
    responses = [row.response_ids for row in recorded.run.turns()]
    assert all(len(response) == recorded.limit or WORDS[response[-1]] == END for response in responses)
    assert min(map(len, responses)) < max(map(len, responses)) == recorded.limit


def test_training_samples_at_the_explorers_temperature(wired: WiredRuns) -> None:
    """Of several temperatures the configured one explains best what was said; log probabilities stay those at 1."""
    recorded = wired.get("still")
    student = load_model(wired.sharp)
    rows = [row for row in recorded.run.turns() if not row.prompt_truncated]
    said = {
        temperature: sum(likelihood(student, row.prompt_ids, row.response_ids, temperature) for row in rows)
        for temperature in (0.4, 0.7, 1.0, 1.5, 2.5)
    }
    assert max(said, key=said.__getitem__) == recorded.config["explorer"]["temperature"] == 1.5
    assert max(gap(row.student_logprobs, student, row) for row in rows) < CLOSE


@pytest.mark.parametrize(("name", "clock"), [("still", "simulated"), ("adaptive", "simulated"), ("adaptive", "live")])
def test_training_tasks_come_round_in_one_order(wired: WiredRuns, name: str, clock: str) -> None:
    """All tasks of the training split, none twice before all were there, and in every round the same order."""
    tasks = [one.task for one in wired.get(name, clock).run.asked("train")]
    every = Room.tasks("train")
    assert sorted(tasks[: len(every)]) == every
    assert tasks == (tasks[: len(every)] * len(tasks))[: len(tasks)]


def test_the_seed_alone_orders_the_training_tasks(wired: WiredRuns) -> None:
    """Two methods of a seed have one order; another seed has another; evaluations have the same one."""
    runs = {name: wired.get(name).run for name in ("still", "still vanilla", "still seeded")}
    rounds = {name: [one.task for one in run.asked("train")][:7] for name, run in runs.items()}
    assert rounds["still"] == rounds["still vanilla"] != rounds["still seeded"]
    assert sorted(rounds["still seeded"]) == Room.tasks("train")
    assert rounds["still"] != Room.tasks("train")
    held = {name: [one.task for one in run.asked("test")][:4] for name, run in runs.items()}
    assert list(held.values()) == [Room.tasks("test")[:4]] * 3


def test_a_rollouts_task_and_draws_depend_on_its_number_alone(wired: WiredRuns) -> None:
    """With weights that stay the same, two methods play the same rollouts; no two rollouts of a task are alike."""
    here, there = (wired.get(name).run.asked("train") for name in ("still", "still vanilla"))
    both = min(len(here), len(there))
    assert [(one.task, one.actions) for one in here[:both]] == [(one.task, one.actions) for one in there[:both]]
    assert both > 7
    assert len({str((one.task, one.actions)) for one in here}) == len(here)


def test_another_seed_gives_other_draws(wired: WiredRuns) -> None:
    """In training and in evaluation."""
    for split in ("train", "test"):
        here, there = (wired.get(name).run.asked(split)[:3] for name in ("still", "still seeded"))
        assert [one.actions for one in here] != [one.actions for one in there]
