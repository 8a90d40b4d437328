"""The table of docs/cluster.md says what the dry run says of prompts as long as they may be."""

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="for want of the extra train")
pytest.importorskip("transformers", reason="for want of the extra train")

from divopd.config import load_config
from divopd.models.published import PUBLISHED
from divopd.plan.forecast import largest_sample, memory_by_actor, model_bytes
from divopd.plan.roofline import roofline

PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"
MACHINES = ("8xh100", "2x8xh100", "4x8xh100")
HEAD = "| setting | `8xh100` |"


def rows() -> dict[str, list[str]]:
    """The cells of every setting."""
    table = PAGE.read_text(encoding="utf-8").partition(HEAD)[2].partition("\n\n")[0].splitlines()[2:]
    cells = ([cell.strip() for cell in line.strip("| ").split("|")] for line in table)
    return {setting: rest for setting, *rest in cells}


@pytest.mark.parametrize("setting", rows())
def test_the_page_says_what_the_dry_run_says(setting: str) -> None:
    """Of each machine GB of learner, explorer and teacher, seconds and the slowest; at last GB on the disk."""
    expected = []
    for machine in MACHINES:
        config = load_config(f"{setting}/divopd", machine=machine)
        student, teacher = (PUBLISHED[Path(part.model).name] for part in (config.student, config.teacher))
        found = roofline(config, student, teacher, largest_sample(config))
        assert found is not None
        needs = memory_by_actor(config, student, [teacher], longest=config.prompts.max_prompt_tokens)
        sizes = [sum(needs[role].values()) / 1e9 for role in ("learner", "explorer", "teacher")]
        expected += [" / ".join(f"{size:.0f}" for size in sizes), f"{found.update_s:.0f} s, {found.bottleneck}"]
        disk = f"{sum(model_bytes(config, student).values()) / 1e9:,.0f} GB"
    assert rows()[setting] == [*expected, disk]


def test_all_settings_of_the_paper_are_on_the_page() -> None:
    assert len(rows()) == 6
