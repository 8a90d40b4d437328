"""Queue pressure in plain words: whether turns arrive faster than they are trained, what expires, and what to do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from divopd.composers.adaptive import DivOPDAdaptive
from divopd.composers.composer import Settings
from divopd.composers.rollout_first import RolloutFirst
from divopd.methods import METHODS
from divopd.records import UpdateRecord

WINDOW = 20  # updates looked back at
NOTICEABLE_WAIT = 0.2  # of the learner's time
NOTICEABLE_EXPIRY = 0.1  # of the turns that left the queue
NOTICEABLE_UNUSED = 0.01  # of the rollouts that arrive
FASTER, SLOWER = 1.1, 0.95  # loads in between count as balance

Verdict = Literal["starving", "late", "balanced", "selective", "overfull"]


@dataclass(frozen=True)
class QueuePressure:
    """How full the queue is. `advice` has the remedies in order; it is empty where nothing needs to change."""

    verdict: Verdict
    load: float  # valid turns arriving per turn trained; above 1 the queue grows; without a gate see _Flow
    expiring_turns: float  # share of the turns that left untrained, because they were stale or had aged out
    unused_rollouts: float  # share of the rollouts that expired without a trained turn; the others had one
    waiting: float  # share of the learner's time
    situation: str
    advice: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """The situation and what to do about it."""
        return f"{self.situation}; {_either(self.advice)}" if self.advice else self.situation


@dataclass(frozen=True)
class _Flow:
    """Means per update. Without a gate, arrivals are counted with invalid turns and rows with the dead ones that such
    turns become: the same share on both sides, so that the load is that of the valid turns all the same."""

    arrived: float  # turns, without the share that the gate drops
    rows: float
    expired: float
    rollouts_arrived: float
    unused: float  # share of the rollouts whose lot was decided
    waiting: float

    @property
    def load(self) -> float:
        return self.arrived / max(self.rows, 1.0)

    @property
    def expiring(self) -> float:
        return self.expired / max(self.expired + self.rows, 1.0)


def queue_pressure(
    updates: Sequence[UpdateRecord], settings: Settings, *, max_backlog: int | None
) -> QueuePressure | None:
    """Judge the queue by the records of the last updates, in order; None before there are two of them."""
    recent = updates[-WINDOW - 1 :]
    if len(recent) < 2:
        return None
    flow = _flow(recent)
    if flow.waiting > NOTICEABLE_WAIT and flow.expiring > NOTICEABLE_EXPIRY:
        return _pressure("late", flow, *_late(flow, settings))
    if flow.waiting > NOTICEABLE_WAIT or flow.load < SLOWER:
        return _pressure("starving", flow, *_starving(flow))
    if flow.load > FASTER:
        verdict = "overfull" if flow.unused > NOTICEABLE_UNUSED else "selective"
        return _pressure(verdict, flow, *_overfull(flow, settings, max_backlog))
    return _pressure("balanced", flow, "turns are trained as fast as they arrive", ())


def _flow(recent: Sequence[UpdateRecord]) -> _Flow:
    """The first record only says where the counts stood."""
    first, *rest = recent
    last, count = rest[-1], len(rest)
    elapsed = last.elapsed_s - first.elapsed_s
    used, unused = (sum(one.queue.rollouts_used for one in rest), sum(one.queue.rollouts_unused for one in rest))
    put, waiting = last.queue.turns_put - first.queue.turns_put, last.queue.queued - first.queue.queued
    # the gate drops turns when they are read, which may be long after they arrived: only its share says what it will do
    dropped = min(1.0, sum(one.queue.invalid for one in rest) / max(1, put - waiting))
    return _Flow(
        arrived=(put - put * dropped) / count,
        rows=sum(one.batch.rows for one in rest) / count,
        expired=sum(one.queue.stale + one.queue.aged_out for one in rest) / count,
        rollouts_arrived=(last.queue.rollouts_put - first.queue.rollouts_put) / count,
        unused=unused / (used + unused) if unused else 0.0,
        waiting=sum(one.waited_s for one in rest) / elapsed if elapsed > 0 else 0.0,
    )


def _pressure(verdict: Verdict, flow: _Flow, situation: str, advice: tuple[str, ...]) -> QueuePressure:
    return QueuePressure(verdict, flow.load, flow.expiring, flow.unused, flow.waiting, situation, advice)


def _late(flow: _Flow, settings: Settings) -> tuple[str, tuple[str, ...]]:
    situation = (
        f"the learner waits {percent(flow.waiting)} of its time while {percent(flow.expiring)} of the turns expire"
    )
    return situation, (
        f"raise composer.max_staleness above {settings.max_staleness}",
        "make rollouts shorter (environment.horizon)",
        "play fewer at once, each of which then ends sooner (explorer.rollouts_in_flight)",
    )


def _starving(flow: _Flow) -> tuple[str, tuple[str, ...]]:
    if flow.waiting > NOTICEABLE_WAIT:
        situation = f"the learner starves: it waits {percent(flow.waiting)} of its time for turns"
    else:
        situation = f"only {flow.load:.2f} turns arrive for each one trained: the queue is running dry"
    return situation, (
        "add explorers (explorer.rollouts_in_flight or explorer.processes)",
        "lower the batch size",
    )


def _overfull(flow: _Flow, settings: Settings, max_backlog: int | None) -> tuple[str, tuple[str, ...]]:
    faster = f"turns arrive {flow.load:.1f}× faster than they are trained"
    if flow.unused <= NOTICEABLE_UNUSED:
        return f"{faster}; {percent(flow.expiring)} of the turns expire", ()
    advice = ["raise the batch size"]
    fitting = max(1, int(settings.batch_size / flow.rollouts_arrived))
    if not issubclass(METHODS[settings.method].composer, RolloutFirst):
        advice.append("use a method that gives every rollout a slot first (divopd)")
    elif METHODS[settings.method].composer is not DivOPDAdaptive and (settings.cap is None or settings.cap > fitting):
        advice.append(f"lower the cap to {fitting}")  # divopd-adaptive does so by itself
    if max_backlog is None:
        advice.append("set explorer.max_backlog")
    return f"{faster}; {percent(flow.unused)} of rollouts will expire unused", tuple(advice)


def percent(share: float) -> str:
    """A share in words: 41 %."""
    return f"{100 * share:.0f} %"


def _either(options: Sequence[str]) -> str:
    if len(options) < 3:
        return " or ".join(options)
    return f"{', '.join(options[:-1])}, or {options[-1]}"
