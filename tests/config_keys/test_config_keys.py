"""Every key of the configuration has a test in which changing it changes what it should.

A new key fails here until one of the tests beside this file changes it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import test_keys_of_learning  # noqa: F401 - the import registers its keys
import test_keys_of_models  # noqa: F401
import test_keys_of_other_machines  # noqa: F401
import test_keys_of_rollouts  # noqa: F401
from pydantic import BaseModel

from divopd.config import Config
from key_runs import PLANNED, TESTED, Lab
from schema_keys import keys_of

MOVED = {"composer.method": "method", "composer.seed": "seed", "composer.total_updates": "learner.updates"}
ROOT = Path(__file__).parents[2]


def untested(schema: type) -> list[str]:
    """The keys of a schema that no test changes."""
    return [key for key in keys_of(schema) if key not in TESTED and key not in MOVED]


def test_every_key_has_a_test() -> None:
    """A key that is added without one is named."""
    missing = untested(Config)
    assert not missing, f"no test changes {', '.join(missing)}: write one in tests/config_keys"


def test_every_test_has_a_key() -> None:
    """A key that is gone leaves no test behind."""
    gone = TESTED.keys() - set(keys_of(Config))
    assert not gone, f"tests change {', '.join(sorted(gone))}, which is no key any more"


def test_a_new_key_is_noticed() -> None:
    """In the configuration itself, in a section of it, and in a section that may be null."""

    class Deeper(BaseModel):
        depth: int = 1

    class Wider(Config):
        width: int = 1
        more: Deeper | None = None

    assert untested(Wider) == ["width", "more", "more.depth"]


def test_the_schema_has_every_key_of_a_runs_configuration(lab: Lab) -> None:
    """What a run stores as its configuration, and what the schema lists, are the same keys."""
    stored = {key for key in _leaves(lab.run().config) if not key.startswith("versions.")}
    without_adapters = {"student.lora.rank", "student.lora.alpha"}
    assert stored == set(keys_of(Config)) - MOVED.keys() - without_adapters


@pytest.mark.parametrize(("key", "place"), MOVED.items())
def test_a_key_that_stands_elsewhere_is_refused(lab: Lab, key: str, place: str) -> None:
    """The composer takes these values from where a file has them, so they are no keys of its own."""
    assert f"expected nothing there: set {place} instead" in lab.plan(f"{key}=1")


@pytest.mark.parametrize("named", sorted({plan.run_by for plan in PLANNED.values() if plan.run_by}))
def test_what_is_only_planned_here_is_run_by_a_test_that_exists(named: str) -> None:
    """The list of tests that run elsewhere stays true."""
    file, _, test = named.partition("::")
    assert f"\ndef {test}(" in (ROOT / file).read_text(encoding="utf-8")


def _leaves(values: dict[str, Any], above: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, dict) and above + name not in (
            "environment.settings",
            "teacher.by_task",
            "prompts.template",
        ):
            yield from _leaves(value, f"{above}{name}.")
        else:
            yield above + name
