"""How long the stages of an update take, on a processor or on a GPU that works behind the program."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Protocol

import torch


class Mark(Protocol):
    """A moment in the work of a device, as torch.cuda.Event has it."""

    def elapsed_time(self, end_event: "Mark", /) -> float:
        """Milliseconds from this moment to another one."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has come to it."""
        ...


class Clock:
    """Adds up seconds by stage. A device is marked on its way, and waited for once, when seconds are asked for."""

    def __init__(self, device: torch.device, *, mark: Callable[[], Mark] | None = None) -> None:
        self._mark = mark or (_mark if device.type == "cuda" else None)
        self._spans: list[tuple[str, float]] = []
        self._marks: list[tuple[str, Mark, Mark]] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        if self._mark is None:
            start = perf_counter()
            yield
            self._spans.append((name, perf_counter() - start))
            return
        begun = self._mark()
        yield
        self._marks.append((name, begun, self._mark()))

    @property
    def seconds(self) -> dict[str, float]:
        """By stage, all its turns together."""
        if self._marks:
            self._marks[-1][2].synchronize()
        marked = [(name, begun.elapsed_time(ended) / 1e3) for name, begun, ended in self._marks]
        found: dict[str, float] = {}
        for name, seconds in (*self._spans, *marked):
            found[name] = found.get(name, 0.0) + seconds
        return found


def _mark() -> Mark:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
