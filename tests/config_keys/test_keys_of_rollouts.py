"""Keys that decide how rollouts are played: environment, prompts, explorer, recovery, curriculum, evaluation, seed."""

import os
from importlib.util import find_spec
from pathlib import Path
from shutil import copy
from typing import Any

import pytest

from divopd.models.model_files import load_tokenizer
from divopd.report.run_comparison import compare_runs
from divopd.report.runs import read_run
from divopd.turns import Turn
from key_runs import Lab, Play, Run, changing, checks
from recording_rooms import Room

# ── environment ───────────────────────────────────────────────────────────────────────────────────────────────────


@changing("environment.name", "$tests/coin_hunt.py:CoinHunt")
def test_another_environment_is_played(before: Run, after: Run) -> None:
    """Rollouts and evaluations have the tasks of the other environment, and its texts."""
    assert {turn.task[:6] for turn in before.rows} == {"train-"}
    assert all(turn.task.isdecimal() and "The coin is in" in after.prompt(turn) for turn in after.rows)
    assert not set(after.evaluations[0]["by_kind"]) & set(before.evaluations[0]["by_kind"])


@changing(
    "environment.settings",
    "{id: 'key_gym:Loud-v0'}",
    "environment.name=gym",
    "environment.settings={id: 'key_gym:Quiet-v0'}",
)
def test_the_environments_settings_reach_training_and_evaluation(before: Run, after: Run) -> None:
    """Training has seeds from 1,000 on, evaluation begins with 0, both in the environment that the setting names."""
    for run, name in ((before, "Quiet"), (after, "Loud")):
        assert {play.task.partition("-")[0] for play in run.plays} == {name}
        numbers = {int(play.task.partition("-")[2]) for play in run.plays}
        assert min(numbers) == 0
        assert max(numbers) >= 1_000


@changing("environment.train_split", "test")
def test_training_takes_its_tasks_from_the_split(before: Run, after: Run) -> None:
    """Evaluation keeps its own."""
    assert {_split(turn) for turn in before.rows} == {"train"}
    assert {_split(turn) for turn in after.rows} == {"test"}
    assert set(after.evaluations[0]["by_kind"]) == {"test"}


@changing("environment.evaluation_split", "train")
def test_evaluation_takes_its_tasks_from_the_split(before: Run, after: Run) -> None:
    """Training keeps its own."""
    assert {kind for figures in before.evaluations.values() for kind in figures["by_kind"]} == {"test"}
    assert {kind for figures in after.evaluations.values() for kind in figures["by_kind"]} == {"train"}
    assert {_split(turn) for turn in after.rows} == {"train"}


@changing("environment.horizon", "7")
def test_rollouts_and_evaluations_end_at_the_horizon(before: Run, after: Run) -> None:
    """In a room that never ends by itself, every rollout has exactly so many turns."""
    for run, horizon in ((before, 4), (after, 7)):
        assert {turn.rollout_turns for turn in run.rows} == {horizon}
        assert {figures["turns"] for figures in run.evaluations.values()} == {float(horizon)}


@changing("environment.workers", "2")
def test_environments_run_in_so_many_processes(before: Run, after: Run) -> None:
    """Without any, they are played here; what is played is the same."""
    here = str(os.getpid())
    assert {_process(play) for play in before.plays} == {here}
    assert len({_process(play) for play in after.explored} - {here}) == 2
    assert [turn.response_ids for turn in after.rows] == [turn.response_ids for turn in before.rows]


@changing("environment.timeout_s", "1", "environment.workers=1", "environment.name=$tests/recording_rooms.py:SlowRoom")
def test_a_step_that_takes_too_long_costs_its_rollout(before: Run, after: Run) -> None:
    """The first action of the run takes four seconds; a step may take one second, or two minutes."""
    assert "broke off" not in before.said
    assert "SlowRoom, step: step did not return within 1 s (environment.timeout_s)" in after.said


@checks("environment.max_broken")
def test_more_broken_rollouts_than_allowed_end_the_run(lab: Lab) -> None:
    """Every other rollout breaks off: half of the last 50 are allowed, unless the setting says otherwise."""
    fragile = "environment.name=$tests/fragile_room.py:FragileRoom"
    assert lab.run(fragile).code == 0
    ended = lab.run(fragile, "environment.max_broken=0")
    assert ended.code == 2
    assert " of the last " in ended.said
    assert "fell in" in ended.said


# ── environment: an agent program ─────────────────────────────────────────────────────────────────────────────────

PROGRAM = (
    "environment.name=program",
    "environment.command=[python3, $tests/key_agent.py, hello]",
    "environment.tasks={train: $tests/data/tasks.jsonl, test: $tests/data/tasks.jsonl}",
    "environment.tools=none",
    "learner.updates=1",  # a program is a process for each rollout
)


@changing("environment.command", "[python3, $tests/key_agent.py, goodbye]", *PROGRAM)
def test_the_command_is_started_for_every_rollout(before: Run, after: Run) -> None:
    """Its words stand in the prompts of its calls."""
    assert {before.prompt(turn).removeprefix("<|see|>")[:6] for turn in before.rows} == {"hello "}
    assert {after.prompt(turn).removeprefix("<|see|>")[:8] for turn in after.rows} == {"goodbye "}


@changing("environment.tasks", "{train: $tests/data/other_tasks.jsonl, test: $tests/data/tasks.jsonl}", *PROGRAM)
def test_tasks_come_from_the_file_of_their_split(before: Run, after: Run) -> None:
    """Training has those of the other file, evaluation keeps its own."""
    assert {turn.task for turn in before.rows} <= {"one", "two", "three"}
    assert {turn.task for turn in after.rows} <= {"red/1", "red/2"}
    assert set(before.evaluations[0]["by_kind"]) == set(after.evaluations[0]["by_kind"]) == {"all"}


@changing("environment.tools", "plain", *PROGRAM)
def test_tools_are_written_into_prompts_or_refused(before: Run, after: Run) -> None:
    """A program that is refused asks without them here: its prompts have no tool in them."""
    assert not any("Lifts." in before.prompt(turn) for turn in before.rows)
    assert all("Lifts." in after.prompt(turn) for turn in after.rows)


@checks("environment.tool_parser")
def test_calls_are_parsed_by_whom_the_key_names(lab: Lab) -> None:
    """Without vLLM its parsers are refused at the start; with it test_vllm_programs.py tells them apart."""
    if find_spec("vllm") is not None:
        pytest.skip("vLLM is installed")
    with_tools = [setting for setting in PROGRAM if not setting.startswith("environment.tools=")]
    refused = lab.run(*with_tools, "environment.tools=plain", "environment.tool_parser=vllm:hermes")
    assert refused.code == 2
    assert "environment.tool_parser is vllm:hermes, but vLLM's parsers cannot be imported here" in refused.said
    assert lab.run(*with_tools, "environment.tools=plain", "environment.tool_parser=auto").code == 0


@changing(
    "environment.undelivered", "train", *PROGRAM, "environment.command=[python3, $tests/key_agent.py, hello, deaf]"
)
def test_turns_whose_answers_nobody_heard_are_dropped_or_trained(before: Run, after: Run) -> None:
    """Every other answer finds its caller gone."""
    assert {turn.turn for turn in before.rows} == {0, 2}
    assert {turn.turn for turn in after.rows} == {0, 1, 2, 3}


# ── prompts ───────────────────────────────────────────────────────────────────────────────────────────────────────


@changing("prompts.system", "Open both doors.")
def test_the_system_text_begins_every_prompt(before: Run, after: Run) -> None:
    """It stands before the first observation."""
    assert not any("Open both doors." in before.prompt(turn) for turn in before.rows)
    assert all(after.prompt(turn).startswith("<|see|>Open both doors.<|see|>") for turn in after.rows)


@changing("prompts.history", "none")
def test_without_history_a_prompt_has_only_the_first_and_the_last_observation(before: Run, after: Run) -> None:
    """With full history a prompt is the one before, its response and more."""
    for first, second, third, _ in before.begun:
        assert _whole(second) == third.prompt_ids[: len(_whole(second))]
        assert _whole(first) == second.prompt_ids[: len(_whole(first))]
    for turns in after.begun:
        prompt, task = after.prompt(turns[3]), turns[0].task
        assert [f"{task} turn {n}" in prompt for n in range(4)] == [True, False, False, True]
        assert "(3 earlier actions are not shown)" in prompt


@changing("prompts.actions", "unlisted")
def test_allowed_actions_are_listed_or_not(before: Run, after: Run) -> None:
    """The room always tells them."""
    assert all("Allowed actions: left; right" in before.prompt(turn) for turn in before.rows)
    assert not any("Allowed actions" in after.prompt(turn) for turn in after.rows)


@changing("prompts.answer", "think", "prompts.system=''")
def test_an_answer_without_its_tags_is_no_action(before: Run, after: Run) -> None:
    """A student that does not know the form acts when bare words are actions, and never when tags are expected."""
    assert any(play.actions for play in before.plays)
    assert not any(play.actions for play in after.plays)
    assert "There was no action in the answer." in after.prompt(after.begun[0][1])


@checks("prompts.template")
def test_arguments_reach_the_chat_template(lab: Lab, models: Path, tmp_path: Path) -> None:
    """The student's template writes a mark where it is told to; an argument that it does not have is refused."""
    for file in (models / "student").iterdir():
        copy(file, tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    tokenizer.chat_template += "{%- if marked -%}{{ '<|pad|>' }}{%- endif -%}"
    tokenizer.save_pretrained(tmp_path)
    student = f"student.model={tmp_path}"
    plain, marked = lab.run(student), lab.run(student, "prompts.template={marked: true}")
    assert not any(plain.prompt(turn).endswith("<|act|><|pad|>") for turn in plain.rows)
    assert all(marked.prompt(turn).endswith("<|act|><|pad|>") for turn in marked.rows)
    assert marked.config["prompts"]["template"] == {"marked": True}
    refused = lab.run(student, "prompts.template={remarked: true}")
    assert refused.code != 0
    assert "prompts.template has remarked, which the student's chat template does not use" in refused.said


@checks("prompts.format")
def test_a_format_writes_every_prompt_as_its_teacher_knows_it(lab: Lab) -> None:
    """One message with the last steps, instead of a conversation; an environment without its words is refused."""
    here = ("environment={name: alfworld-small, horizon: 3}", "prompts={answer: think, actions: listed, history: 2}")
    plain, gigpo = lab.run(*here), lab.run(*here, "prompts.format=gigpo-alfworld")
    assert plain.code == gigpo.code == 0, gigpo.said
    for turns in gigpo.begun:
        words = [" ".join(gigpo.prompt(turn).split()) for turn in turns if not turn.prompt_truncated]
        assert [text.count("<|see|>") for text in words] == [1] * len(words)
        assert [f"already taken {n} step" in text for n, text in enumerate(words)] == [False, True, True][: len(words)]
    assert not any("already taken" in " ".join(plain.prompt(turn).split()) for turn in plain.rows)
    refused = lab.run("prompts={answer: think, history: 2}", "prompts.format=gigpo-alfworld")
    assert refused.code != 0
    assert "prompts.format is gigpo-alfworld, but the first observation" in refused.said


@changing("prompts.max_observation_chars", "5")
def test_long_observations_are_cut(before: Run, after: Run) -> None:
    """After the first five characters of `train-3 turn 0`, and of the list of actions."""
    assert not any("[…]" in before.prompt(turn) for turn in before.rows)
    assert after.prompt(after.begun[0][0]) == "<|see|>train […]\n\nAllowed actions: left; […]<|act|>"


@changing("prompts.max_prompt_tokens", "90", "method=vanilla")
def test_prompts_that_do_not_fit_are_cut_and_marked(before: Run, after: Run) -> None:
    """And only those: what was shorter before is as it was."""
    longest = {len(turns[0].prompt_ids) for turns in before.begun}
    assert max(longest) <= 90 < max(len(turn.prompt_ids) for turn in before.rows)
    assert not any(turn.prompt_truncated for turn in before.rows)
    assert all(len(turn.prompt_ids) <= 90 for turn in after.rows)
    cut = {turn.turn for turn in after.rows if turn.prompt_truncated}
    assert cut
    assert 0 not in cut


# ── explorer ──────────────────────────────────────────────────────────────────────────────────────────────────────


@changing("explorer.rollouts_in_flight", "5")
def test_as_many_rollouts_are_in_flight(before: Run, after: Run) -> None:
    """Each has an environment of its own; evaluations have others."""
    assert len({play.room for play in before.explored}) == 2
    assert len({play.room for play in after.explored}) == 5
    assert {play.room for play in before.evaluated}.isdisjoint(play.room for play in before.explored)


@changing("explorer.temperature", "0.05")
def test_a_lower_temperature_makes_likelier_responses(before: Run, after: Run) -> None:
    """In training only: the initial student is evaluated as before."""
    assert _mean_logprob(after) > _mean_logprob(before) + 0.2
    assert _actions(after.evaluated) == _actions(before.evaluated)


@changing("explorer.max_response_tokens", "6")
def test_responses_end_at_the_limit(before: Run, after: Run) -> None:
    """In an evaluation, too: there the same draws go on for longer."""
    for run, limit in ((before, 4), (after, 6)):
        assert max(len(turn.response_ids) for turn in run.rows) == limit
    short, long = (run.evaluated[0].actions[0] for run in (before, after))
    assert long.startswith(short)
    assert len(long) > len(short)


@changing("explorer.sync_interval", "2", "learner.updates=4")
def test_explorers_get_every_second_version(before: Run, after: Run) -> None:
    """A rollout's version is that of the weights which its explorer had."""
    assert {turn.version for turn in before.rows} == {0, 1, 2}
    assert {turn.version for turn in after.rows} == {0, 2}


@changing("explorer.versions", "turn", "costs.rollout_s=4", "costs.update_s=1.5", "learner.updates=5")
def test_weights_change_within_a_rollout(before: Run, after: Run) -> None:
    """A rollout takes more than two updates: it keeps the version of its start, or goes on with newer ones."""
    for run, most in ((before, 1), (after, 2)):
        versions = [[turn.version for turn in turns] for turns in run.begun]
        assert max(len(set(one)) for one in versions) >= most
        assert all(one == sorted(one) for one in versions)
    assert {len({turn.version for turn in turns}) for turns in before.begun} == {1}
    assert after.begun[0][0].response_ids == before.begun[0][0].response_ids


@changing("explorer.max_backlog", "6", "costs.update_s=5")
def test_explorers_pause_while_enough_turns_wait(before: Run, after: Run) -> None:
    """A rollout begins only while fewer than six wait, so at most those and the two in flight come together."""
    assert all(figures["queued"] > 6 + 2 * 4 for figures in before.updates)
    assert all(figures["queued"] < 6 + 2 * 4 for figures in after.updates)


# ── recovery ──────────────────────────────────────────────────────────────────────────────────────────────────────
# every action is invalid there, so the student is stuck from its first turn on; the teacher's turns are no rows

STUCK = ("method=divopd-r", "recovery.patience=2", "recovery.takeover=1", "composer.batch_size=4")


@changing("recovery.patience", "3", *STUCK)
def test_the_teacher_comes_when_patience_is_over(before: Run, after: Run) -> None:
    """After two turns without progress, or after three."""
    assert _student_turns(before) == {(0, 1, 3)}
    assert _student_turns(after) == {(0, 1, 2)}


@changing("recovery.takeover", "2", *STUCK)
def test_the_teacher_stays_for_so_many_turns(before: Run, after: Run) -> None:
    """For one turn, after which the student acts again, or for two, which end the rollout."""
    assert _student_turns(before) == {(0, 1, 3)}
    assert _student_turns(after) == {(0, 1)}


@changing(
    "recovery.until",
    "progress",
    *("method=divopd-r", "recovery.patience=2", "recovery.takeover=2", "composer.batch_size=4"),
    "environment.name=$tests/recording_rooms.py:JammedRoom",
)
def test_the_teacher_stays_for_its_budget_or_until_progress(before: Run, after: Run) -> None:
    """Its first action is progress: it acts in two turns all the same, or in one."""
    assert _student_turns(before) == {(0, 1)}
    assert _student_turns(after) == {(0, 1, 3)}


@changing("recovery.warmup", "1", *STUCK)
def test_the_teacher_does_not_come_before_the_warmup_is_over(before: Run, after: Run) -> None:
    """With a warm-up of one update, rollouts of version 0 are the student's alone."""
    by_version = {turns[0].version: _indices(turns) for turns in after.begun}
    assert by_version.pop(0) == (0, 1, 2, 3)
    assert set(by_version.values()) == {(0, 1, 3)} == _student_turns(before)


# ── curriculum ────────────────────────────────────────────────────────────────────────────────────────────────────


@changing("curriculum.growth", "1", "method=tcod-f2b", "explorer.rollouts_in_flight=5", "learner.updates=6")
def test_rollouts_grow_by_a_turn_every_so_many_explorer_steps(before: Run, after: Run) -> None:
    """An explorer step is sixteen rollouts; the first is step 1. Evaluations are as deep as ever."""
    steps = [[len(turns) for turns in after.begun[start : start + 16]] for start in (0, 16)]
    assert [set(lengths) for lengths in steps] == [{2}, {3}]
    assert {len(turns) for turns in before.begun[:32]} == {1}
    assert after.evaluations[0]["turns"] == 4


@changing("curriculum.rollouts_per_step", "3", "method=tcod-f2b", "curriculum.growth=1")
def test_an_explorer_step_is_so_many_rollouts_whatever_is_in_flight(before: Run, after: Run) -> None:
    """Two are in flight; a step is sixteen rollouts unless it is said."""
    assert {len(turns) for turns in before.begun} == {2}
    assert [len(turns) for turns in after.begun[:7]] == [2, 2, 2, 3, 3, 3, 4]


GUIDED = ("environment.name=$tests/recording_rooms.py:GuidedRoom", "environment.horizon=6", "method=tcod-b2f")


@changing("curriculum.retreat", "1", *GUIDED, "curriculum.rollouts_per_step=1", "learner.updates=4")
def test_one_expert_action_less_is_replayed_every_so_many_explorer_steps(before: Run, after: Run) -> None:
    """Of the expert's four actions, three less what the steps since the first took off: rows begin behind them."""
    for run, replayed in ((before, [3, 3, 3, 3, 2]), (after, [2, 1, 0, 0, 0])):
        begun = zip(run.begun, replayed, strict=False)  # the expert does not solve train-6
        assert all(turns[0].turn == (0 if turns[0].task == "train-6" else first) for turns, first in begun)


# ── evaluation ────────────────────────────────────────────────────────────────────────────────────────────────────


@changing("evaluation.every", "2")
def test_every_second_version_is_evaluated(before: Run, after: Run) -> None:
    """And the last one; nothing that is trained depends on it."""
    assert sorted(before.evaluations) == [0, 1, 2, 3]
    assert sorted(after.evaluations) == [0, 2, 3]
    assert _said(after.rows) == _said(before.rows)


@changing("evaluation.tasks", "3")
def test_the_first_so_many_tasks_are_evaluated(before: Run, after: Run) -> None:
    """In the order of the split, at every evaluation."""
    assert [play.task for play in before.evaluated] == ["test-0", "test-1"]
    assert [play.task for play in after.evaluated] == ["test-0", "test-1", "test-2"]
    assert {figures["tasks"] for figures in after.evaluations.values()} == {3}


@changing("evaluation.temperature", "0")
def test_only_evaluations_have_the_temperature_of_evaluations(before: Run, after: Run, lab: Lab) -> None:
    """At 0 the likeliest action is taken, whatever the seed; training samples as before."""
    other_seed = lab.run("evaluation.temperature=0", "seed=1")
    assert _actions(after.evaluated) == _actions(other_seed.evaluated) != _actions(before.evaluated)
    assert _actions(before.evaluated) != _actions(lab.run("seed=1").evaluated)
    assert _said(after.rows) == _said(before.rows)


@changing("evaluation.in_flight", "1")
def test_an_evaluation_plays_so_many_tasks_at_once(before: Run, after: Run) -> None:
    """Two tasks take two rooms at once or one after the other; what is done there is the same."""
    assert len({play.room for play in before.evaluated}) == 2
    assert len({play.room for play in after.evaluated}) == 1
    assert _actions(after.evaluated) == _actions(before.evaluated)


@changing("evaluation.target", "5")
def test_a_target_is_what_a_comparison_counts_cost_to(before: Run, after: Run) -> None:
    """It changes nothing of the run itself."""
    compared = [compare_runs([read_run(run.folder)]) for run in (before, after)]
    assert [one.target_origin for one in compared] == [
        f"from the peak of {before.folder.name}",
        "named by evaluation.target",
    ]
    assert compared[1].target == 5
    assert _said(after.rows) == _said(before.rows)


# ── seed ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@changing("seed", "1")
def test_another_seed_samples_other_responses(before: Run, after: Run) -> None:
    """In training and in evaluation."""
    assert _said(after.begun[0]) != _said(before.begun[0])
    assert _actions(after.evaluated) != _actions(before.evaluated)


@changing("seed", "1")
def test_another_seed_has_the_tasks_in_another_order(before: Run, after: Run) -> None:
    """The same tasks, and in evaluation the same order."""
    orders = [[play.task for play in run.explored[:7]] for run in (before, after)]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == Room.tasks("train")
    assert [play.task for play in after.evaluated] == [play.task for play in before.evaluated] == ["test-0", "test-1"]


@changing(
    "seed",
    "1",
    *("method=divopd-base", "explorer.temperature=0.000001"),
    "environment.name=$tests/recording_rooms.py:OneTaskRoom",
)
def test_another_seed_composes_other_batches(before: Run, after: Run) -> None:
    """Where tasks and responses do not depend on the seed, the draw of turns inside a rollout still does."""
    assert _said(after.begun[0]) == _said(before.begun[0])
    assert sorted(after.first_batch) != sorted(before.first_batch)


def _whole(turn: Turn) -> list[int]:
    return [*turn.prompt_ids, *turn.response_ids]


def _said(turns: list[Turn]) -> list[list[int]]:
    return [_whole(turn) for turn in turns]


def _process(play: Play) -> str:
    """The number of the process that held the environment."""
    return play.room.partition("/")[0]


def _split(turn: Turn) -> str:
    return turn.task.partition("-")[0]


def _mean_logprob(run: Run) -> float:
    """Of the tokens that the initial student sampled, at temperature 1."""
    values = [value for turn in run.rows if turn.version == 0 for value in turn.student_logprobs or ()]
    return sum(values) / len(values)


def _actions(plays: list[Any]) -> list[list[str]]:
    return [play.actions for play in plays]


def _indices(turns: list[Turn]) -> tuple[int, ...]:
    return tuple(turn.turn for turn in turns)


def _student_turns(run: Run) -> set[tuple[int, ...]]:
    """In which turns of its rollouts the student acted. All rollouts are four turns long."""
    assert {turn.rollout_turns for turn in run.rows} == {4}
    return {_indices(turns) for turns in run.begun}
