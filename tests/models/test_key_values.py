"""Rows of a memory that are attended together: as each alone, and with the least to read."""

from collections.abc import Sequence
from itertools import accumulate, combinations, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from divopd.models.key_values import KeyValues, _cut


@torch.no_grad()
@pytest.mark.parametrize("window", [None, 6])
def test_rows_of_all_lengths_are_attended_as_if_alone(window: int | None) -> None:
    """Neighbours are read together or apart, whichever is less; some take no part; nobody sees another's keys."""
    draw = torch.Generator().manual_seed(0)
    lengths = [40, 3, 38, 1, 2, 17, 60, 5]
    width = 128  # so much a token that a call of attention costs as much as few of them
    memory = KeyValues()
    memory.make_room(len(lengths), 70)
    past = [torch.randn(2, 8, length, width, generator=draw) for length in lengths]
    for row, known in enumerate(past):
        memory.expect([row], [lengths[row]], together=0)
        memory.attend(0, (known[0], known[0], known[1]), scale=0.1, window=window)
        memory.grow()
    for rows in (list(range(8)), [0, 2, 3, 7], [6], [1, 3, 4]):
        query = torch.randn(16, len(rows), width, generator=draw)
        key, value = torch.randn(2, 8, len(rows), width, generator=draw)
        memory.expect(rows, [1] * len(rows), together=len(rows))
        said = memory.attend(0, (query, key, value), scale=0.1, window=window)
        memory.grow()
        for place, row in enumerate(rows):
            new = torch.stack([key[:, place], value[:, place]])[:, :, None]
            past[row] = torch.cat([past[row], new], dim=2)
            keys, values = past[row][:, :, -window:] if window else past[row]
            shares = torch.softmax(query[:, place, None] @ keys.repeat_interleave(2, 0).mT * 0.1, -1)
            alone = (shares @ values.repeat_interleave(2, 0))[:, 0]
            torch.testing.assert_close(said[:, place], alone, rtol=1e-4, atol=1e-5)


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 50)), min_size=1, max_size=7),
    st.sampled_from([0, 5, 40, 500]),
)
def test_no_other_cut_reads_less(lines: list[tuple[int, int]], call: int) -> None:
    """Compared with every way to cut so few rows; `lines`: how far each lies behind the one before, and its length."""
    rows = list(accumulate(gap for gap, _ in lines))
    ends = [end for _, end in lines]

    def cost(cuts: Sequence[int]) -> int:
        return sum((rows[b - 1] - rows[a] + 1) * max(ends[a:b]) + call for a, b in pairwise(cuts))

    places = range(1, len(rows))
    every = [[0, *some, len(rows)] for n in range(len(rows)) for some in combinations(places, n)]
    assert cost(_cut(rows, ends, call=call)) == min(map(cost, every))
