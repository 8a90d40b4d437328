"""How deep a training rollout may go: to the horizon, growing (TCOD-F2B, SPEC §6.4) or adapted (TurnOPD, §6.5)."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

PROBE_EVERY = 8  # updates between full-depth probes
PROBE_WARMUP = 3  # first updates, all at full depth
SMOOTHING = 0.3
COVERED_SHARE = 0.80
ENOUGH_SUCCESSES = 8


def growing_depth(explorer_step: int, *, growth: int, horizon: int) -> int:
    """TCOD-F2B: one turn more every `growth` explorer steps, which are counted from 1."""
    return min(1 + explorer_step // growth, horizon)


def is_probe(version: int) -> bool:
    """TurnOPD: whether rollouts of this policy version run to the horizon."""
    return version < PROBE_WARMUP or version % PROBE_EVERY == 0


@dataclass(frozen=True)
class Probe:
    """A full-depth rollout: its policy version, whether it succeeded, and the disagreement of each of its turns."""

    version: int
    success: bool
    disagreements: tuple[float, ...]


def adapted_depth(probes: Sequence[Probe], *, horizon: int) -> int:
    """TurnOPD's depth limit from all probes so far; the horizon as long as there are none.

    Depths are indices of turns, from 0; the limit is a number of turns.
    """
    smooth: float | None = None
    for version in sorted({probe.version for probe in probes}):
        group = [probe for probe in probes if probe.version == version]
        target = max(_effective_depth(group), _covered_depth(group))
        smooth = target if smooth is None else (1 - SMOOTHING) * smooth + SMOOTHING * target
    if smooth is None:
        return horizon
    return min(max(round(smooth) + 1, 2), horizon)


def _effective_depth(probes: Sequence[Probe]) -> int:
    """H_eff = round(Σ t q_t): where the disagreement lies, weighted by how many rollouts get there."""
    longest = max(len(probe.disagreements) for probe in probes)
    mass: list[float] = []
    for turn in range(longest):
        alive = [probe.disagreements[turn] for probe in probes if len(probe.disagreements) > turn]
        mass.append(max(sum(alive) / len(alive), 0.0) * len(alive) / len(probes))
    total = sum(mass) + 1e-8
    return round(sum(turn * value / total for turn, value in enumerate(mass)))


def _covered_depth(probes: Sequence[Probe]) -> int:
    """H_cov: the depth that covers 80 % of the successes; of all probes while there are few successes."""
    successes = [len(probe.disagreements) - 1 for probe in probes if probe.success]
    depths = sorted(successes if len(successes) >= ENOUGH_SUCCESSES else [len(p.disagreements) - 1 for p in probes])
    return depths[ceil(COVERED_SHARE * len(depths)) - 1]
