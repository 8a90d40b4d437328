"""Curricula: where training rollouts begin, how deep they go, and what the expert does in a task."""

from divopd.curricula import AdaptedDepth, Depths, GrowingDepth, Outcome, RetreatingStart, is_probe
from divopd.environments import Observation, expert_actions


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


def adapted_depth(outcomes: list[Outcome], *, horizon: int, version: int = 3) -> int:
    """The depth that TurnOPD allows after these outcomes."""
    curriculum = AdaptedDepth(Depths(horizon=horizon, rollouts_per_step=1, growth=6))
    for outcome in outcomes:
        curriculum.observe(outcome)
    return curriculum.depth(0, version=version)


def test_adapted_depth() -> None:
    """TurnOPD: full depth without probes; then where the disagreement is, or where 80 % of the depths end."""
    assert [v for v in range(20) if is_probe(v)] == [0, 1, 2, 8, 16]
    assert adapted_depth([], horizon=30) == 30
    early = [Outcome(1, version=0, success=True, disagreements=(9.0,) + (0.0,) * 3)] * 10
    assert adapted_depth(early, horizon=30) == 3 + 1  # all successes end at depth 3
    assert adapted_depth(early, horizon=30, version=8) == 30  # a probe
    late = [Outcome(1, version=0, success=False, disagreements=(0.0,) * 19 + (5.0,))] * 10
    assert adapted_depth(late, horizon=30) == 20
    # H̄ = 0.7 · 19 + 0.3 · 3 = 14.2
    mixed = [*late, *(outcome._replace(version=8) for outcome in early)]
    assert adapted_depth(mixed, horizon=30) == 15
    assert adapted_depth(late, horizon=10) == 10
    no_probes = [outcome._replace(version=5) for outcome in early]
    assert adapted_depth([*late, *no_probes], horizon=30) == 20
