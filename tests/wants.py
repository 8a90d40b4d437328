"""What tests want and a machine may not have. A pytest plugin: a closing line says what was skipped and how to get it.

The reason of a skipped test is "for want of" something in this table.
"""

import re
from collections import Counter
from collections.abc import Iterator

import pytest

WAYS = {
    "a browser": "apt-get install chromium",
    "Java": "apt-get install openjdk-17-jre-headless",
    "the official data": "DIVOPD_DATA=FOLDER make test",
    "node": "apt-get install nodejs",
    "npm": "apt-get install npm",
    "git": "apt-get install git",
    "g++": "apt-get install g++",
    "bash": "apt-get install bash",
    "strace": "apt-get install strace",
    "the history": "git fetch --unshallow",
    "mounts of one's own": "run it as root",
    "vLLM": "make test-slow",
    "Trinity-RFT": "make test-slow",
    "TransferQueue": "make test-slow",
    "verl": "make test-slow",
    "TRL": "make test-slow",
    "SmolLM2": "make test-slow",
    "torch 2.10": "make setup",
    **{
        f"the extra {name}": f"pip install -e '.[{name}]'"
        for name in (
            *("alfworld", "dev", "gguf", "gym", "lora", "mlflow", "openenv", "plots", "ray", "scienceworld"),
            *("tensorboard", "trackio", "train", "wandb", "webshop"),
        )
    },
}


def closing_line(reasons: list[str]) -> str:
    """How many tests were skipped for want of what, with the command that gets it."""
    wanted = Counter(found[1] for reason in reasons if (found := re.search(r"for want of (.+)$", reason)))
    parts = [f"{number} for want of {what} ({WAYS[what]})" for what, number in wanted.most_common()]
    if others := len(reasons) - wanted.total():
        parts.append(f"{others} for other reasons (pytest -rs)")
    return f"skipped: {', '.join(parts)}"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """After all that pytest itself has to say."""
    yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    reports = reporter.stats.get("skipped", []) if reporter else []
    if reporter and reports:
        reporter.write_line(closing_line([str(report.longrepr[2]) for report in reports]))
