"""Settings of the whole suite."""

from pathlib import Path

import pytest
from hypothesis import settings

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
