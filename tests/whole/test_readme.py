"""The README's Python snippet does what it shows: it composes a batch, and what it leaves can be saved."""

import json
import re
from pathlib import Path
from typing import Any

from divopd.composers import Composer
from divopd.methods import make_composer

README = Path(__file__).parents[2] / "README.md"


def executed_snippet() -> dict[str, Any]:
    """The names that the README's one Python block leaves behind."""
    (block,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)
    return names


def test_the_snippet_composes_a_batch() -> None:
    """Its turns pass the gate: every slot that its turns can fill is filled, and none is dead."""
    names = executed_snippet()
    batch, composer = names["batch"], names["composer"]
    assert len(batch.turns) == min(len(names["my_queue"]), composer.settings.batch_size) > 0
    assert batch.weights == [1.0] * len(batch.turns)
    assert (batch.invalid, batch.stale, batch.aged_out) == ([], [], [])


def test_the_snippets_turns_survive_the_composers_state() -> None:
    """A composer that holds them pending goes on from its JSON state with equal turns."""
    turns = executed_snippet()["my_queue"]
    version = max(turn.version for turn in turns)
    original, restored = (make_composer("divopd", batch_size=1, pool_multiplier=len(turns)) for _ in range(2))
    first = original.compose(turns, update=version)
    restored.load_state_dict(json.loads(json.dumps(original.state_dict())))
    assert len(drained(restored, version)) == len(turns) - len(first.turns)
    restored.load_state_dict(json.loads(json.dumps(original.state_dict())))
    assert drained(restored, version) == drained(original, version)


def drained(composer: Composer, update: int) -> list[Any]:
    """Everything pending, one batch after the other."""
    drawn: list[Any] = []
    while batch := composer.compose([], update=update).turns:
        drawn += batch
    return drawn
