"""Queue pressure in plain words: whether turns arrive faster than they are trained, what expires, and what to do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from divopd.composers import METHODS
from divopd.composers.adaptive import DivOPDAdaptive
from divopd.composers.composer import Settings
from divopd.composers.rollout_first import RolloutFirst

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
    load: float  # valid turns arriving per turn trained; above 1 the queue grows
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
    """Means per update."""

    arrived: float  # turns, without the share that the gate drops
    trained: float
    expired: float
    rollouts_arrived: float
    unused: float  # share of the rollouts whose lot was decided
    waiting: float

    @property
    def load(self) -> float:
        return self.arrived / max(self.trained, 1.0)

    @property
    def expiring(self) -> float:
        return self.expired / max(self.expired + self.trained, 1.0)


def queue_pressure(
    updates: Sequence[Mapping[str, Any]], settings: Settings, *, max_backlog: int | None
) -> QueuePressure | None:
    """Judge the queue by the figures of the last updates, in order; None before there are two of them."""
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


def elapsed_s(figures: Mapping[str, Any]) -> float:
    """Seconds since the start of the run at an update or evaluation, on the run's own clock."""
    return figures["virtual_s"] if "virtual_s" in figures else figures["wall_s"]


def _flow(recent: Sequence[Mapping[str, Any]]) -> _Flow:
    """The first record only says where the counts stood."""
    first, *rest = recent
    last, count = rest[-1], len(rest)

    def mean(*names: str) -> float:
        return sum(figures[name] for figures in rest for name in names) / count

    elapsed = elapsed_s(last) - elapsed_s(first)
    used, unused = (sum(figures.get(name, 0) for figures in rest) for name in ("rollouts_used", "rollouts_unused"))
    put, waiting = (last.get(name, 0) - first.get(name, 0) for name in ("turns_put", "queued"))
    # the gate drops turns when they are read, which may be long after they arrived: only its share says what it will do
    dropped = min(1.0, sum(figures["invalid"] for figures in rest) / max(1, put - waiting))
    return _Flow(
        arrived=(put - put * dropped) / count,
        trained=mean("rows"),
        expired=mean("stale", "aged_out"),
        rollouts_arrived=(last["rollouts_put"] - first["rollouts_put"]) / count,
        unused=unused / (used + unused) if unused else 0.0,
        waiting=sum(figures["waited_s"] for figures in rest) / elapsed if elapsed > 0 else 0.0,
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
    if not issubclass(METHODS[settings.method], RolloutFirst):
        advice.append("use a method that gives every rollout a slot first (divopd)")
    elif METHODS[settings.method] is not DivOPDAdaptive and (settings.cap is None or settings.cap > fitting):
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
