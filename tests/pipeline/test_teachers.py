"""Teachers by task, on both clocks; and environments that do not work any more."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="for want of the extra train")
pytest.importorskip("transformers", reason="for want of the extra train")

from divopd.config import Config
from divopd.errors import AlignmentError, DivopdError, EnvironmentFailure, TeacherAwayError
from divopd.models.policy import Response
from divopd.models.tiny import build_model, build_tokenizer, save_model
from divopd.models.transformers_policy import TransformersPolicy
from divopd.pipeline.models import load_teachers
from divopd.pipeline.preflight import load_models
from divopd.store import Store
from divopd.teacher import RETRY_S, TELL_S, Absence, Away, Retrying, Teachers, score_rollouts
from divopd.turns import Rollout
from small_runs import SIZE, config, outcome, train_small
from strategies import turn

ODD = "*[13579]"  # tasks end with their number
FRAGILE = Path(__file__).parents[1] / "fragile_room.py"


@pytest.fixture(scope="module")
def other(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A third model with the same tokenizer."""
    folder = tmp_path_factory.mktemp("other")
    tokenizer = TransformersPolicy.load(models / "teacher").tokenizer
    save_model(folder, build_model(tokenizer, seed=7, size=SIZE), tokenizer)
    return folder


def two_teachers(models: Path, other: Path, **changes: object) -> Config:
    return config(models, teacher={"by_task": {ODD: str(other), "*": str(models / "teacher")}}, **changes)


def test_the_first_pattern_that_fits_counts(models: Path, other: Path) -> None:
    """In the order of the file; a folder that is named twice is loaded once; without a fit the default teaches."""
    teachers = load_teachers(two_teachers(models, other))
    assert teachers.of("small/train/00003") is not teachers.default
    assert teachers.of("small/train/00004") is teachers.default
    assert Teachers("default", {"pick_*": "pick"}).of("heat/1") == "default"  # type: ignore[arg-type]


def test_rollouts_come_back_in_order(models: Path, other: Path) -> None:
    """Whoever scored them."""
    teachers = load_teachers(two_teachers(models, other))
    rollouts = [Rollout(f"r{n}", (turn(f"r{n}", 0, task=f"t/{n}", teacher_logprobs=None),)) for n in range(5)]
    scored = teachers.score(rollouts)
    assert [rollout.id for rollout in scored] == [rollout.id for rollout in rollouts]
    [own], [default] = (score_rollouts(t, [rollouts[1]]) for t in (teachers.of("t/1"), teachers.default))
    got = scored[1].turns[0].teacher_logprobs
    assert got == pytest.approx(own.turns[0].teacher_logprobs, abs=1e-5)
    assert got != pytest.approx(default.turns[0].teacher_logprobs, abs=1e-2)


class AbsentEngine:
    """Cannot be reached for so many calls, then scores every token -1."""

    tokenizer, exact, context_length = None, True, None

    def __init__(self, absent: int) -> None:
        self.absent, self.now, self.sleeps = absent, 0.0, []
        self.absences: list[Away] = []

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds

    def score(self, sequences: Any, spans: Any) -> list[list[np.ndarray]]:
        self.absent -= 1
        if self.absent >= 0:
            raise TeacherAwayError("nobody there", who="host:80")
        return [[np.full(end - start, -1.0) for start, end in each] for each in spans]

    def respond(self, *_: Any, **__: Any) -> list[Response]:
        self.score([], [])
        return []


def retrying(engine: AbsentEngine, told: list[Away], waits: list[int], limit_s: float = 600.0) -> Retrying:
    absence = Absence(told.append, engine.absences.append, limit_s=limit_s, now=lambda: engine.now)
    return Retrying(engine, absence, lambda: waits.append(1), sleep=engine.sleep)


def test_a_teacher_that_is_away_is_asked_again() -> None:
    """Every absence is told at once; before each new try the run may stop, and a moment passes."""
    engine, told, waits = AbsentEngine(absent=3), [], []
    teacher = retrying(engine, told, waits)
    [[values]] = teacher.score([[1, 2, 3]], [[(1, 3)]])
    assert values.tolist() == [-1.0, -1.0]
    assert (len(told), len(waits), engine.sleeps) == (1, 3, [RETRY_S] * 3)
    engine.absent = 2
    assert teacher.respond([[1]], temperature=1.0, max_tokens=1, seeds=[0]) == []
    assert (len(told), len(waits)) == (2, 5)
    assert [away.seconds for away in engine.absences] == [3 * RETRY_S, 2 * RETRY_S]  # told when it was over


def test_an_absence_is_told_every_minute_and_then_ends_the_run() -> None:
    """Who, since when, and when it is given up; after the limit the error is the caller's, and says so."""
    engine, told = AbsentEngine(absent=10_000), []
    with pytest.raises(TeacherAwayError, match=r"nobody there; it was away for 150 s \(teacher.away_limit_s\)"):
        retrying(engine, told, [], limit_s=150.0).score([[1]], [[(0, 1)]])
    assert 150.0 < engine.now <= 150.0 + 2 * RETRY_S
    assert [away.seconds for away in told] == [0.0, TELL_S, 2 * TELL_S]
    assert {(away.who, away.gives_up - away.since) for away in told} == {("host:80", 150.0)}
    first, second, _ = (away.sentence for away in told)
    assert re.fullmatch(r"host:80 is away, its rollouts wait until [\d:]{8} at most: nobody there", first)
    assert re.fullmatch(
        r"host:80 is away since [\d:]{8}, its rollouts wait until [\d:]{8} at most: nobody there", second
    )


def check_who_scored(run: Path, models: Path, other: Path) -> None:
    """Every stored turn has the log probabilities of its own task's teacher, and both have taught."""
    by_name = {"odd": TransformersPolicy.load(other), "even": TransformersPolicy.load(models / "teacher")}
    seen = set()
    with Store.open_read_only(run) as store:
        for stored in list(store.turns())[:60]:
            if stored.prompt_truncated:
                continue
            name = "odd" if int(stored.task[-1]) % 2 else "even"
            seen.add(name)
            ids, begin = [*stored.prompt_ids, *stored.response_ids], len(stored.prompt_ids)
            [[expected]] = by_name[name].score([ids], [[(begin, len(ids))]])
            np.testing.assert_allclose(np.asarray(stored.teacher_logprobs), expected, atol=1e-4)
    assert seen == {"odd", "even"}


def test_each_task_has_its_teacher_on_the_simulated_clock(models: Path, other: Path, tmp_path: Path) -> None:
    settings = two_teachers(models, other, method="divopd-r", recovery={"patience": 1, "takeover": 2})
    train_small(tmp_path / "run", settings)
    check_who_scored(tmp_path / "run", models, other)


@pytest.mark.slow
def test_each_task_has_its_teacher_on_the_live_clock(models: Path, other: Path, tmp_path: Path) -> None:
    settings = two_teachers(models, other, method="divopd-r", recovery={"patience": 1, "takeover": 2}, clock="live")
    train_small(tmp_path / "run", settings)
    check_who_scored(tmp_path / "run", models, other)


def test_the_preflight_checks_every_teacher(models: Path, tmp_path: Path) -> None:
    """The message names the tasks whose teacher does not fit."""
    tokenizer = build_tokenizer(["other words, other words"])
    save_model(tmp_path, build_model(tokenizer, seed=0, size=SIZE), tokenizer)
    with pytest.raises(AlignmentError, match=r"student and teacher of \*\[13579\] have different vocabularies"):
        load_models(two_teachers(models, tmp_path))


# ── environments that die ─────────────────────────────────────────────────────────────────────────────────────────


def room(models: Path, name: str, **changes: object) -> Config:
    return config(models, environment={"name": f"{FRAGILE}:{name}"}, **changes)


def test_failures_now_and_then_cost_their_rollouts(models: Path, tmp_path: Path) -> None:
    """Every other rollout breaks off: the run goes on to its end."""
    train_small(tmp_path / "run", room(models, "FragileRoom"))
    assert outcome(tmp_path / "run")[1][1] > 0  # trained


def test_nothing_but_failures_stops_a_run(models: Path, tmp_path: Path) -> None:
    """As many from the start as are in flight: the error has the last failure and what to do."""
    words = r"4 of the last 4 rollouts broke off.*the roof of train/\d+ fell in; see that `divopd play"
    with pytest.raises(EnvironmentFailure, match=words):
        train_small(tmp_path / "run", room(models, "FallenSchool"))
    with pytest.raises(EnvironmentFailure, match="all 3 rollouts of an evaluation broke off: the roof"):
        train_small(tmp_path / "other", room(models, "FallenRoom"))


@pytest.mark.slow
def test_nothing_but_failures_stops_a_live_run(models: Path, tmp_path: Path) -> None:
    with pytest.raises(DivopdError, match=r"explorer-0 cannot go on; its last words: .* broke off"):
        train_small(tmp_path / "run", room(models, "FallenRoom", clock="live"))
