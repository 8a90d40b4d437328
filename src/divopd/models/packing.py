"""Rows to token sequences: a prefix that several rows share is computed once, and nothing is padded.

In a causal model the log probability of a token depends only on the tokens before it. So a row whose tokens are the
beginning of another row's can be read off that row's sequence: equal log probabilities and gradients, to rounding. The
turns of a rollout with full history form such a chain. A prefix is found by comparing tokens, never by assumption: chat
templates may rewrite history, and windows cut it.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

ENOUGH = 512  # tokens that keep a core busy


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


class Computed(Protocol):
    """What fills a micro-batch."""

    @property
    def tokens(self) -> int: ...


C = TypeVar("C", bound=Computed)


def micro_batches(sequences: Iterable[C], max_tokens: int) -> list[list[C]]:
    """Fill micro-batches of at most `max_tokens` computed tokens, longest sequence first; a longer one stands alone."""
    batches: list[list[C]] = []
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


def tokens_at_once(longest: int, max_tokens: int, *, device: str) -> int:
    """How many tokens to compute at a time: on a CPU no more than the longest sequence has.

    A GPU is filled by long inputs. A CPU is filled by `ENOUGH` tokens; more of them only leave its caches and take
    memory.
    """
    return min(max_tokens, max(longest, ENOUGH)) if device == "cpu" else max_tokens


def shared_prefix(known: np.ndarray, context: np.ndarray) -> int:
    """How many tokens two rows have in common from their start on."""
    size = min(len(known), len(context))
    differ = known[:size] != context[:size]
    return int(differ.argmax()) if differ.any() else size


def shared_prefixes(known: Items[np.ndarray], contexts: Items[np.ndarray]) -> np.ndarray:
    """How many tokens each context (a line of the result) has in common with the start of each known row."""
    width = max(map(len, known), default=0)
    table = np.full((len(known), width + 1), -1)  # no token is negative: a row differs at the latest where it ends
    for line, row in zip(table, known, strict=True):
        line[: len(row)] = row
    shared = np.empty((len(contexts), len(known)), dtype=np.int64)
    for line, context in zip(shared, contexts, strict=True):
        size = min(len(context), width)
        padded = np.append(context[:size], -2)  # so that every row differs somewhere
        line[:] = (table[:, : size + 1] != padded).argmax(axis=1)
    return shared
