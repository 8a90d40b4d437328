"""Beginnings that several sequences share are read once, and nothing that is computed changes."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from divopd.learner.torch_learner import TorchLearner
from divopd.models.optimization import Optimization
from divopd.models.packing import Row, make_row, merge_rows
from divopd.models.transformers_policy import TransformersPolicy
from divopd.models.trees import Node, grow_trees, passes, single_nodes
from token_rollouts import gradient, own_copy, plain_gradient, plain_logprobs, pool, rollout, tiny_model

TOKENS = st.lists(st.sampled_from([1, 256, 65536]), min_size=2, max_size=9)
ROWS = st.lists(TOKENS.flatmap(lambda ids: st.tuples(st.just(ids), st.sets(st.integers(1, len(ids) - 1)))), max_size=12)


def paths(nodes: Iterable[Node], before: tuple[Node, ...] = ()) -> Iterator[tuple[Node, ...]]:
    """Every way from a root down to a node."""
    for node in nodes:
        yield (*before, node)
        yield from paths(node.children, (*before, node))


@given(ROWS, st.integers(1, 4))
def test_every_scored_position_is_predicted_once_after_the_rows_own_tokens(
    drawn: list[tuple[list[int], set[int]]], least: int
) -> None:
    """Down the way to its node a row's tokens were read, all of them and no others, and its target is its token."""
    rows = [Row(np.array(ids), np.array(sorted(scored), dtype=np.int64)) for ids, scored in drawn]
    found: dict[int, list[int]] = {n: [] for n, row in enumerate(rows) if len(row.scored)}
    for path in paths(grow_trees(merge_rows(rows), rows, least=least)):
        read = np.concatenate([node.ids for node in path])
        assert path[-1].start == len(read) - path[-1].tokens
        targets = iter(path[-1].targets.tolist())
        for span in path[-1].spans:
            for at in span.scored.tolist():
                assert path[-1].start < at <= len(read)
                assert read[:at].tolist() == rows[span.row].ids[:at].tolist()
                assert next(targets) == rows[span.row].ids[at]
            found[span.row] += span.scored.tolist()
    assert {n: sorted(at) for n, at in found.items()} == {n: rows[n].scored.tolist() for n in found}


@given(ROWS)
def test_no_token_is_read_twice(drawn: list[tuple[list[int], set[int]]]) -> None:
    """With the smallest nodes, as many tokens are computed as there are different beginnings of what is read."""
    rows = [Row(np.array(ids), np.array(sorted(scored), dtype=np.int64)) for ids, scored in drawn]
    sequences = merge_rows(rows)
    begun = {tuple(s.ids[:end].tolist()) for s in sequences for end in range(1, s.tokens + 1)}
    assert sum(tree.tokens_below for tree in grow_trees(sequences, rows, least=1)) == len(begun)


def test_siblings_are_read_together_and_what_goes_on_alone() -> None:
    """Leaves fill inputs up to the limit; a node with children is an input of its own."""
    rows = [make_row([7] * 70 + [n] * 10, [n, n]) for n in range(3)] + [make_row([5] * 20, [4])]
    trees = grow_trees(merge_rows(rows), rows)
    (alone,), (shared,) = passes(trees, 100)
    assert (alone.tokens, shared.tokens) == (20, 70)
    assert [[child.tokens for child in batch] for batch in passes(shared.children, 25)] == [[11, 11], [11]]
    assert shared.tokens_below == 103
    assert shared.tokens_to_the_end == 81
    assert sum(node.tokens for node in single_nodes(merge_rows(rows), rows)) == 3 * 81 + 20


@pytest.mark.parametrize("changes", [{}, {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 0}])
@pytest.mark.parametrize("activations", ["keep", "recompute"])
def test_gradients_of_trees_are_those_of_single_rows(activations: str, changes: dict[str, Any]) -> None:
    """Rollouts with the same instructions, and a history that is rewritten: against rows read alone, in float64."""
    turns = [*rollout("a", history="rewritten", seed=1, turns=6), *pool()]
    # instructions that all share, below them what several turns of a rollout share
    turns = [replace(turn, prompt_ids=[*range(4, 60), *turn.prompt_ids]) for turn in turns]
    model = tiny_model(**changes)
    expected = plain_gradient(own_copy(model), turns)
    settings = Optimization(max_tokens=70, activations=activations)  # pyright: ignore[reportArgumentType]
    figures = TorchLearner(TransformersPolicy(model), settings).gradient(turns)
    rows = [make_row(t.prompt_ids, t.response_ids, t.teacher_mask) for t in turns if not t.prompt_truncated]
    whole = sum(sequence.tokens for sequence in merge_rows(rows))
    assert figures.computed_tokens <= whole - 10 * 56
    assert float((gradient(model) - expected).norm() / expected.norm()) < 1e-6


def test_scores_of_trees_are_those_of_single_rows() -> None:
    """A teacher reads what rollouts share once, and says what it would say of each alone."""
    turns = [turn for seed in range(3) for turn in rollout(f"r{seed}", history="rewritten", seed=seed)]
    turns = [replace(turn, prompt_ids=[*range(4, 60), *turn.prompt_ids]) for turn in turns]
    model = tiny_model()
    policy = TransformersPolicy(model)
    spans = [[(len(turn.prompt_ids), turn.tokens), (3, 56)] for turn in turns]
    scores = policy.score([[*turn.prompt_ids, *turn.response_ids] for turn in turns], spans)
    for turn, (response, beginning) in zip(turns, scores, strict=True):
        expected = plain_logprobs(own_copy(model), turn).detach().numpy()
        np.testing.assert_allclose(response, expected, atol=1e-9)
        np.testing.assert_allclose(beginning, scores[0][1], atol=1e-9)
        assert len(beginning) == 53


def test_agents_read_their_common_instructions_once() -> None:
    """All agents' responses are those of an agent alone; instructions go through the model once for fresh weights."""
    model, read = tiny_model(), list[int]()
    model.model.embed_tokens.register_forward_hook(lambda module, args, output: read.append(args[0].numel()))
    policy = TransformersPolicy(model, max_tokens=25)
    shared, rng = list(range(4, 60)), np.random.default_rng(0)
    prompts = [[*shared, *rng.integers(4, 60, 5 + n).tolist()] for n in range(4)]
    prompts[3] = [*prompts[2], 7, 8]  # and one knows all that another was told
    for _ in range(2):
        torch.autograd.graph.increment_version(list(model.parameters()))  # as an update does
        del read[:]
        together = policy.respond(prompts, temperature=1.0, max_tokens=3, seeds=range(4))
        assert sum(read) <= len(shared) + sum(len(ids) - len(shared) for ids in prompts) + 2 * len(prompts)
        for seed, (prompt, response) in enumerate(zip(prompts, together, strict=True)):
            (expected,) = TransformersPolicy(tiny_model()).respond(
                [prompt], temperature=1.0, max_tokens=3, seeds=[seed]
            )
            assert response.ids == expected.ids
            np.testing.assert_allclose(response.logprobs, expected.logprobs, atol=1e-12)


def test_an_agent_that_joins_copies_the_instructions() -> None:
    """What is being written beside it knows them: the newcomer reads only what is its own."""
    model, read = tiny_model(), list[int]()
    model.model.embed_tokens.register_forward_hook(lambda module, args, output: read.append(args[0].numel()))
    policy, shared = TransformersPolicy(model), list(range(4, 60))
    policy.add("first", [*shared, 5, 6, 7], temperature=1.0, max_tokens=9, seed=4)
    assert policy.step() == []
    policy.add("second", [*shared, 8, 9], temperature=1.0, max_tokens=3, seed=2)
    del read[:]
    said = dict(one for _ in range(9) for one in policy.step())
    assert read[0] == 1 + 2  # the last token of the first, two of the second
    (expected,) = TransformersPolicy(tiny_model()).respond([[*shared, 8, 9]], temperature=1.0, max_tokens=3, seeds=[2])
    assert said["second"].ids == expected.ids
    np.testing.assert_allclose(said["second"].logprobs, expected.logprobs, atol=1e-12)
