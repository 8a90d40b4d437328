"""What gives first for a setting on a machine with GPUs: what each part can do in the time of one update, and must.

The time of an update is the learner's by the roofline. A ratio of at least 1 means that the part keeps up; a smaller
one comes with the words of what then happens. Every ratio says whence it is: `estimated` from stated figures of the
hardware (roofline.py and below), or `measured` here, as seconds or bytes of one core, against an estimated update.
"""

from dataclasses import dataclass
from typing import Literal

from divopd.config import Config
from divopd.models.model_files import ModelFacts
from divopd.plan.forecast import ADAM_BYTES, BYTES, Sample
from divopd.plan.roofline import roofline

NETWORK = 50e9  # bytes a second out of one machine: 400 Gbit/s, as NVIDIA's DGX H100 has for each GPU; one is counted
TO_HOST = 25e9  # bytes a second from a GPU: PCIe 5 x16 has 64 GB/s in one direction, of which 40 % is assumed

Source = Literal["estimated", "measured"]


@dataclass(frozen=True)
class Measured:
    """What one core and one disk did here."""

    store_turns_per_s: float  # on the live path: kept for the teacher, read by it, put
    composer_s: float  # of an update in the store
    written_bytes_per_s: float  # of a version that is hashed and handed to the disk
    saved_bytes_per_s: float  # of a checkpoint, likewise; each rank does its part
    disk_bytes_per_s: float  # until they are there; all ranks share the disk
    passed_bytes_per_s: float  # of a version, copied into memory that is shared and from there into a model


@dataclass(frozen=True)
class Headroom:
    """A part of a run: how often it could do its work in the time that it has."""

    part: str
    ratio: float
    source: Source
    limit: str  # what happens below 1


def headroom(
    config: Config, student: ModelFacts, teacher: ModelFacts, sample: Sample, measured: Measured
) -> list[Headroom]:
    """All parts but the learner itself, which gives the time. The machine must say its peak and bandwidth."""
    found = roofline(config, student, teacher, sample)
    assert found is not None, "a machine with GPUs says its peak and bandwidth"
    update_s = found.seconds["learner"]
    version = student.parameters * BYTES[config.weights_dtype or config.student.dtype]
    checkpoint = student.parameters * (BYTES[config.student.dtype] + ADAM_BYTES)
    played = config.composer.batch_size / found.seconds["explorers"]  # turns a second
    apart = max(config.machine.nodes - 1, 0)
    writers = config.learner.ranks // config.learner.nodes  # on the machine with the run's folder
    examined, saved, disk = config.evaluation.every, config.learner.checkpoint_every, measured.disk_bytes_per_s
    rows: list[tuple[str, float, float, Source, str]] = [  # part, seconds it has, seconds it needs
        ("explorers", update_s, found.seconds["explorers"], "estimated", "the learner waits for rollouts"),
        ("teachers", update_s, found.seconds["teachers"], "estimated", "rollouts wait for their scores"),
        ("store, live path", 1.0, played / measured.store_turns_per_s, "measured", "explorers wait for the store"),
        ("composer", update_s, measured.composer_s, "measured", "the learner waits for the store"),
        ("copy of the weights", update_s, version / TO_HOST, "estimated", "the learner copies longer than it trains"),
        ("weights into the object store and out", update_s, _travel_s(version, apart, measured), "measured",
         "explorers act with older weights: explorer.sync_interval"),
        ("evaluated versions", update_s * examined, version / measured.written_bytes_per_s + version / disk,
         "measured", "the learner waits for the disk at an evaluated version: evaluation.every"),
        ("checkpoints", update_s * saved, checkpoint / (writers * measured.saved_bytes_per_s) + checkpoint / disk,
         "measured", "one takes longer than the updates between two: learner.checkpoint_every"),
        ("the disk, for both together", update_s, version / examined / disk + checkpoint / saved / disk,
         "measured", "they wait for one another: a faster disk, or evaluation.every, learner.checkpoint_every"),
    ]  # fmt: skip
    return [Headroom(part, has / needs, source, limit) for part, has, needs, source, limit in rows]


def _travel_s(version: float, apart: int, measured: Measured) -> float:
    """Once to every other machine, one after the other; then each engine takes it, at the rate measured here."""
    return apart * version / NETWORK + version / measured.passed_bytes_per_s
