"""Warnings of real runs: each fault is trained for a few updates, and told in the terminal and in the report."""

from io import StringIO
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="for want of the extra train")
from rich.console import Console

from divopd.config import Config
from divopd.report.page.health import health
from divopd.report.terminal import TerminalView
from divopd.store.views import StoreViews
from small_runs import config, train_small

DRAWS = Path(__file__).parents[1] / "lucky_draw.py"
# six rollouts of one or two turns in two seconds, four turns trained in one: there is something to choose from
COSTS = {"rollout_s": 2.0, "environment_step_s": 0.0, "generated_token_s": 0.0, "update_s": 1.0, "trained_token_s": 0.0}


def drawing(models: Path, **changes: Any) -> Config:
    """A run in which any model succeeds now and then, and nothing is wrong."""
    usual: dict[str, Any] = {
        "environment": {"name": f"{DRAWS}:LuckyDraw", "horizon": 2, "workers": 0},
        "composer": {"batch_size": 4, "cap": 2},
        "explorer": {"rollouts_in_flight": 6},
        "learner": {"updates": 12},
        "evaluation": {"every": 4, "tasks": 8},
        "costs": COSTS,
    }
    for name, change in changes.items():
        usual[name] = {**usual.get(name, {}), **change} if isinstance(change, dict) else change
    return config(models, **usual)


def warned(folder: Path, settings: Config) -> dict[str, str]:
    """Train to the end. What the report says then, by name; the terminal has said the same, each of it once."""
    out = StringIO()
    with TerminalView(settings, console=Console(file=out, width=400, markup=False, highlight=False)) as view:
        train_small(folder, settings, observer=view)
        view.summary(folder)
    with StoreViews.open(folder) as store:
        told = {one["name"]: one for one in health(store)["warnings"]}
    lines = [line.removeprefix("warning: ") for line in out.getvalue().splitlines() if line.startswith("warning: ")]
    begun = {one["sentence"].partition("(")[0].partition(":")[0][:30] for one in told.values()}
    assert len(lines) == len(told)
    assert {line.partition("(")[0].partition(":")[0][:30] for line in lines} == begun  # figures in it may have moved on
    return {name: one["sentence"] for name, one in told.items() if one["now"]}


def test_a_run_that_is_well_is_not_warned_of(models: Path, tmp_path: Path) -> None:
    """With divopd, which has a pool, and with vanilla, which has none."""
    for method in ("divopd", "vanilla"):
        assert warned(tmp_path / method, drawing(models, method=method)) == {}


def test_a_student_that_is_its_own_teacher(models: Path, tmp_path: Path) -> None:
    """They agree on every token as long as the student is what it was: Adam moves it by what rounding leaves."""
    student = str(models / "student")
    told = warned(tmp_path / "run", drawing(models, teacher={"model": student}, learner={"updates": 8}))
    assert list(told) == ["same models"]
    assert "KL below 0.001 in the first 3 updates" in told["same models"]


def test_a_low_loss_without_success(models: Path, tmp_path: Path) -> None:
    """Random models are near to each other, and neither of them knows its way through a house."""
    settings = config(models, learner={"updates": 4, "lr": 1e-5}, evaluation={"every": 2, "tasks": 3})
    told = warned(tmp_path / "run", settings)
    assert "the student succeeds in none of 3 tasks" in told["low loss without success"]
    assert "same models" not in told


@pytest.mark.parametrize("method", ["divopd", "vanilla"])
def test_most_turns_invalid(models: Path, tmp_path: Path, method: str) -> None:
    """Prompts that do not fit, dropped by a gate or dead in batches. The task was heard once, and that is enough."""
    changes = {"environment": {"name": f"{DRAWS}:LongTalk", "horizon": 4}, "prompts": {"max_prompt_tokens": 100}}
    told = warned(tmp_path / "run", drawing(models, method=method, learner={"updates": 4}, **changes))
    assert "invalid turns" in told
    assert "prompt_truncated" in told["invalid turns"]
    assert told["invalid turns"].endswith("raise prompts.max_prompt_tokens")
    assert "unseen words" not in told


def test_words_that_training_never_has(models: Path, tmp_path: Path) -> None:
    """What only the test split speaks of."""
    settings = drawing(models, environment={"name": f"{DRAWS}:OtherWords"}, learner={"updates": 4})
    told = warned(tmp_path / "run", settings)
    assert list(told) == ["unseen words"]
    assert told["unseen words"].partition(" had: ")[2].startswith("mug; the student never practises them")


@pytest.mark.parametrize("method", ["divopd", "vanilla"])
def test_a_queue_that_is_never_full(models: Path, tmp_path: Path, method: str) -> None:
    """One rollout at a time and a learner that takes no time: every batch is the rollout that has just arrived."""
    changes: dict[str, Any] = {
        "environment": {"name": "alfworld-small", "horizon": 4},
        "composer": {"batch_size": 4, "cap": 4},
        "explorer": {"rollouts_in_flight": 1},
        "costs": COSTS | {"update_s": 0.0},
    }
    told = warned(tmp_path / "run", drawing(models, method=method, **changes))
    assert "had 1.00 turns for each slot" in told["queue never full"]
