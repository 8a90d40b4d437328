"""Sequences that begin alike, as trees: what several of them begin with is read once, and each goes on from there.

Rollouts of one batch share their instructions; turns of one rollout share their past where a chat template rewrites
what was said last. Keys and values of the shared tokens are all that a later token needs of them, so log probabilities
and gradients are those of the whole sequences, to rounding.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from divopd.models.packing import Row, Sequence, Span, micro_batches, shared_prefix

LEAST = 128  # tokens that must be saved: a pass of its own touches every weight and gradient once more


@dataclass(frozen=True, eq=False)
class Node:
    """Tokens that the model reads once for all that is below, and what is predicted from them."""

    ids: np.ndarray
    start: int  # the position of the first of them
    spans: tuple[Span, ...]  # scored positions, each one behind a token of this node
    targets: np.ndarray  # the tokens at those positions, span after span
    children: tuple["Node", ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens that the model computes here."""
        return len(self.ids)

    @property
    def tokens_below(self) -> int:
        """Tokens that the model computes here and in all that goes on from here."""
        return self.tokens + sum(child.tokens_below for child in self.children)

    @property
    def tokens_to_the_end(self) -> int:
        """Tokens of the longest sequence that begins here."""
        return self.tokens + max((child.tokens_to_the_end for child in self.children), default=0)


def single_nodes(sequences: Iterable[Sequence], rows: Items[Row]) -> list[Node]:
    """Every sequence as a tree of one node: nothing is shared."""
    return [_node([sequence], rows, 0, sequence.tokens) for sequence in sequences]


def grow_trees(sequences: Items[Sequence], rows: Items[Row], *, least: int = LEAST) -> list[Node]:
    """The sequences as trees, in which what several begin with is one node where that saves `least` tokens."""
    ordered = sorted(sequences, key=lambda sequence: sequence.ids.tobytes())  # what begins alike stands together
    common = [shared_prefix(a.ids[:-1], b.ids[:-1]) for a, b in pairwise(ordered)]
    return _branches(ordered, common, rows, start=0, shared=1, least=least)


def _branches(
    ordered: Items[Sequence], common: Items[int], rows: Items[Row], *, start: int, shared: int, least: int
) -> list[Node]:
    """Nodes from `start` on; those that go on alike for `shared` tokens and more are looked at together."""
    nodes, first = [], 0
    for last in range(len(ordered)):
        if last < len(common) and common[last] >= start + shared:
            continue
        alike, within = ordered[first : last + 1], common[first:last]
        end = min(within, default=alike[0].tokens)
        if not within:
            nodes += [_node(alike, rows, start, end)] if end > start else []
        elif len(within) * (end - start) < least:  # what they all share is too little: some of them may share more
            nodes += _branches(alike, within, rows, start=start, shared=end - start + 1, least=least)
        else:
            below = _branches(alike, within, rows, start=end, shared=1, least=least)
            nodes.append(_node(alike, rows, start, end, tuple(below)))
        first = last + 1
    return nodes


def _node(sequences: Items[Sequence], rows: Items[Row], start: int, end: int, children: tuple[Node, ...] = ()) -> Node:
    spans = []
    for span in (span for sequence in sequences for span in sequence.spans):
        here = span.scored[(span.scored > start) & (span.scored <= end)]
        if len(here):
            spans.append(Span(span.row, here))
    targets = [rows[span.row].ids[span.scored] for span in spans]
    return Node(
        ids=sequences[0].ids[start:end],
        start=start,
        spans=tuple(spans),
        targets=np.concatenate(targets) if targets else np.empty(0, dtype=np.int64),
        children=children,
    )


def passes(nodes: Items[Node], max_tokens: int) -> list[list[Node]]:
    """Which siblings are read together: those that nothing goes on from, as many as fit; every other one alone."""
    leaves = [node for node in nodes if not node.children]
    return micro_batches(leaves, max_tokens) + [[node] for node in nodes if node.children]
