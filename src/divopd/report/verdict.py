"""Does composition pay for you? A recording replayed by two composers, judged in a few lines.

What changes is counted on the recording itself. What such a change is worth is taken from runs of many seeds, which are
shipped as a small file (experiments/evidence.json), and said to be unknown where there are none.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from divopd.methods import BASELINE
from divopd.metrics import mean_of_last
from divopd.replay import Recording
from divopd.report.comparison import Replayed

CHOICE = 1.05  # a load above which a composer has to choose
FEW_OTHERS, MANY_OTHERS = 0.05, 0.3  # shares of the trained turns that are others than the baseline's
FEW_DEAD = 0.01  # of the rows
MANY_UNUSED = 0.1  # of the rollouts

Change = Literal["nothing", "little", "much"]


@dataclass(frozen=True)
class Lengths:
    """How many turns the rollouts of a recording have."""

    short: int  # a tenth of the rollouts has at most so many
    long: int  # a tenth has at least so many
    share_of_long: float  # of all turns: those of the longest tenth


@dataclass(frozen=True)
class Use:
    """What one composer makes of a recording; batches are those of the last 40 % of updates, as in the table."""

    never_used: float  # share of the valid rollouts
    dead_rows: float  # share of all rows
    effective_rollouts: float
    other_turns: float  # share of its trained turns that the baseline does not train


@dataclass(frozen=True)
class Verdict:
    """The figures behind the lines. `load`: valid turns arriving per slot of a batch."""

    turns: int
    rollouts: int
    updates: int
    load: float
    lengths: Lengths
    unreachable: float  # share of the valid rollouts that no composer could have used
    use: dict[str, Use]  # the baseline first
    change: dict[str, Change]
    evidence: dict[str, Any]  # by setting and method

    @property
    def baseline(self) -> str:
        """What the others are compared with."""
        return next(iter(self.use))

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def judge(
    recording: Recording,
    comparison: Mapping[str, Replayed],
    *,
    batch_size: int,
    evidence: Mapping[str, Any],
    baseline: str = BASELINE,
) -> Verdict | None:
    """Compare every method with the baseline, which must be among them; None if no turn can be trained."""
    updates = len(comparison[baseline].decisions)
    turns = [entry.candidate for entry in recording.turns if entry.available_at < updates]
    valid = sum(turn.reason is None for turn in turns)
    if not valid:
        return None
    base = comparison[baseline]
    use = {name: _use(comparison[name], base) for name in (baseline, *(n for n in comparison if n != baseline))}
    return Verdict(
        turns=len(turns),
        rollouts=base.utilization.rollouts,
        updates=updates,
        load=valid / (updates * batch_size),
        lengths=_lengths(Counter(turn.rollout for turn in turns)),
        unreachable=base.utilization.unreachable,
        use=use,
        change={name: _change(one, use[baseline]) for name, one in use.items() if name != baseline},
        evidence=_told(evidence, [name for name in use if name != baseline]),
    )


def _lengths(turns_of: Counter[str]) -> Lengths:
    ordered = sorted(turns_of.values())
    tenth = max(1, round(len(ordered) / 10))
    return Lengths(ordered[tenth - 1], ordered[-tenth], sum(ordered[-tenth:]) / sum(ordered))


def _use(replayed: Replayed, base: Replayed) -> Use:
    rows = sum(figures.rows for figures in replayed.figures)
    dead = sum(c.reason is not None for decision in replayed.decisions for c in decision.selected)
    own, theirs = _trained(replayed), _trained(base)
    return Use(
        never_used=replayed.utilization.never_selected,
        dead_rows=dead / rows if rows else 0.0,
        effective_rollouts=mean_of_last([figures.effective_rollouts for figures in replayed.figures]),
        other_turns=len(own - theirs) / len(own) if own else 0.0,
    )


def _trained(replayed: Replayed) -> set[tuple[str, int]]:
    return {c.key for decision in replayed.decisions for c in decision.selected if c.reason is None}


def _change(one: Use, base: Use) -> Change:
    """Dead rows alone are little: without them the same turns are trained."""
    dead, unused = abs(base.dead_rows - one.dead_rows), abs(base.never_used - one.never_used)
    if one.other_turns < FEW_OTHERS and dead < FEW_DEAD:
        return "nothing"
    return "much" if one.other_turns >= MANY_OTHERS or unused >= MANY_UNUSED else "little"


def _told(evidence: Mapping[str, Any], methods: list[str]) -> dict[str, Any]:
    """Of each setting, what is known about these methods."""
    known = {
        setting: {name: arms[name]["nauc"] for name in methods if name in arms and "nauc" in arms[name]}
        for setting, arms in evidence.items()
    }
    return {setting: arms for setting, arms in known.items() if arms}


# ── in words ──────────────────────────────────────────────────────────────────────────────────────────────────────


def verdict_lines(verdict: Verdict) -> list[str]:
    """The verdict for people, a heading and a sentence each."""
    lengths = verdict.lengths
    lines = [
        ("load", f"{verdict.load:.2f} valid turns arrive per slot of a batch: {_pressure(verdict.load)}"),
        (
            "lengths",
            f"a tenth of the rollouts has at most {lengths.short} turns, a tenth at least {lengths.long}; these hold "
            f"{lengths.share_of_long:.0%} of all turns",
        ),
        *((name, _used(name, one, verdict)) for name, one in verdict.use.items()),
        *(("change", _changed(name, change, verdict)) for name, change in verdict.change.items()),
        *(("evidence", sentence) for sentence in _evidence(verdict)),
        (
            "unknown",
            "a replay cannot tell what would have been learned, nor what other weights would have played; the evidence "
            "is of small models in the shipped settings. Train both with several seeds and run `divopd compare`",
        ),
    ]
    width = max(len(heading) for heading, _ in lines)
    return [f"{heading:{width}}  {sentence}" for heading, sentence in lines]


def _pressure(load: float) -> str:
    if load > CHOICE:
        return "more than can be trained, so a composer chooses"
    return "nearly all of them find a slot, so there is little to choose"


def _used(name: str, use: Use, verdict: Verdict) -> str:
    bound = f" (no composer gets below {verdict.unreachable:.1%})" if name != verdict.baseline else ""
    return (
        f"{use.never_used:.1%} of {verdict.rollouts} rollouts are never used{bound}, {use.effective_rollouts:.1f} "
        f"effective rollouts a batch, {use.dead_rows:.1%} of the rows are dead"
    )


def _changed(name: str, change: Change, verdict: Verdict) -> str:
    baseline, use = verdict.baseline, verdict.use[name]
    base = verdict.use[baseline]
    if change == "nothing":
        return f"{name} would train nearly the same turns as {baseline}: composition changes next to nothing here"
    return (
        f"{name} would change {change}: {use.other_turns:.0%} of the turns that it trains are none of {baseline}'s; "
        f"{_points(base.never_used - use.never_used)} of the rollouts go unused, "
        f"{_points(base.dead_rows - use.dead_rows)} of the rows are dead"
    )


def _points(saved: float) -> str:
    return f"{abs(100 * saved):.1f} points {'fewer' if saved >= 0 else 'more'}"


def _evidence(verdict: Verdict) -> list[str]:
    if not verdict.evidence:
        return [f"no evidence yet about what {' or '.join(verdict.change)} is worth compared with {BASELINE}"]
    return [
        f"{setting}, {area['seeds']} seeds: {name} − {BASELINE} is {area['mean']:+.1f} points of nAUC "
        f"(95 %: {area['low']:+.1f} to {area['high']:+.1f}), {_worth(area)}"
        for setting, arms in verdict.evidence.items()
        for name, area in arms.items()
    ]


def _worth(area: Mapping[str, float]) -> str:
    if area["low"] > 0:
        return "a gain there"
    return "a loss there" if area["high"] < 0 else "not told apart from no difference"
