"""Where a training rollout begins and how deep it may go (specification §6.4-6.5).

It begins with its task or, in TCOD-B2F, behind actions of the expert; it goes to the horizon, or as deep as TCOD-F2B
and TurnOPD allow.

What a curriculum knows is the fold over the rollouts that have arrived in the queue, in order. It is never saved: a
process that starts, or starts again, reads the arrivals from the store.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import ClassVar, NamedTuple, Protocol

from divopd.turns import Rollout
from divopd.validity import assess

PROBE_EVERY = 8  # updates between full-depth probes
PROBE_WARMUP = 3  # first updates, all at full depth
SMOOTHING = 0.3
COVERED_SHARE = 0.80
ENOUGH_SUCCESSES = 8
ENOUGH_PROBES = 2  # that have a turn of a number, for that number to count


class Outcome(NamedTuple):
    """A scored rollout as a curriculum looks at it."""

    number: int  # its place in the order of arrival, from 1
    version: int
    success: bool
    turns: tuple[tuple[float, int], ...]  # disagreement and valid tokens of each; both 0 for an invalid one


@dataclass(frozen=True)
class Depths:
    """The numbers that curricula are made from."""

    horizon: int
    rollouts_per_step: int = 16  # rollouts that make one explorer step
    growth: int = 6  # explorer steps after which TCOD-F2B allows one turn more
    retreat: int = 5  # explorer steps after which TCOD-B2F replays one action less

    def step(self, number: int) -> int:
        """The explorer step, counted from 1, of rollout `number`, counted from 0."""
        return 1 + number // self.rollouts_per_step


def outcome_of(rollout: Rollout, *, number: int) -> Outcome:
    """What a curriculum hears of a scored rollout."""
    turns = tuple(assess(turn)[1:] for turn in rollout.turns)
    return Outcome(number, rollout.version, bool(rollout.turns[0].success), turns)


class Curriculum(Protocol):
    """Where the next rollouts begin, and how many turns they may have."""

    learns: ClassVar[bool]  # whether it wants to hear of outcomes
    replays: ClassVar[bool]  # whether rollouts may begin with actions of the expert

    def __init__(self, depths: Depths) -> None: ...

    def depth(self, number: int, *, version: int) -> int:
        """The most turns of rollout `number`, counted from 0, which begins with this policy version."""
        ...

    def replayed(self, number: int, *, expert_actions: int) -> int:
        """With how many of its task's `expert_actions` rollout `number` begins."""
        ...

    def observe(self, outcome: Outcome) -> None:
        """A rollout has arrived in the queue; every one is told once, in order of arrival."""
        ...


class FullDepth:
    """Every rollout may go to the horizon."""

    learns: ClassVar[bool] = False
    replays: ClassVar[bool] = False

    def __init__(self, depths: Depths) -> None:
        self.depths, self.horizon = depths, depths.horizon

    def depth(self, number: int, *, version: int) -> int:
        del number, version
        return self.horizon

    def replayed(self, number: int, *, expert_actions: int) -> int:
        del number, expert_actions
        return 0

    def observe(self, outcome: Outcome) -> None:
        del outcome


class GrowingDepth(FullDepth):
    """TCOD-F2B, front to back: one turn at first, one more every `growth` explorer steps."""

    def depth(self, number: int, *, version: int) -> int:
        del version
        return min(1 + self.depths.step(number) // self.depths.growth, self.horizon)


class RetreatingStart(FullDepth):
    """TCOD-B2F, back to front: at first only the expert's last action is left to do, one more every `retreat` steps."""

    replays: ClassVar[bool] = True

    def replayed(self, number: int, *, expert_actions: int) -> int:
        return max(0, expert_actions - 1 - self.depths.step(number) // self.depths.retreat)


class AdaptedDepth(FullDepth):
    """TurnOPD: full-depth probes of some policy versions tell how deep the others need to go."""

    learns: ClassVar[bool] = True

    def __init__(self, depths: Depths) -> None:
        super().__init__(depths)
        self._probes: dict[int, list[Outcome]] = {}  # by policy version

    def depth(self, number: int, *, version: int) -> int:
        del number
        return self.horizon if is_probe(version) else self._adapted()

    def observe(self, outcome: Outcome) -> None:
        if is_probe(outcome.version):
            self._probes.setdefault(outcome.version, []).append(outcome)

    def _adapted(self) -> int:
        """The limit from all probes so far; the horizon as long as they tell nothing.

        Depths are numbers of turns, counted from 0; the limit is how many turns there may be.
        """
        smooth: float | None = None
        covered: int | None = None
        for version in sorted(self._probes):
            probes = self._probes[version]
            covered = _covered_depth(probes, before=covered)
            known = [depth for depth in (_effective_depth(probes), covered) if depth is not None]
            if known:
                target = max(known)
                smooth = target if smooth is None else (1 - SMOOTHING) * smooth + SMOOTHING * target
        return self.horizon if smooth is None else min(max(round(smooth) + 1, 2), self.horizon)


def is_probe(version: int) -> bool:
    """TurnOPD: whether rollouts of this policy version run to the horizon."""
    return version < PROBE_WARMUP or version % PROBE_EVERY == 0


def _effective_depth(probes: Sequence[Outcome]) -> int | None:
    """H_eff = round(Σ t p_t): where the disagreement per token lies, weighted by how many probes get there.

    A turn number that fewer than ENOUGH_PROBES have does not count; None if none counts.
    """
    mass: list[float] = []
    for turn in range(max(len(probe.turns) for probe in probes)):
        there = [probe.turns[turn] for probe in probes if len(probe.turns) > turn]
        if len(there) < ENOUGH_PROBES:  # and so have all later ones
            break
        tokens = sum(valid for _, valid in there)
        per_token = sum(gap for gap, _ in there) / tokens if tokens else 0.0  # K_t
        mass.append(max(per_token, 0.0) * len(there) / len(probes))
    if not mass:
        return None
    total = sum(mass) + 1e-8
    return round(sum(turn * value / total for turn, value in enumerate(mass)))


def _covered_depth(probes: Sequence[Outcome], *, before: int | None) -> int | None:
    """H_cov: the depth that covers 80 % of the successes; what it was before if there are too few of them."""
    depths = sorted(len(probe.turns) - 1 for probe in probes if probe.success)
    return depths[ceil(COVERED_SHARE * len(depths)) - 1] if len(depths) >= ENOUGH_SUCCESSES else before
