"""A regime is chosen by how batches are composed: recorded rollouts arrive again, cut and timed otherwise."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from divopd.config import load_config
from divopd.errors import InputError
from divopd.experiments.regimes import (
    PAPER,
    Library,
    Range,
    RecordedWorld,
    Tried,
    best_of,
    compose_recorded,
    cut,
    grid,
    search,
    try_regime,
)
from divopd.pipeline.begin import begin_run
from divopd.run.folder import RunFolder
from divopd.store import Store
from divopd.turns import Rollout
from strategies import turn

CONFIGS = Path(__file__).parents[2] / "configs" / "default"
QUICK = ("learner.updates=6", "composer.batch_size=8", "explorer.rollouts_in_flight=4", "learner.checkpoint_every=99")


def recorded(name: str, *, turns: int, version: int = 0, won: bool = True) -> Rollout:
    """A rollout whose prompts grow by ten tokens a turn."""
    rows = [
        turn(name, n, version=version, prompt_ids=[1] * (10 + 10 * n), success=won, rollout_turns=turns)
        for n in range(turns)
    ]
    return Rollout(name, tuple(rows))


def library() -> Library:
    return Library([recorded("short", turns=3), recorded("long", turns=12), recorded("later", turns=9, version=3)])


def test_a_recorded_rollout_is_cut_at_another_horizon_and_prompt_limit() -> None:
    rollout = cut(recorded("a", turns=6), name="b", version=2, horizon=4, max_prompt_tokens=25)
    assert [len(one.prompt_ids) for one in rollout.turns] == [10, 20, 25, 25]
    assert [one.prompt_truncated for one in rollout.turns] == [False, False, True, True]
    assert {(one.rollout, one.version, one.success, one.rollout_turns) for one in rollout.turns} == {("b", 2, False, 4)}


def test_one_that_fits_is_only_renamed() -> None:
    rollout = cut(recorded("a", turns=3), name="b", version=0, horizon=4, max_prompt_tokens=99)
    assert [one.prompt_truncated for one in rollout.turns] == [False] * 3
    assert rollout.turns[0].success is True


def test_rollouts_of_a_version_are_those_that_its_weights_played() -> None:

    taken = {
        version: {library().take(random.Random(n), version=version).id for n in range(20)} for version in (0, 2, 3)
    }
    assert taken == {0: {"short", "long"}, 2: {"short", "long"}, 3: {"later"}}


def test_an_empty_recording_is_refused() -> None:
    with pytest.raises(InputError, match="no rollout"):
        Library([])


def test_figures_follow_from_how_rollouts_arrive() -> None:
    """With a prompt limit some rows are dead; with twice the rollouts in flight more of them are never used."""
    some, more, dead = (
        compose_recorded(load_config(CONFIGS / "vanilla.yaml", [*QUICK, *others]), library())
        for others in ((), ("explorer.rollouts_in_flight=8",), ("prompts.max_prompt_tokens=60",))
    )
    assert some["dead_share"] == 0 < dead["dead_share"]
    assert some["never_selected"] < more["never_selected"]
    assert some["load"] < more["load"]


def test_a_batch_that_arrives_after_the_limit_is_trained() -> None:
    """The learner waits longer than it may, then nine turns come at once: they are looked at before it gives up."""
    late = ("explorer.rollouts_in_flight=1", "learner.max_wait_s=1", "costs.rollout_s=5", "learner.updates=2")
    config = load_config(CONFIGS / "vanilla.yaml", [*QUICK, *late])
    assert compose_recorded(config, Library([recorded("whole", turns=9)]))["dead_share"] == 0


class OrderedWorld(RecordedWorld):
    """Writes down when every rollout arrived."""

    def _arrive(self, number: int) -> None:
        self.moments = [*getattr(self, "moments", []), self.slots[number].ends_at]
        super()._arrive(number)


def test_rollouts_arrive_in_the_order_in_which_they_end(tmp_path: Path) -> None:
    """However much their times differ: none starts together with one that may end before it starts."""
    config = load_config(CONFIGS / "vanilla.yaml", [*QUICK, "costs.jitter=0.9", "explorer.rollouts_in_flight=12"])
    begin_run(config, tmp_path)
    with Store.open(tmp_path) as store:
        world = OrderedWorld(config, store, RunFolder(tmp_path), library())
        world._explore(until=60.0)
    assert len(world.moments) > 100
    assert world.moments == sorted(world.moments)


def test_a_trial_tells_what_is_outside_and_stops_where_it_cannot_win() -> None:
    ranges = {"vanilla": {"load": Range(100, 101)}, "divopd": {"never_selected": Range(0, 1)}}
    tried = try_regime(CONFIGS, QUICK, library(), seeds=[0], ranges=ranges)
    assert set(tried.distances) == {"vanilla load"}
    assert set(tried.figures) == {"vanilla", "divopd"}
    assert tried.distance == pytest.approx(100 - tried.figures["vanilla"]["load"], abs=1e-3)
    stopped = try_regime(CONFIGS, QUICK, library(), seeds=[0], ranges=ranges, limit=1)
    assert set(stopped.figures) == {"vanilla"}


def test_a_range_counts_in_its_own_width() -> None:
    assert [Range(2, 4).distance(value) for value in (1, 2, 3, 4, 7)] == [0.5, 0, 0, 0, 1.5]


def test_the_last_key_of_a_grid_changes_fastest() -> None:
    assert list(grid({"a": [1, 2], "b": [3, 4]})) == [("a=1", "b=3"), ("a=1", "b=4"), ("a=2", "b=3"), ("a=2", "b=4")]


def test_the_first_regime_inside_ends_the_search_and_else_the_nearest_counts() -> None:
    figures = {method: {"load": 1.0} for method in PAPER}

    def trials() -> Iterator[Tried]:
        yield Tried(("far",), figures, {"vanilla load": 2.0})
        yield Tried(("half",), {"vanilla": {"load": 1.0}}, {"vanilla load": 0.1})
        yield Tried(("near",), figures, {"vanilla load": 0.5, "divopd top1_share": 0.5})
        yield Tried(("inside",), figures, {})
        pytest.fail("the search went on")

    tried = list(search(trials()))
    assert [one.overrides for one in tried] == [("far",), ("half",), ("near",), ("inside",)]
    assert best_of(tried).overrides == ("inside",)
    assert best_of(tried[:3]).overrides == ("near",)
