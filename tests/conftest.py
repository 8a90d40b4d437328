"""Settings of the whole suite."""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings

from browser import CHROMIUM

pytest_plugins = ["leak_guard", "wants"]
SLOW_S = 3600  # the time limit of a slow test; that of the others is in pyproject.toml
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in the background of a shell: Ctrl-C of our children is tested
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("RAY_raylet_start_wait_time_s", "300")  # ray reads it when it is imported
os.environ.setdefault("OMP_NUM_THREADS", "1")  # on a machine that is busy, two threads wait for each other for ever

# the same examples on every machine; no deadline, because test machines are shared
settings.register_profile("divopd", deadline=None, max_examples=50, derandomize=True)
settings.register_profile("quick", parent=settings.get_profile("divopd"), max_examples=8)
# for `make mutants`: that a test fails counts, not how little it takes
settings.register_profile("mutants", parent=settings.get_profile("divopd"), phases=(Phase.explicit, Phase.generate))
settings.load_profile("divopd")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_S))


def pytest_collection_finish() -> None:
    """What the modules of the tests have imported stays: no later collection need look at it."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Whether there is a browser is decided before a fixture starts anything."""
    if item.get_closest_marker("browser") is None:
        return
    if find_spec("playwright") is None:
        pytest.skip("for want of the extra dev")
    if CHROMIUM is None:
        pytest.skip("for want of a browser")


def pytest_configure() -> None:
    from leak_guard import keep

    keep(lambda: [jvm.process.pid for jvm in _warm_jvms()], end=lambda: [jvm.stop() for jvm in _warm_jvms()])


def _warm_jvms() -> list[Any]:
    """ScienceWorld keeps JVMs whose environments are gone: the next environment is faster by that."""
    module = sys.modules.get("divopd.environments.scienceworld.environment")
    return [jvm for left in module._left.values() for jvm in left] if module else []


@pytest.fixture(scope="module")
def threads_as_before() -> Iterator[None]:
    """For modules whose commands set torch's threads as a configuration says."""
    import torch

    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session", autouse=True)
def _no_cache_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What fixtures of a session or a module remember is forgotten with the session."""
    os.environ["DIVOPD_CACHE"] = str(tmp_path_factory.mktemp("remembered"))


@pytest.fixture(autouse=True)
def _own_cache(_no_cache_of_the_user: None, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest,
               monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """What a test remembers, no other test knows."""
    name = f"{abs(hash(request.node.nodeid)):x}"
    monkeypatch.setenv("DIVOPD_CACHE", str(tmp_path_factory.getbasetemp() / "remembered-by-test" / name))


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random `student` and `teacher` for the default environment."""
    from small_runs import make_models

    folder = tmp_path_factory.mktemp("models")
    make_models(folder)
    return folder
