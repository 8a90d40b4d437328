"""Settings of the whole suite."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # on a machine that is busy, two threads wait for each other for ever

# the same examples on every machine; no deadline, because test machines are shared
settings.register_profile("divopd", deadline=None, max_examples=50, derandomize=True)
settings.load_profile("divopd")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random `student` and `teacher` for the default environment."""
    from small_runs import make_models

    folder = tmp_path_factory.mktemp("models")
    make_models(folder)
    return folder
