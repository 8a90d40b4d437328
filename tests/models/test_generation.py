"""Which row of the memory has read most of a prompt."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from divopd.models.packing import shared_prefixes

ROWS = st.lists(st.lists(st.integers(0, 2), max_size=6).map(np.array), max_size=5)  # three tokens: prefixes are common


@given(ROWS, ROWS)
def test_shared_prefixes_are_counted_token_by_token(known: list[np.ndarray], contexts: list[np.ndarray]) -> None:
    """For every pair, as reading both from the start would; empty ones share nothing."""
    shared = shared_prefixes(known, contexts)
    assert shared.shape == (len(contexts), len(known))
    for line, context in zip(shared, contexts, strict=True):
        for count, row in zip(line, known, strict=True):
            pairs = zip(context, row, strict=False)
            expected = next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(context), len(row)))
            assert count == expected
