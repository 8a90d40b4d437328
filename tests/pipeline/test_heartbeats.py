"""Who is silent for too long is found, whatever the reason; who is late by our own fault is not."""

import os
import time
from pathlib import Path

from divopd.pipeline.heartbeats import LONGEST_LOOK_S, START_S, Heartbeats, beat


class Hand:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def silences(signs: list[object], *, step_s: float, limit_s: float) -> list[float | None]:
    """What is said of each sign, looked at one after the other."""
    clock = Hand()
    heartbeats, said = Heartbeats(limit_s, clock=clock), []
    for sign in signs:
        said.append(heartbeats.look("learner-1", sign))
        clock.now += step_s
    return said


def test_a_worker_whose_sign_stays_is_silent() -> None:
    """As long as its sign changes it is not, however long it lives."""
    assert silences([1, 2, 3, 4, 5, 6, 7, 7, 7, 7, 7], step_s=1, limit_s=3) == [*[None] * 10, 4]
    assert silences(list(range(50)), step_s=1, limit_s=3) == [None] * 50


def test_each_worker_has_a_silence_of_its_own() -> None:
    """And one that is started again begins anew."""
    clock = Hand()
    heartbeats = Heartbeats(2, clock=clock)
    for second in range(4):
        clock.now += 1
        found = [heartbeats.look(name, sign) for name, sign in (("learner", second), ("learner-1", 0))]
    assert found == [None, 3]
    heartbeats.forget("learner-1")
    assert heartbeats.look("learner-1", 0) is None


def test_a_machine_that_slept_finds_nobody_hung() -> None:
    """Between two looks of ours an hour passed: the others could not beat either."""
    assert silences([1, 1, 2], step_s=3600, limit_s=LONGEST_LOOK_S + 1) == [None] * 3
    assert silences([1, 1, 1], step_s=3600, limit_s=LONGEST_LOOK_S + 1) == [None, None, 2 * LONGEST_LOOK_S]


def test_who_starts_may_be_silent_for_longer() -> None:
    """Its libraries take longer to load than a heartbeat; in the end it is found, too."""
    looks = int(START_S / LONGEST_LOOK_S)
    said = silences([None] * (looks + 2), step_s=LONGEST_LOOK_S, limit_s=1)
    assert said == [None] * (looks + 1) + [START_S + LONGEST_LOOK_S]


def test_a_beat_goes_on_until_it_is_ended(tmp_path: Path) -> None:
    """Its file is touched again and again; a folder that is deleted ends it, and nobody is disturbed."""
    file = tmp_path / "beats" / "learner"
    over = beat(file)
    seen: set[int] = set()
    while len(seen) < 2:
        time.sleep(0.05)
        if file.exists():
            seen.add(file.stat().st_mtime_ns)
    over()
    assert os.listdir(tmp_path) == ["beats"]
