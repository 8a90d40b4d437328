"""Tests of the wires: what one part of a run tells another, seen from outside (recorded_run.py says how)."""

import pytest

from wired_runs import WiredRuns


@pytest.fixture(scope="session")
def wired(tmp_path_factory: pytest.TempPathFactory) -> WiredRuns:
    """The runs that were recorded for these tests."""
    return WiredRuns(tmp_path_factory.mktemp("wired"))
