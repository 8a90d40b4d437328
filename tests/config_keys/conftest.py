"""The two sides of a changed key (key_runs.py)."""

from pathlib import Path

import pytest

from key_runs import Lab, Run


@pytest.fixture(scope="session")
def lab(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("config-keys"), models)


@pytest.fixture
def before(lab: Lab, request: pytest.FixtureRequest) -> Run:
    return _trained(lab.run(*request.param))


@pytest.fixture
def after(lab: Lab, request: pytest.FixtureRequest) -> Run:
    return _trained(lab.run(*request.param))


@pytest.fixture
def plan_before(lab: Lab, request: pytest.FixtureRequest) -> str:
    return lab.plan(*request.param)


@pytest.fixture
def plan_after(lab: Lab, request: pytest.FixtureRequest) -> str:
    return lab.plan(*request.param)


def _trained(run: Run) -> Run:
    assert run.code == 0, run.said
    return run
