"""What gives first for the paper's settings on machines with GPUs: each part with its source and its limit."""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="for want of the extra train")
pytest.importorskip("transformers", reason="for want of the extra train")

from divopd.config import Config, load_config
from divopd.models.published import PUBLISHED
from divopd.plan.forecast import largest_sample
from divopd.plan.headroom import Headroom, Measured, headroom

SEEN = Measured(
    store_turns_per_s=1000,
    composer_s=1,
    written_bytes_per_s=1e8,
    saved_bytes_per_s=1e8,
    disk_bytes_per_s=1e8,
    passed_bytes_per_s=1e9,
)


def parts(machine: str, *overrides: str, measured: Measured = SEEN) -> dict[str, Headroom]:
    config: Config = load_config("webshop-7b/divopd", overrides, machine=machine)
    student, teacher = (PUBLISHED[Path(part.model).name] for part in (config.student, config.teacher))
    return {row.part: row for row in headroom(config, student, teacher, largest_sample(config), measured)}


def test_a_part_has_the_time_of_an_update() -> None:
    """Twice the learner's speed halves it, a faster part doubles it, and what is not about it leaves it alone."""
    usual = parts("8xh100")
    assert {row.source for row in usual.values()} == {"estimated", "measured"}
    assert all(row.limit for row in usual.values())
    faster = parts("8xh100", "learner.ranks=4", "explorer.processes=2")
    for part in ("composer", "copy of the weights", "evaluated versions", "teachers"):
        assert faster[part].ratio == pytest.approx(usual[part].ratio / 2), part
    # in half the time four ranks write what two did, each half as much, and the disk takes as long
    assert faster["checkpoints"].ratio == pytest.approx(usual["checkpoints"].ratio * (1 / 2 + 1) / (1 / 4 + 1) / 2)
    quick = parts("8xh100", measured=replace(SEEN, written_bytes_per_s=1e12))
    changed = {part for part, row in quick.items() if row.ratio != usual[part].ratio}
    assert changed == {"evaluated versions"}
    slow = parts("8xh100", measured=replace(SEEN, disk_bytes_per_s=5e7))
    assert {part for part, row in slow.items() if row.ratio != usual[part].ratio} == {
        "evaluated versions", "checkpoints", "the disk, for both together",
    }  # fmt: skip
    assert quick["evaluated versions"].ratio == pytest.approx(2 * usual["evaluated versions"].ratio, rel=0.01)


def test_weights_cost_what_travels() -> None:
    """Versions in bfloat16 are half of float32, which an audit wants; another machine is another trip."""
    usual, audited = parts("8xh100"), parts("8xh100", "audits.keep_last=1")
    assert audited["copy of the weights"].ratio == pytest.approx(usual["copy of the weights"].ratio / 2)
    assert audited["checkpoints"].ratio == usual["checkpoints"].ratio
    pair = "copy of the weights", "weights into the object store and out"
    for machine, apart in (("8xh100", 0), ("4x8xh100", 3)):
        found = parts(machine, "learner.ranks=2", "explorer.processes=4", "teacher.count=2")
        copied, travelled = (found[part].ratio for part in pair)
        assert copied / travelled == pytest.approx(
            25 / 1 + apart * 25 / 50
        )  # GB/s: to the host; an engine's, the network's
