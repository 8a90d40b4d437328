"""A run that several files of audits look at."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def small_run(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run of random models, eight updates with an evaluation every four."""
    pytest.importorskip("transformers", reason="for want of the extra train")
    from small_runs import config, train_small

    folder = tmp_path_factory.mktemp("audited") / "run"
    train_small(folder, config(models, learner={"updates": 8}, evaluation={"every": 4}))
    return folder
