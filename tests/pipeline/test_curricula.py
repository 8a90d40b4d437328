"""Curricula: where training rollouts begin, how deep they go, and what the expert does in a task."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from divopd.curricula import AdaptedDepth, Depths, GrowingDepth, Outcome, RetreatingStart, is_probe, outcome_of
from divopd.environments import Observation, expert_actions, make_environment
from divopd.errors import EnvironmentFailure
from divopd.models.model_files import load_tokenizer
from divopd.pipeline.rollouts import ATTEMPTS, TrainingRollouts
from divopd.prompts import Codec
from divopd.turns import Rollout, Turn
from small_runs import config


def test_retreating_start() -> None:
    """TCOD-B2F: max(0, L - 1 - n // η) of L expert actions at explorer step n, counted from 1; the depth is free."""
    one_by_one = RetreatingStart(Depths(horizon=9, rollouts_per_step=1, retreat=5))
    replayed = [one_by_one.replayed(step - 1, expert_actions=4) for step in (1, 4, 5, 9, 10, 14, 15, 99)]
    assert replayed == [3, 3, 2, 2, 1, 1, 0, 0]
    assert [one_by_one.replayed(0, expert_actions=length) for length in (0, 1, 2, 8)] == [0, 0, 1, 7]
    assert one_by_one.depth(0, version=0) == 9
    sixteen = RetreatingStart(Depths(horizon=9, retreat=1))
    assert [sixteen.replayed(number, expert_actions=4) for number in (0, 15, 16, 31, 32)] == [2, 2, 1, 1, 0]


class Stairs:
    """As many steps up as the task's number says; the task "pit" ends at the second step without success."""

    def reset(self, task: str) -> Observation:
        self.task, self.place = task, 0
        return Observation("bottom")

    def step(self, action: str) -> Observation:
        self.place += action == "up"
        if self.task == "pit":
            return Observation("fallen", done=self.place == 2)
        top = self.place == int(self.task)
        return Observation("step", done=top, success=top)


class Climber:
    """Goes up."""

    def reset(self, observation: Observation) -> None:
        assert observation.text == "bottom"

    def act(self, observation: Observation) -> str:
        return "up"

    def took(self, action: str) -> None:
        raise AssertionError("nobody else acts")


def test_expert_actions_lead_to_success_or_are_none() -> None:
    """A task that the expert does not solve, or not within the horizon, has no expert actions."""
    plans = [expert_actions(Stairs(), Climber(), task, horizon=3) for task in ("1", "3", "4", "pit")]
    assert plans == [("up",), ("up",) * 3, (), ()]


def test_growing_depth() -> None:
    """TCOD-F2B: min(1 + n // η, horizon) at explorer step n, counted from 1."""
    one_by_one = GrowingDepth(Depths(horizon=4, rollouts_per_step=1, growth=6))
    depths = [one_by_one.depth(step - 1, version=99) for step in (1, 5, 6, 12, 17, 18, 99)]
    assert depths == [1, 1, 2, 3, 3, 4, 4]
    ten_at_once = GrowingDepth(Depths(horizon=4, rollouts_per_step=10, growth=2))
    assert [ten_at_once.depth(number, version=0) for number in (0, 9, 10, 29, 30)] == [1, 1, 2, 2, 3]


def probes(
    count: int, gaps: Sequence[float], *, version: int = 0, success: bool = False, tokens: int = 1
) -> list[Outcome]:
    """So many rollouts of one version whose turns have these disagreements, each over so many valid tokens."""
    return [Outcome(1, version, success, tuple((gap, tokens) for gap in gaps))] * count


def adapted_depth(outcomes: list[Outcome], *, horizon: int = 30, version: int = 3) -> int:
    """The depth that TurnOPD allows after these outcomes."""
    curriculum = AdaptedDepth(Depths(horizon=horizon))
    for outcome in outcomes:
        curriculum.observe(outcome)
    return curriculum.depth(0, version=version)


def test_rollouts_of_some_versions_are_probes() -> None:
    """They go to the horizon, and only what they show counts; without them all rollouts do."""
    assert [version for version in range(20) if is_probe(version)] == [0, 1, 2, 8, 16]
    assert adapted_depth([]) == 30
    early = probes(10, [9.0, 0.0, 0.0, 0.0])
    assert adapted_depth(early) == 2
    assert adapted_depth(early, version=8) == 30
    assert adapted_depth(probes(10, [9.0, 0.0], version=5)) == 30


def test_the_depth_follows_where_the_disagreement_per_token_lies() -> None:
    """H_eff = round(Σ t p_t); K_t is per token: a long turn of little disagreement per token weighs little."""
    assert adapted_depth(probes(10, [0.0] * 19 + [5.0])) == 20
    assert adapted_depth(probes(10, [1.0, 1.0, 1.0, 1.0, 1.0])) == 3
    assert adapted_depth(probes(10, [0.0] * 19 + [5.0]), horizon=10) == 10
    assert adapted_depth(probes(10, [-1.0] * 9)) == 2  # K_t below 0 has no mass
    # turn 0: 8 nats over 1 token, turn 4: 8 nats over 8 tokens; by turn it would be round(4 / 2) + 1 = 3
    uneven = [Outcome(1, 0, False, ((8.0, 1), (0.0, 1), (0.0, 1), (0.0, 1), (8.0, 8)))] * 2
    assert adapted_depth(uneven) == 2
    # a quotient of sums, not a mean of quotients: (0 + 9) / (1 + 9) at turn 4 and 1 at turn 0, so 4 · 0.9 / 1.9 = 1.9
    start = ((1.0, 1), (0.0, 1), (0.0, 1), (0.0, 1))
    mixed = [Outcome(1, 0, False, (*start, last)) for last in ((0.0, 1), (9.0, 9))]
    assert adapted_depth(mixed) == 2 + 1


def test_a_depth_counts_by_the_probes_that_get_there() -> None:
    """a_t / a_0 scales a turn number, and one that a single probe has does not count at all."""
    long, short = probes(1, [1.0] * 9), probes(9, [1.0])
    assert adapted_depth([*long, *short]) == 2
    # two of ten get to turns 1 to 8: mass 1 at turn 0, 0.2 at each of the others: 0.2 · 36 / 2.6 = 2.77
    assert adapted_depth([*long, *long, *short[:8]]) == 3 + 1
    assert adapted_depth(long) == 30  # a single probe tells nothing


def test_the_depth_covers_the_successes_if_there_are_enough() -> None:
    """H_cov: the 0.80 quantile of the last turn numbers of at least 8 successful probes; else what it was before."""
    won = [probe for last in range(1, 11) for probe in probes(1, [1.0] + [0.0] * last, success=True)]
    assert adapted_depth(won) == 8 + 1  # the eighth of ten
    lost = probes(10, [1.0] + [0.0] * 20)
    assert adapted_depth([*won, *lost]) == 8 + 1
    assert adapted_depth([*won[3:], *lost]) == 2  # seven successes: left out until there is a first value
    few = [outcome._replace(version=1) for outcome in [*won[:3], *lost]]
    assert adapted_depth([*won, *few]) == 8 + 1  # three successes of version 1 change nothing: 0.7 · 8 + 0.3 · 8


def test_the_depth_is_smoothed_over_probing_versions() -> None:
    """H̄ starts at its first value; then 0.7 · 19 + 0.3 · 3 = 14.2."""
    late, early = probes(10, [0.0] * 19 + [5.0]), probes(10, [0.0] * 3 + [5.0], version=8)
    assert adapted_depth([*late, *early]) == 14 + 1
    assert adapted_depth([*early, *late]) == 14 + 1  # by version, in whatever order they arrive


@pytest.mark.parametrize("crumbles", [0, ATTEMPTS - 1, ATTEMPTS])
def test_an_expert_plans_again_when_its_environment_breaks_off(models: Path, crumbles: int) -> None:
    """As often as a run bears it; then the failure is told, and not taken for a task without expert actions."""
    stairs = f"{Path(__file__).parents[1] / 'fragile_room.py'}:CrumblingStairs"
    settings = config(models, method="tcod-b2f", environment={"name": stairs, "horizon": 5, "workers": 0})
    rollouts = TrainingRollouts(settings, Codec(load_tokenizer(models / "student")))
    rooms = type(make_environment(stairs)._environment)  # type: ignore[attr-defined]  # the class that runs load
    rooms.crumbles = crumbles
    if crumbles < ATTEMPTS:
        assert rollouts.start(0, version=0).replayed == ("up", "up")
    else:
        with pytest.raises(EnvironmentFailure, match="a step crumbled"):
            rollouts.start(0, version=0)
    assert rooms.crumbles == 0


def test_an_outcome_has_what_counts_of_each_turn() -> None:
    """Disagreement and valid tokens of a turn; of one that cannot be trained nothing, though it was made."""
    valid = Turn(
        "r",
        0,
        task="t",
        version=3,
        prompt_ids=[5],
        response_ids=[6, 7],
        student_logprobs=[-1.0, -2.0],
        teacher_logprobs=[-2.0, -4.0],
        action_mask=[1, 1],
        success=True,
    )
    cut = replace(valid, turn=1, prompt_truncated=True)
    outcome = outcome_of(Rollout("r", (valid, cut)), number=9)
    assert outcome == Outcome(9, 3, success=True, turns=((3.0, 2), (0.0, 0)))
