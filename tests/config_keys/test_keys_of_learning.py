"""Keys that decide what is learnt from turns, and when: composer, learner, costs."""

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from divopd.store import Store
from divopd.turns import Turn
from key_runs import Lab, Run, call, changing, checks

# ── composer ──────────────────────────────────────────────────────────────────────────────────────────────────────


@changing("composer.batch_size", "9")
def test_batches_have_so_many_rows(before: Run, after: Run) -> None:
    """With nine the learner waits for a third rollout."""
    for run, size in ((before, 6), (after, 9)):
        assert [figures["rows"] for figures in run.updates] == [size] * 3
        assert len(run.first_batch) == size


@changing("composer.pool_multiplier", "1")
def test_the_pool_has_so_many_batches(before: Run, after: Run) -> None:
    """Eight turns are there at the first update: a pool of four batches of six reads them all, one of one does not."""
    assert [run.updates[0]["turns_put"] - run.updates[0]["queued"] for run in (before, after)] == [8, 6]


@changing("composer.cap", "3")
def test_a_rollout_gives_so_many_turns_in_the_first_pass(before: Run, after: Run) -> None:
    """Then it is the next one's turn."""
    for run, cap in ((before, 2), (after, 3)):
        order = [rollout for rollout, _ in run.first_batch]
        assert next(n for n, rollout in enumerate(order) if rollout != order[0]) == cap


@changing("composer.max_staleness", "0")
def test_turns_of_older_versions_are_not_trained(before: Run, after: Run) -> None:
    """Before, turns of the version before are trained, and none is stale."""
    assert max(figures["age"] for figures in before.updates) > 0 == sum(figures["stale"] for figures in before.updates)
    assert max(figures["age"] for figures in after.updates) == 0 < sum(figures["stale"] for figures in after.updates)


@changing("composer.max_pending_age", "0", "explorer.rollouts_in_flight=6")
def test_turns_wait_for_so_many_updates(before: Run, after: Run) -> None:
    """With 0 a turn falls out at the second update that does not select it; with 8 nothing does so soon."""
    assert [figures["aged_out"] for figures in before.updates] == [0, 0, 0]
    assert after.updates[0]["aged_out"] == 0 < sum(figures["aged_out"] for figures in after.updates)


# ── learner ───────────────────────────────────────────────────────────────────────────────────────────────────────
# AdamW: w ← w - lr · weight_decay · w - lr · m / (√v + 1e-8), where m / √v is ±1 at the first update


@changing("learner.lr", "2e-3")
def test_a_doubled_learning_rate_doubles_the_first_step(before: Run, after: Run) -> None:
    """For every single weight."""
    for name, step in _steps(before, 0).items():
        torch.testing.assert_close(_steps(after, 0)[name], 2 * step, rtol=1e-3, atol=1e-6)


@changing("learner.warmup", "2")
def test_the_learning_rate_warms_up(before: Run, after: Run) -> None:
    """Over two updates: the first step is half of what it is without, for every weight, and the rates are told."""
    assert [figures["learner"]["lr"] for figures in before.updates] == [1e-3] * 3
    assert [figures["learner"]["lr"] for figures in after.updates] == [5e-4, 1e-3, 1e-3]
    for name, step in _steps(before, 0).items():
        torch.testing.assert_close(_steps(after, 0)[name], step / 2, rtol=1e-3, atol=1e-6)


@changing("learner.schedule", "linear")
def test_the_learning_rate_follows_a_schedule(before: Run, after: Run) -> None:
    """Down to nothing along a line: the first update is as without, then weights differ."""
    rates = [figures["learner"]["lr"] for figures in after.updates]
    assert rates == pytest.approx([1e-3, 2e-3 / 3, 1e-3 / 3])
    assert all(torch.equal(value, before.tensors(1)[name]) for name, value in after.tensors(1).items())
    assert any(not torch.equal(value, before.tensors(2)[name]) for name, value in after.tensors(2).items())


@changing("learner.betas", "[0.0, 0.0]")
def test_without_memory_every_step_has_the_same_size(before: Run, after: Run) -> None:
    """With both betas 0 the second step of a weight is ±lr, too; with others it depends on the first gradient."""
    for run, expected in ((before, False), (after, True)):
        sizes = torch.cat([_without_decay(run, 1)[name].flatten() for name in run.tensors(0)]).abs() / 1e-3
        close = ((sizes - 1).abs() < 0.01).float().mean()
        assert (close > 0.95) == expected
        assert (close < 0.5) != expected


@changing("learner.weight_decay", "100")
def test_weights_decay_by_their_own_size(before: Run, after: Run) -> None:
    """What is added to the first step is the learning rate times the decay times the weight."""
    for name, start in before.tensors(0).items():
        more = after.tensors(1)[name] - before.tensors(1)[name]
        torch.testing.assert_close(more, -1e-3 * (100 - 0.01) * start, rtol=1e-3, atol=1e-6)


@changing("learner.max_grad_norm", "1e-12")
def test_the_gradient_is_clipped(before: Run, after: Run) -> None:
    """A gradient far below AdamW's epsilon moves nothing; the norm that is told is the one before clipping."""
    largest = [max(float(step.abs().max()) for step in _without_decay(run, 0).values()) for run in (before, after)]
    assert largest[0] == pytest.approx(1e-3, rel=1e-2)
    assert largest[1] < 1e-6
    assert _gradient(after) == _gradient(before)


@changing("learner.beta", "2")
def test_beta_scales_the_advantage(before: Run, after: Run) -> None:
    """Loss and gradient of the first update grow by the same factor."""
    assert _gradient(after) == pytest.approx(2 * _gradient(before), rel=1e-4)
    assert after.updates[0]["learner"]["loss"] == pytest.approx(2 * before.updates[0]["learner"]["loss"], rel=1e-4)


@changing("learner.max_tokens", "1")
def test_the_learner_reads_so_many_tokens_at_once(before: Run, after: Run) -> None:
    """A rollout's turns are one sequence, and none is split: with the smallest bound each is read alone."""
    assert sum(one.training for one in before.passes.all) == 3
    assert sum(one.training for one in after.passes.all) == sum(figures["rollouts"] for figures in after.updates) > 3


@changing("learner.activations", "recompute")
def test_activations_are_computed_twice(before: Run, after: Run) -> None:
    """All layers but the head work again in the backward pass; what is learnt is the same."""
    once, twice = Counter(before.passes.layers_trained), Counter(after.passes.layers_trained)
    head = {name for name in once if twice[name] == once[name]}
    assert len(head) == 1
    assert all(twice[name] == 2 * once[name] for name in once.keys() - head)
    assert _gradient(after) == pytest.approx(_gradient(before), rel=1e-5)


@changing("learner.compute", "bfloat16")
def test_products_are_computed_in_bfloat16(before: Run, after: Run) -> None:
    """The learner's log probabilities are rounded then, the explorer's and the weights are not."""
    gaps = [run.updates[0]["learner"]["logprob_gap"]["mean"] for run in (before, after)]
    assert gaps[0] < 1e-5 < 1e-4 < gaps[1]
    assert {value.dtype for value in after.tensors(1).values()} == {torch.float32}
    assert after.rows[0] == before.rows[0]


@changing("learner.updates", "5")
def test_a_run_has_so_many_updates(before: Run, after: Run) -> None:
    """The last version is evaluated, and the terminal counts up to it."""
    for run, updates in ((before, 3), (after, 5)):
        assert [figures["update"] for figures in run.updates] == list(range(updates))
        assert max(run.evaluations) == updates
        assert f"update {updates}/{updates}" in run.said


@changing("learner.max_wait_s", "1.5", "explorer.rollouts_in_flight=1")
def test_the_learner_waits_so_long_for_a_whole_batch(before: Run, after: Run) -> None:
    """One rollout takes about a second: the first brings four rows of six, and the second comes too late."""
    assert before.updates[0]["rows"] == 6
    assert before.updates[0]["waited_s"] > 1.5
    assert after.updates[0]["rows"] == 4
    assert after.updates[0]["waited_s"] == pytest.approx(1.5)


@changing("learner.checkpoint_every", "3")
def test_checkpoints_are_made_every_so_many_updates(before: Run, after: Run) -> None:
    """And at the end."""
    kept = [sorted(folder.name for folder in (run.folder / "checkpoints").iterdir()) for run in (before, after)]
    assert kept == [["000001", "000002"], ["000002"]]


@changing("learner.keep_tokens", "false", "learner.checkpoint_every=1")
def test_tokens_that_no_resume_needs_are_forgotten(before: Run, after: Run) -> None:
    """After the last of three checkpoints those of update 0 and 1 are gone: the batches are the same, no recording."""
    with Store.open(before.folder) as one, Store.open(after.folder) as other:
        assert one.batch(2).turns == other.batch(2).turns
    assert call(["export", str(before.folder), str(before.folder / "turns.jsonl")])[0] == 0
    code, said = call(["export", str(after.folder), str(after.folder / "turns.jsonl")])
    assert (code, "its tokens were dropped when update 0 was settled" in said) == (2, True), said


@changing("audits.keep_last", "1", "evaluation.every=9", "learner.updates=5")
def test_the_weights_before_the_last_updates_are_kept(before: Run, after: Run) -> None:
    """Besides versions 0 and 5, which are evaluated: all, where eight are wanted; those before the last update."""
    kept = [sorted(int(folder.name) for folder in (run.folder / "weights").iterdir()) for run in (before, after)]
    assert kept == [[0, 1, 2, 3, 4, 5], [0, 4, 5]]
    assert after.tensors(4).keys() == before.tensors(4).keys()
    assert all(torch.equal(value, before.tensors(4)[name]) for name, value in after.tensors(4).items())


@changing("weights.keep", "2", "evaluation.every=1", "learner.updates=5", "audits.keep_last=0")
def test_the_weights_of_the_newest_evaluated_versions_are_kept(before: Run, after: Run) -> None:
    """All that were evaluated; two of them, and the last one, which nobody published after; the same weights."""
    kept = [sorted(int(folder.name) for folder in (run.folder / "weights").iterdir()) for run in (before, after)]
    assert kept == [[0, 1, 2, 3, 4, 5], [3, 4, 5]]
    assert all(torch.equal(value, before.tensors(4)[name]) for name, value in after.tensors(4).items())


# ── costs ─────────────────────────────────────────────────────────────────────────────────────────────────────────

COSTS: dict[str, Callable[[list[Turn]], int]] = {  # how often each is paid until the first update is over
    "costs.rollout_s": lambda turns: 1,
    "costs.environment_step_s": len,
    "costs.read_token_s": lambda turns: _tokens(turns[-1]),
    "costs.generated_token_s": lambda turns: sum(len(turn.response_ids) for turn in turns),
    "costs.scored_token_s": lambda turns: _tokens(turns[-1]),
    "costs.trained_token_s": lambda turns: sum(map(_tokens, turns)),
    "costs.update_s": lambda turns: 1,
}


@pytest.mark.parametrize("key", COSTS)
@checks(*COSTS)
def test_the_virtual_clock_counts_what_a_rollout_and_an_update_cost(lab: Lab, key: str) -> None:
    """One rollout at a time, which is a whole batch: the first update is over when both have been paid."""
    alone = ("method=vanilla", "explorer.rollouts_in_flight=1", "composer.batch_size=4", "learner.updates=1")
    before = lab.run(*alone)
    after = lab.run(*alone, f"{key}={before.config['costs'][key.removeprefix('costs.')] + 0.01}")
    first = after.begun[0]
    assert first == before.begun[0]
    seconds = [run.updates[0]["virtual_s"] for run in (before, after)]
    assert seconds[1] - seconds[0] == pytest.approx(0.01 * COSTS[key](first))


@checks("costs.jitter")
def test_jitter_moves_the_end_of_every_rollout_by_up_to_its_share(lab: Lab) -> None:
    """What is played stays the same; when it arrives does not, and two seeds are not moved alike."""
    moved = set()
    for seed in ("seed=0", "seed=1"):
        alone = (seed, "method=vanilla", "explorer.rollouts_in_flight=1", "composer.batch_size=4", "learner.updates=1")
        before, after = lab.run(*alone), lab.run(*alone, "costs.jitter=0.5")
        assert after.begun[0] == before.begun[0]
        moved.add(after.updates[0]["waited_s"] / before.updates[0]["waited_s"])
    assert all(0.5 <= share <= 1.5 and share != 1 for share in moved)
    assert len(moved) == 2


def _tokens(turn: Turn) -> int:
    return len(turn.prompt_ids) + len(turn.response_ids)


def _gradient(run: Run) -> float:
    return run.updates[0]["learner"]["gradient_norm"]


def _steps(run: Run, update: int) -> dict[str, Tensor]:
    """What an update added to each weight."""
    start, end = run.tensors(update), run.tensors(update + 1)
    return {name: end[name] - start[name] for name in start}


def _without_decay(run: Run, update: int) -> dict[str, Tensor]:
    """What an update added because of the gradient."""
    start = run.tensors(update)
    return {name: step + 1e-3 * 0.01 * start[name] for name, step in _steps(run, update).items()}
