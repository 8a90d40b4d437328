"""Which ScienceWorld tasks are trained on, which held out (specification §8). Needs neither java nor the package.

A task is named `TYPE/VARIATION`, for example `boil/3`. Of a type with N variations the split keeps 0…⌊N/2⌋-1.
The tasks of a split are sorted by (type, variation as a number) and then shuffled once by `random.Random(42)`,
so the order is the same on every machine and under every hash seed. Training cycles through `train` in that
order; an evaluation takes the first 256 of `held-out`.
"""

import random

from divopd.errors import InputError, UnknownNameError

SPLITS = ("train", "held-out")

# how many variations scienceworld 1.2.3 has of each type; a slow test compares this table with the package
TRAINING_TYPES = {
    "boil": 30,
    "change-the-state-of-matter-of": 30,
    "chemistry-mix": 32,
    "chemistry-mix-paint-secondary-color": 36,
    "find-living-thing": 300,
    "find-plant": 300,
    "grow-plant": 126,
    "identify-life-stages-2": 10,
    "inclined-plane-determine-angle": 168,
    "inclined-plane-friction-named-surfaces": 1386,
    "lifespan-shortest-lived": 125,
    "measure-melting-point-known-substance": 436,
    "melt": 30,
    "mendelian-genetics-known-plant": 120,
    "power-component": 20,
    "test-conductivity": 900,
    "use-thermometer": 540,
}
HELD_OUT_TYPES = {
    "chemistry-mix-paint-tertiary-color": 36,
    "find-animal": 300,
    "find-non-living-thing": 300,
    "freeze": 30,
    "grow-fruit": 126,
    "identify-life-stages-1": 14,
    "inclined-plane-friction-unnamed-surfaces": 162,
    "lifespan-longest-lived": 125,
    "lifespan-longest-lived-then-shortest-lived": 125,
    "measure-melting-point-unknown-substance": 300,
    "mendelian-genetics-unknown-plant": 480,
    "power-component-renewable-vs-nonrenewable-energy": 20,
    "test-conductivity-of-unknown-substances": 600,
}
VARIATIONS = TRAINING_TYPES | HELD_OUT_TYPES


def tasks(split: str) -> list[str]:
    """The tasks of a split, in the order in which they are trained on or evaluated."""
    if split not in SPLITS:
        raise UnknownNameError("ScienceWorld split", split, SPLITS)
    types = TRAINING_TYPES if split == "train" else HELD_OUT_TYPES
    kept = sorted((name, variation) for name, count in types.items() for variation in range(count // 2))
    random.Random(42).shuffle(kept)
    return [f"{name}/{variation}" for name, variation in kept]


def parse_task(task: str) -> tuple[str, int]:
    """`boil/3` → ("boil", 3). Every variation of the package is a task, also those outside both splits."""
    name, _, variation = task.partition("/")
    if name not in VARIATIONS:
        raise UnknownNameError("ScienceWorld task type", name, sorted(VARIATIONS))
    if not (variation.isascii() and variation.isdecimal() and int(variation) < VARIATIONS[name]):
        raise InputError(
            f"ScienceWorld task {task[:80]!r}: got variation {variation[:20]!r}, expected {name}/0 to "
            f"{name}/{VARIATIONS[name] - 1}; list tasks with: divopd envs --tasks scienceworld --split train"
        )
    return name, int(variation)
