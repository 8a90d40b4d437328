"""Rows to token sequences: a prefix that several rows share is computed once, and nothing is padded.

In a causal model the log probability of a token depends only on the tokens before it. So a row whose tokens are the
beginning of another row's can be read off that row's sequence: equal log probabilities and gradients, to rounding. The
turns of a rollout with full history form such a chain. A prefix is found by comparing tokens, never by assumption: chat
templates may rewrite history, and windows cut it.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Row:
    """Tokens (prompt, then response) and the ascending positions, each at least 1, whose log probability is wanted."""

    ids: np.ndarray
    scored: np.ndarray


@dataclass(frozen=True, eq=False)
class Span:
    """What of a sequence belongs to row number `row`; positions are the same in both."""

    row: int
    scored: np.ndarray


@dataclass(frozen=True, eq=False)
class Sequence:
    """Tokens that the model reads once, for all the rows in `spans`. The last token is only predicted, not read."""

    ids: np.ndarray
    spans: tuple[Span, ...]

    @property
    def tokens(self) -> int:
        """Tokens that the model computes."""
        return len(self.ids) - 1

    @property
    def first(self) -> int:
        """The first position, 1 or more, whose log probability a row wants."""
        return int(min(span.scored[0] for span in self.spans))


def make_row(prompt_ids: Items[int], response_ids: Items[int], mask: Items[int] | None = None) -> Row:
    """The row that scores the response tokens with a 1 in the mask, or all of them."""
    ids = np.concatenate([np.asarray(prompt_ids, dtype=np.int64), np.asarray(response_ids, dtype=np.int64)])
    chosen = np.arange(len(response_ids)) if mask is None else np.flatnonzero(np.asarray(mask))
    return Row(ids, chosen + len(prompt_ids))


def merge_rows(rows: Items[Row]) -> list[Sequence]:
    """The sequences to compute so that every scored position of every row is covered, in the order of the rows.

    Tokens after a row's last scored one are dropped, so a row without scored positions is in no sequence.
    """
    keys = {n: row.ids[: row.scored[-1] + 1].astype("<u4").tobytes() for n, row in enumerate(rows) if len(row.scored)}
    # In lexicographic order a string stands directly before the strings that it begins, so neighbours suffice. The
    # fixed width of a token keeps token boundaries; among equal rows the number decides, so that the result is stable.
    order = sorted(keys, key=lambda n: (keys[n], n))
    groups: list[list[int]] = []
    for following, n in zip([None, *reversed(order)], reversed(order), strict=False):
        if following is not None and keys[following].startswith(keys[n]):
            groups[-1].append(n)
        else:
            groups.append([n])
    return [_sequence(rows, members) for members in sorted(groups, key=min)]


def _sequence(rows: Items[Row], members: list[int]) -> Sequence:
    """`members` starts with the longest row."""
    longest = rows[members[0]]
    return Sequence(
        ids=longest.ids[: longest.scored[-1] + 1],
        spans=tuple(Span(n, rows[n].scored) for n in sorted(members)),
    )


def micro_batches(sequences: Iterable[Sequence], max_tokens: int) -> list[list[Sequence]]:
    """Fill micro-batches of at most `max_tokens` computed tokens, longest sequence first; a longer one stands alone."""
    batches: list[list[Sequence]] = []
    room: list[int] = []
    for sequence in sorted(sequences, key=lambda s: -s.tokens):
        fits = next((n for n, free in enumerate(room) if sequence.tokens <= free), None)
        if fits is None:
            batches.append([])
            room.append(max_tokens)
            fits = len(room) - 1
        batches[fits].append(sequence)
        room[fits] -= sequence.tokens
    return batches
