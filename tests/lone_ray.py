"""A Ray of a test's own: one node, a folder of its own, patient with a busy machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory

import pytest

PATIENCE = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "300",  # for processes that a test starts; conftest.py sets it for the tests' own
    "RAY_agent_register_timeout_ms": "300000",
    "RAY_worker_niceness": "0",  # 15 by default: beside other work an actor would hardly answer
}


@contextmanager
def lone_ray(cpus: int) -> Iterator[None]:
    """Start it, and end it with all its processes; sessions of a machine share the usual folder, so not that one."""
    import ray

    with TemporaryDirectory(prefix="ray") as folder, pytest.MonkeyPatch.context() as patch:
        for name, value in PATIENCE.items():
            patch.setenv(name, value)
        ray.init(address="local", include_dashboard=False, num_cpus=cpus, _temp_dir=folder, log_to_driver=False)
        yield
        ray.shutdown()
