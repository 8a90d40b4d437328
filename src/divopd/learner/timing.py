"""How long the stages of an update take, on a processor or on a GPU that works behind the program."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter, process_time
from typing import Protocol, cast

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
    """Adds up wall and processor seconds by stage.

    A device is marked on its way, and waited for once, when wall seconds are asked for.
    """

    def __init__(self, device: torch.device, *, mark: Callable[[], Mark] | None = None) -> None:
        self._mark = mark or (_mark if device.type == "cuda" else None)
        self._spans: list[tuple[str, float]] = []
        self._marks: list[tuple[str, Mark, Mark]] = []
        self.processor_s: dict[str, float] = {}  # of all threads of this process

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start, spent, begun = perf_counter(), process_time(), self._mark and self._mark()
        yield
        self.processor_s[name] = self.processor_s.get(name, 0.0) + process_time() - spent
        if self._mark is None or begun is None:
            self._spans.append((name, perf_counter() - start))
        else:
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
    return cast(Mark, event)
