"""What an evaluation is told: its tasks, its weights, its temperature, its draws."""

import pytest
import torch

from wired_runs import WiredRuns, history
from word_model import likelihood, load_model, response_of

HELPED_LIVE = pytest.param("helped", "live", marks=pytest.mark.slow)  # seven processes: half a minute of a core
ADAPTIVE_AND_HELPED = pytest.mark.parametrize(
    ("name", "clock"), [("adaptive", "simulated"), ("adaptive", "live"), ("helped", "simulated"), HELPED_LIVE]
)


@ADAPTIVE_AND_HELPED
def test_every_version_plays_the_first_tasks_of_the_evaluation_split(wired: WiredRuns, name: str, clock: str) -> None:
    """Each once, in order, each to the horizon; training never sees one of them, nor evaluation one of training."""
    recorded = wired.get(name, clock)
    horizon = recorded.config["environment"]["horizon"]
    assert sorted(recorded.evaluated()) == list(range(recorded.config["learner"]["updates"] + 1))
    for rollouts in recorded.evaluated().values():
        assert [one.task for one in rollouts] == ["test-0", "test-1", "test-2"]
        assert [len(one.actions) for one in rollouts] == [horizon] * 3


@pytest.mark.parametrize(
    ("name", "clock"),
    [
        ("adaptive", "simulated"),
        ("adaptive", "live"),
        ("helped", "simulated"),
        HELPED_LIVE,
        ("seldom", "simulated"),
    ],
)
def test_an_evaluation_plays_with_the_weights_of_its_version(wired: WiredRuns, name: str, clock: str) -> None:
    """At temperature 0 each word is the likeliest by the published weights, whatever explorers have and sample at."""
    recorded = wired.get(name, clock)
    played = recorded.evaluated()
    for version, rollouts in played.items():
        model = load_model(wired.student, recorded.run.weights(version))
        for one in rollouts:
            for turn, action in enumerate(one.actions):
                prompt = history(one, turn, limit=recorded.limit)
                response = response_of(action, limit=recorded.limit)
                logits = model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
                assert logits.argmax(-1).tolist() == response
    spoken = {tuple(tuple(one.actions) for one in rollouts) for rollouts in played.values()}
    assert len(spoken) > 1, "all versions speak alike, so that this test could not tell them apart"


def test_an_evaluation_samples_at_its_own_temperature(wired: WiredRuns) -> None:
    """Of several temperatures the configured one explains best what was said."""
    recorded = wired.get("still")
    student, most = load_model(wired.sharp), recorded.config["prompts"]["max_prompt_tokens"]
    said = dict.fromkeys((0.2, 0.4, 0.7, 1.0, 1.5), 0.0)
    for one in recorded.evaluated()[0]:
        for turn, action in enumerate(one.actions):
            prompt, response = history(one, turn, limit=recorded.limit), response_of(action, limit=recorded.limit)
            for temperature in said if len(prompt) <= most else ():
                said[temperature] += likelihood(student, prompt, response, temperature)
    assert max(said, key=said.__getitem__) == recorded.config["evaluation"]["temperature"] == 0.4


def test_every_evaluation_has_the_same_draws(wired: WiredRuns) -> None:
    """With weights that stay the same, every version plays the same rollouts; those of two tasks differ."""
    first, *later = wired.get("still").evaluated().values()
    assert len(later) == 6
    assert all([one.actions for one in rollouts] == [one.actions for one in first] for rollouts in later)
    assert len({tuple(one.actions) for one in first}) == len(first)


@pytest.mark.slow
def test_the_explorers_engine_examines_as_an_engine_of_its_own(wired: WiredRuns) -> None:
    """The same weights and seed: the same answers, task by task; training rollouts beside them are as without them."""
    shared, apart = wired.get("shared", "live"), wired.get("apart", "live")
    assert sorted(shared.evaluated()) == sorted(apart.evaluated()) == [0, 1, 2, 3]
    for version, rollouts in shared.evaluated().items():
        assert [one.actions for one in rollouts] == [one.actions for one in apart.evaluated()[version]]
    here, there = (one.run.asked("train") for one in (shared, apart))
    both = min(len(here), len(there)) - 2  # the last ones are cut off in the middle
    assert [(one.task, one.actions) for one in here[:both]] == [(one.task, one.actions) for one in there[:both]]
    assert both > 2


def test_an_evaluation_tells_what_its_rollouts_came_to(wired: WiredRuns) -> None:
    """Success rate and turns are those that the rooms saw."""
    recorded = wired.get("still")
    for version, rollouts in recorded.evaluated().items():
        figures = recorded.run.metrics("evaluation")[version]
        won = [one.actions[-1].startswith("win") for one in rollouts]
        assert figures["success_rate"] == pytest.approx(100 * sum(won) / len(won))
        assert figures["tasks"] == len(rollouts) == recorded.config["evaluation"]["tasks"]
        assert figures["turns"] == pytest.approx(sum(len(one.actions) for one in rollouts) / len(rollouts))
