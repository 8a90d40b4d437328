"""The README's Python snippet does what it shows: it composes a batch, and what it leaves can be saved."""

import json
import re
from pathlib import Path
from typing import Any

from divopd import Pool

README = Path(__file__).parents[2] / "README.md"


def executed_snippet() -> dict[str, Any]:
    """The names that the README's one Python block leaves behind."""
    (block,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)
    return names


def test_the_snippet_composes_a_batch() -> None:
    """Its rows pass the gate: every slot is filled, none is dead, and the payloads are back."""
    names = executed_snippet()
    batch, pool = names["batch"], names["pool"]
    assert len(names["rows"]) == len(batch.rows) == pool.settings.batch_size
    assert names["weights"] == [1.0] * len(batch.rows)
    assert sorted(payload["anything"] for payload in names["rows"]) == [row.turn for row in batch.rows]
    assert (batch.dropped, batch.metrics["pending"], len(pool)) == ([], 2, 2)


def test_the_snippets_rows_survive_its_state() -> None:
    """A pool that is restored from the JSON of its state gives the rows that the snippet left, in the same order."""
    names = executed_snippet()
    restored = Pool("divopd", batch_size=4, cap=2)
    restored.load_state_dict(json.loads(json.dumps(names["state"])))
    expected, got = (pool.compose(names["q"] + 1, allow_short=True) for pool in (names["pool"], restored))
    assert [row.key for row in got.rows] == [row.key for row in expected.rows] != []
