"""Merging rows with shared prefixes, and filling micro-batches."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from divopd.models.packing import Row, make_row, merge_rows, micro_batches

# two tokens only, so that prefixes happen; 256 and 65536 have the same bytes as others at another offset
TOKENS = st.lists(st.sampled_from([1, 256, 65536]), min_size=2, max_size=7)
ROWS = st.lists(TOKENS.flatmap(lambda ids: st.tuples(st.just(ids), st.sets(st.integers(1, len(ids) - 1)))), max_size=12)


def as_rows(drawn: list[tuple[list[int], set[int]]]) -> list[Row]:
    return [Row(np.array(ids), np.array(sorted(scored), dtype=np.int64)) for ids, scored in drawn]


@given(ROWS)
def test_every_row_is_read_with_its_own_tokens(drawn: list[tuple[list[int], set[int]]]) -> None:
    """Each row that scores something is in exactly one sequence, which begins with the row's tokens."""
    rows = as_rows(drawn)
    spans = [(sequence, span) for sequence in merge_rows(rows) for span in sequence.spans]
    assert sorted(span.row for _, span in spans) == [n for n, row in enumerate(rows) if len(row.scored)]
    for sequence, span in spans:
        row = rows[span.row]
        assert span.scored.tolist() == row.scored.tolist()
        end = row.scored[-1] + 1
        assert sequence.ids[:end].tolist() == row.ids[:end].tolist()


@given(ROWS)
def test_nothing_that_can_be_merged_is_left(drawn: list[tuple[list[int], set[int]]]) -> None:
    """No sequence is the beginning of another."""
    ids = [sequence.ids.tolist() for sequence in merge_rows(as_rows(drawn))]
    for n, a in enumerate(ids):
        assert not any(b[: len(a)] == a for m, b in enumerate(ids) if m != n)


def test_a_rollout_with_full_history_is_one_sequence() -> None:
    """Four turns that extend one another are read once; the merged spans are theirs, in order."""
    context: list[int] = [1, 2]
    rows = []
    for index in range(4):
        rows.append(make_row(context, [10 + index, 20], [1, 0]))
        context = [*context, 10 + index, 20, 5]
    (sequence,) = merge_rows(rows)
    assert sequence.ids.tolist() == rows[-1].ids.tolist()[:-1]
    assert [span.scored.tolist() for span in sequence.spans] == [[2], [5], [8], [11]]
    assert sequence.tokens == 11


def test_rewritten_history_is_not_merged() -> None:
    """One token that differs in the past keeps two rows apart, however long what they share."""
    long = list(range(100))
    assert len(merge_rows([make_row(long, [7, 8]), make_row([*long, 7, 9, 3], [4])])) == 2


def test_a_row_without_scored_tokens_is_not_read() -> None:
    assert merge_rows([make_row([1, 2], [3], [0]), make_row((), ())]) == []


@given(ROWS, st.integers(1, 12))
def test_micro_batches_hold_every_sequence_once_within_the_budget(
    drawn: list[tuple[list[int], set[int]]], budget: int
) -> None:
    """A micro-batch exceeds the budget only when one sequence alone does."""
    sequences = merge_rows(as_rows(drawn))
    batches = micro_batches(sequences, budget)
    assert sorted(id(s) for batch in batches for s in batch) == sorted(map(id, sequences))
    for batch in batches:
        assert len(batch) == 1 or sum(sequence.tokens for sequence in batch) <= budget


def test_ten_thousand_long_rows_are_merged_without_comparing_all_pairs() -> None:
    """Rows of 200 rollouts with 50 turns each become 200 sequences; comparing all pairs would take minutes."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(200):
        whole = rng.integers(0, 50_000, 1000).tolist()
        rows += [make_row(whole[: end - 5], whole[end - 5 : end]) for end in range(20, 1001, 20)]
    assert len(merge_rows(rows)) == 200
