"""What every learner does: the one that trains a model, and the one that tests of the loop hash with."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from divopd.errors import CheckpointError  # noqa: E402
from divopd.learner import Learner  # noqa: E402
from divopd.learner.torch_learner import TorchLearner  # noqa: E402
from divopd.models.optimization import Optimization  # noqa: E402
from divopd.models.transformers_policy import TransformersPolicy  # noqa: E402
from divopd.run.durable_folder import numbered_folders  # noqa: E402
from divopd.turns import Turn  # noqa: E402
from divopd.validity import valid_mask, why_invalid  # noqa: E402
from doubles.hashing_learner import HashingLearner  # noqa: E402
from token_rollouts import pool, tiny_model  # noqa: E402

MakeLearner = Callable[[], Learner]
STATE = {"version": 1, "world": {"elapsed_s": 0.1, "slots": [None, [1, 2]]}}


def torch_learner() -> TorchLearner:
    return TorchLearner(TransformersPolicy(tiny_model(torch.float32)), Optimization(lr=1e-3, max_tokens=200))


@pytest.fixture(params=[HashingLearner, torch_learner], ids=["hashing", "torch"])
def make(request: pytest.FixtureRequest) -> MakeLearner:
    return request.param


def batch(seed: int) -> list[Turn]:
    """One of the six is a dead row."""
    return pool(seed)[:6]


def ones(turns: Sequence[Turn]) -> list[float]:
    return [1.0] * len(turns)


def held(learner: Learner) -> dict[str, object]:
    """Its weights, so that they can be compared and stay as they are."""
    return {name: w.tolist() if isinstance(w, torch.Tensor) else w for name, w in learner.weights().items()}


def test_weights_change_with_updates_only(make: MakeLearner) -> None:
    learner = make()
    first = held(learner)
    assert first == held(learner)
    learner.update(batch(0), ones(batch(0)))
    assert first.keys() == held(learner).keys()
    assert first != held(learner)


def test_the_same_batches_give_the_same_weights(make: MakeLearner) -> None:
    """Other turns, other row weights or another order of batches give others."""
    ends = []
    for batches in ([0, 1], [0, 1], [1, 0], [0, 2]):
        learner = make()
        for seed in batches:
            learner.update(batch(seed), ones(batch(seed)))
        ends.append(held(learner))
    weighted = make()
    for seed in (0, 1):
        weighted.update(batch(seed), [1.0, 2.0, *ones(batch(seed))[2:]])
    ends.append(held(weighted))
    assert ends[0] == ends[1]
    assert all(ends[0] != other for other in ends[2:])


def test_figures_count_rows_and_tokens(make: MakeLearner) -> None:
    """An invalid turn is a row without a valid token; its tokens count all the same."""
    turns = [*batch(0), replace(batch(1)[0], teacher_logprobs=None)]
    alive = [turn for turn in turns if why_invalid(turn) is None]
    assert len(alive) == 5
    figures = make().update(turns, ones(turns))
    assert (figures.rows, figures.dead_rows) == (7, 2)
    assert figures.valid_tokens == sum(sum(valid_mask(turn)) for turn in alive)
    assert figures.tokens == sum(turn.tokens for turn in turns)
    assert 0 < figures.computed_tokens <= figures.tokens
    assert figures.gradient_norm > 0


def test_a_saved_learner_goes_on_as_if_it_had_never_stopped(make: MakeLearner, tmp_path: Path) -> None:
    """In another learner, whatever that one has learned before; the state comes back as it was given."""
    learner, other = make(), make()
    learner.update(batch(0), ones(batch(0)))
    learner.save(tmp_path, update=0, state=STATE).wait()
    saved = held(learner)
    learner.update(batch(1), ones(batch(1)))
    other.update(batch(2), ones(batch(2)))
    assert other.load(tmp_path / "000000") == STATE == json.loads(json.dumps(STATE))
    assert held(other) == saved
    other.update(batch(1), ones(batch(1)))
    assert held(other) == held(learner)


def test_updates_do_not_change_what_is_being_saved(make: MakeLearner, tmp_path: Path) -> None:
    """It is on its way to the disk while the learner trains on."""
    learner, other = make(), make()
    learner.update(batch(0), ones(batch(0)))
    saved = held(learner)
    saving = learner.save(tmp_path, update=0, state=STATE)
    for seed in (1, 2):
        learner.update(batch(seed), ones(batch(seed)))
    saving.wait()
    assert saving.done
    assert other.load(tmp_path / "000000") == STATE
    assert held(other) == saved != held(learner)
    other.update(batch(1), ones(batch(1)))
    other.update(batch(2), ones(batch(2)))
    assert held(other) == held(learner)


def test_the_two_newest_are_kept(make: MakeLearner, tmp_path: Path) -> None:
    """The loop relies on it: it forgets what only older ones would need."""
    learner = make()
    for update in range(4):
        learner.update(batch(update), ones(batch(update)))
        learner.save(tmp_path, update=update, state=STATE).wait()
    assert [folder.name for folder in numbered_folders(tmp_path)] == ["000002", "000003"]


def test_a_damaged_one_is_refused(make: MakeLearner, tmp_path: Path) -> None:
    """With a CheckpointError, and the learner is as it was."""
    learner = make()
    learner.save(tmp_path, update=0, state=STATE).wait()
    learner.update(batch(0), ones(batch(0)))
    before = held(learner)
    for file in (tmp_path / "000000").iterdir():
        content = file.read_bytes()
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(CheckpointError):
            learner.load(tmp_path / "000000")
        file.write_bytes(content)
    assert held(learner) == before
    learner.load(tmp_path / "000000")
