"""Every store there is, for tests of what all of them do."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from divopd.store import Store
from doubles.memory_store import AnyStore, MemoryStore


@pytest.fixture(params=[Store, MemoryStore], ids=lambda kind: kind.__name__)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AnyStore]:
    if request.param is MemoryStore:
        yield MemoryStore()
    else:
        with Store.create(tmp_path / "store.db", synchronous="NORMAL") as made:
            yield made
